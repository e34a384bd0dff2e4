"""What trials are doing, over a real Ray: from their nodes to the driver, and what a dead board costs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import ray

from cluster.dispatch.on_ray import OnRay
from cluster.dispatch.phase_board import PhaseBoard
from cluster.node.engine import Endpoint
from cluster.node.phases import Phases
from cluster.node.simulated import SimulatedEngine
from cluster.order import CapacityLoad, Measured, Order, Outcome
from cluster.phase import Phase, PhaseName
from tests.cluster.dispatch.scripted import order, wait_for

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its own sockets and files to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Held:
    """The simulated engine, which stops only once the file that its order names is there."""

    name = "simulated"

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> Iterator[Endpoint]:
        with SimulatedEngine().serve(order, folder, phases) as endpoint:
            yield endpoint
        wait_for(Path(order.environment["HELD_UNTIL"]))


def held(number: int, until: Path) -> Order:
    return replace(
        order(number, model="HuggingFaceTB/SmolLM2-135M"),
        environment={"HELD_UNTIL": str(until)},
        load=CapacityLoad(resolution=0.5, highest=4.0),
    )


@dataclass
class Driver:
    """A dispatch, and what it told."""

    dispatch: OnRay = field(init=False)
    told: list[tuple[int, str | None, Phase]] = field(default_factory=list)

    def phases(self, number: int) -> list[Phase]:
        return [phase for told, _, phase in self.told if told == number]

    def wait_until_told(self, number: int, name: PhaseName) -> None:
        deadline = time.monotonic() + 60
        while name not in {phase.name for phase in self.phases(number)}:
            assert self.dispatch.next(timeout_s=0.5) is None
            assert time.monotonic() < deadline, self.told

    def wait_until_the_board_answers(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(ray.exceptions.RayActorError):
                ray.get(self.dispatch._board.take.remote())
                return
        pytest.fail("the board was not begun again")

    def outcome(self, number: int) -> Outcome:
        landed = self.dispatch.next(timeout_s=60)
        assert landed is not None
        assert landed[0] == number
        return landed[1]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver()
    with OnRay(Held(), tell=lambda *told: made.told.append(told)) as made.dispatch:
        yield made


def test_a_simulated_trial_is_told_in_the_order_of_its_phases(driver: Driver, tmp_path: Path) -> None:
    driver.dispatch.submit(held(1, tmp_path / "go"))
    assert driver.told == []  # not before the search has said that it was sent out
    driver.wait_until_told(1, PhaseName.STOPPING)
    (tmp_path / "go").touch()
    outcome = driver.outcome(1)
    assert isinstance(outcome, Measured)
    # Of the last phase, which the outcome follows at once, it need not have heard.
    told = [phase for phase in driver.phases(1) if phase.name is not PhaseName.SUMMARISING]
    first, second, third, *replays, last = told
    assert [one.name for one in (first, second, third)] == [
        PhaseName.SENT,
        PhaseName.STARTING,
        PhaseName.WARMING_UP,
    ]
    assert [(one.replay, one.speed) for one in replays] == [
        (1, 1.0),
        *((number, step.point.speed) for number, step in enumerate(outcome.steps, 2)),
    ]
    assert last.name is PhaseName.STOPPING
    assert {node for _, node, _ in driver.told} == {outcome.ran.node}


def test_a_board_that_dies_costs_no_trial_and_is_begun_again(driver: Driver, tmp_path: Path) -> None:
    driver.dispatch.submit(held(2, tmp_path / "two"))
    driver.wait_until_told(2, PhaseName.STARTING)
    ray.kill(driver.dispatch._board, no_restart=False)
    (tmp_path / "two").touch()
    assert isinstance(driver.outcome(2), Measured)
    heard = len(driver.phases(2))
    driver.wait_until_the_board_answers()
    driver.dispatch.submit(held(3, tmp_path / "three"))
    driver.wait_until_told(3, PhaseName.STOPPING)
    (tmp_path / "three").touch()
    assert isinstance(driver.outcome(3), Measured)
    assert len(driver.phases(2)) == heard  # nothing of a trial that has ended


def test_a_board_that_is_gone_for_good_costs_no_trial(driver: Driver, tmp_path: Path) -> None:
    ray.kill(driver.dispatch._board)
    driver.dispatch.submit(held(4, tmp_path / "four"))
    driver.wait_until_told(4, PhaseName.SENT)  # which the driver knows by itself
    (tmp_path / "four").touch()
    assert isinstance(driver.outcome(4), Measured)


def test_a_board_holds_the_newest_of_a_phase_and_gives_what_it_holds_once() -> None:
    board = PhaseBoard()
    starting = Phase(name=PhaseName.STARTING)
    replay = Phase(name=PhaseName.REPLAYING, replay=1, speed=1.0, requests=9)
    for phase in (starting, replay, replace(replay, ended=2), replace(replay, ended=7)):
        board.tell(4, phase)
    board.tell(5, starting)
    assert board.take() == {4: (starting, replace(replay, ended=7)), 5: (starting,)}
    assert board.take() == {}
