import gc
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cluster.order import CapacityLoad, Cause, Failed, Measured, Order, Outcome
from objectives.goal import Goal
from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from search_spaces.arguments import render, render_control
from search_spaces.space import Config, Space
from tests.tuner import stories
from tests.tuner.dispatches import Answer, FakeDispatch
from tests.tuner.spaces import SMALL, TINY
from tuner.first_speed import first_speed
from tuner.front import FrontView
from tuner.ledger import Standing
from tuner.records import State, read_study, read_trials
from tuner.sampler import SamplerError, Search, sampler_named
from tuner.study import (
    Done,
    Event,
    Finished,
    FrontMoved,
    Retried,
    Started,
    StudyError,
    StudyPlan,
    locked,
    search,
    told_violations,
)

GOAL = Goal.of(["goodput", "tpot_p95"])


class Journal:
    """A recorder that keeps what it was given."""

    def __init__(self) -> None:
        self.synced: list[tuple[int, Standing]] = []

    def sync(self, study_folder: Path, view: FrontView, standing: Standing = "RUNNING") -> bool:
        assert [t.number for t in read_trials(study_folder)] == [t.number for t in view.trials]
        self.synced.append((len(view.trials), standing))
        return True


class Desk:
    """A study of a small space, its database, and where its trials run."""

    def __init__(
        self,
        folder: Path,
        *,
        space: Space = SMALL,
        sampler: str = "random",
        seed: int = 0,
        storage: str | None = None,
    ) -> None:
        self.folder = folder / "tea"
        self.space = space
        self.journal = Journal()
        self._storage = storage or f"sqlite:///{folder}/study.db"
        self._sampler = sampler
        self._seed = seed
        self.study = replace(stories.study_file(), sampler=sampler, seed=seed)

    def order(self, number: int, config: Config | None) -> Order:
        rendered = render_control(self.space) if config is None else render(self.space, config)
        return replace(stories.order(number), model=rendered.model, arguments=rendered.arguments)

    def plan(self, total: int) -> StudyPlan:
        return StudyPlan(
            folder=self.folder, study=self.study, space=self.space, goal=GOAL, total=total, order=self.order
        )

    def open(self) -> Search:
        return Search.open(
            space=self.space,
            goal=GOAL,
            study=self.study.name,
            storage=self._storage,
            recipe=sampler_named(self._sampler),
            seed=self._seed,
        )

    def events(self, total: int, dispatch: FakeDispatch) -> Generator[Event, None, None]:
        return search(self.plan(total), dispatch, self.open(), self.journal, now=_ticking())

    def search(self, total: int, answer: Answer | None = None) -> list[Event]:
        return list(self.events(total, FakeDispatch(answer or good)))


def _ticking() -> Callable[[], datetime]:
    """A clock that goes on by ten seconds whenever it is looked at."""
    ticks = iter(range(10**6))
    return lambda: stories.MORNING + timedelta(seconds=10 * next(ticks))


def good(order: Order) -> Measured:
    """Later trials are better in one way and worse in the other, so all are on the front."""
    outcome = stories.measured(1.0 + order.number, 0.01 * (1 + order.number))
    return replace(outcome, ran=replace(outcome.ran, effective={}))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_control_runs_first_and_alone_and_counts(desk: Desk) -> None:
    dispatch = FakeDispatch(good, gpus=3)
    events = list(desk.events(5, dispatch))
    assert isinstance(events[0], Started)
    assert (events[0].number, events[0].is_control) == (0, True)
    assert isinstance(events[1], Finished)
    assert events[1].number == 0
    assert [order.number for order in dispatch.submitted] == [0, 1, 2, 3, 4]
    assert dispatch.submitted[0].arguments == render_control(SMALL).arguments
    assert [trial.is_control for trial in read_trials(desk.folder)] == [True, False, False, False, False]


def test_several_run_at_once_as_far_as_there_is_room(desk: Desk) -> None:
    dispatch = FakeDispatch(good, gpus=3, last_first=True)
    list(desk.events(8, dispatch))
    assert dispatch.most == 3
    assert len(read_trials(desk.folder)) == 8


def test_a_trial_that_needs_more_gpus_waits_for_room(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    small = desk.order
    monkeypatch.setattr(
        desk, "order", lambda number, config: replace(small(number, config), gpus=3 if number == 2 else 1)
    )
    dispatch = FakeDispatch(good, gpus=3)
    under_way = [
        {order.number for order in dispatch.waiting}
        for event in desk.events(6, dispatch)
        if isinstance(event, Started)
    ]
    assert {2} in under_way
    assert all(2 not in numbers or numbers == {2} for numbers in under_way)
    assert len(read_trials(desk.folder)) == 6


def test_a_trial_that_no_node_can_run_is_said_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    small = desk.order
    monkeypatch.setattr(
        desk, "order", lambda number, config: replace(small(number, config), gpus=1 if config is None else 9)
    )
    with pytest.raises(StudyError, match="no node can run trial 1: it needs 9 GPUs"):
        list(desk.events(3, FakeDispatch(good, gpus=3)))
    assert desk.open().running() == ()


def test_what_is_measured_is_on_disk_before_the_event(desk: Desk) -> None:
    for event in desk.events(4, FakeDispatch(good)):
        if isinstance(event, Finished):
            assert read_trials(desk.folder)[-1].number == event.number


def test_events_tell_the_front_how_far_it_is_and_how_long_it_takes(desk: Desk) -> None:
    events = desk.search(4)
    finished = [event for event in events if isinstance(event, Finished)]
    assert [(event.done, event.total) for event in finished] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(event.on_front for event in finished)
    assert finished[0].objectives == ("goodput_rps", "tpot_p95_ms")
    # The clock goes on by 10 s between a trial's start and its end, and one runs at a time.
    assert [event.eta_s for event in finished] == [30.0, 20.0, 10.0, 0.0]
    assert [event.numbers for event in events if isinstance(event, FrontMoved)] == [
        (0,),
        (0, 1),
        (0, 1, 2),
        (0, 1, 2, 3),
    ]
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.view.numbers, done.exhausted, done.logged) == ((0, 1, 2, 3), None, True)


def test_the_control_takes_its_place_in_the_space_from_what_the_engine_reports(tmp_path: Path) -> None:
    desk = Desk(tmp_path, space=TINY)

    def answer(order: Order) -> Measured:
        outcome = good(order)
        # "int8" has its argument; no speculative_config in effect is speculation off.
        return replace(outcome, ran=replace(outcome.ran, effective={"quantization": "int8"}))

    desk.search(2, answer)
    control = read_trials(desk.folder)[0]
    if control.config is not None:
        assert control.config["scheme"] == "int8"
    assert control.config == (
        None if (c := TINY.locate({"quantization": "int8"})) is None else dict(c.values)
    )


def test_the_slo_is_a_constraint_where_no_objective_counts_it() -> None:
    measurement = Measurement(
        metrics={"slo_attainment": Estimate(value=0.9)}, requests=10, failed_requests=0, duration_s=1.0
    )
    slo = Slo(ttft_s=0.5, attainment=0.95)
    latencies = Goal.of(["ttft_p95", "tpot_p95"])
    assert told_violations(measurement, latencies, slo) == pytest.approx({"slo_attainment": 0.05})
    assert told_violations(measurement, latencies, Slo()) == {}
    for name in ("capacity", "goodput_tokens", "slo_attainment", "cost_per_million_tokens"):
        assert told_violations(measurement, Goal.of([name, "tpot_p95"]), slo) == {}


def test_failures_are_results_and_count(desk: Desk) -> None:
    events = desk.search(5, lambda order: stories.failed(Cause.OUT_OF_MEMORY, "no room"))
    trials = read_trials(desk.folder)
    assert [trial.state for trial in trials] == [State.FAILED] * 5
    assert not any(event.on_front for event in events if isinstance(event, Finished))
    assert not [event for event in events if isinstance(event, FrontMoved)]


def test_a_measured_trial_without_an_objective_has_no_score(desk: Desk) -> None:
    def answer(order: Order) -> Outcome:
        outcome = good(order)
        metrics = {name: e for name, e in outcome.measurement.metrics.items() if name != "tpot_p95_s"}
        return replace(outcome, measurement=replace(outcome.measurement, metrics=metrics))

    events = desk.search(2, answer)
    finished = [event for event in events if isinstance(event, Finished)]
    assert all(event.unscored and "tpot_p95" in event.unscored for event in finished)
    assert [trial.state for trial in read_trials(desk.folder)] == [State.UNSCORED] * 2


@pytest.mark.parametrize("cause", [Cause.LOST_NODE, Cause.CLIENT_LATE, Cause.CANCELLED])
def test_what_says_nothing_about_a_config_is_sent_out_once_more(desk: Desk, cause: Cause) -> None:
    lost: list[Order] = []

    def answer(order: Order) -> Outcome:
        if order.number == 1 and not lost:
            lost.append(order)
            return stories.failed(cause, "gone")
        return good(order)

    events = desk.search(3, answer)
    assert [(e.number, e.reason) for e in events if isinstance(e, Retried)] == [(1, f"{cause}: gone")]
    trials = read_trials(desk.folder)
    assert [trial.state for trial in trials] == [State.MEASURED] * 3
    assert [trial.attempts for trial in trials] == [1, 2, 1]


def test_a_config_lost_twice_is_put_down_to_the_config(desk: Desk) -> None:
    def answer(order: Order) -> Outcome:
        return stories.failed(Cause.LOST_NODE, "gone") if order.number == 1 else good(order)

    desk.search(3, answer)
    trial = read_trials(desk.folder)[1]
    assert (trial.state, trial.cause, trial.attempts) == (State.FAILED, Cause.LOST_TWICE, 2)
    assert Cause.LOST_TWICE.blames_config
    told = desk.open()._trials()[1].user_attrs  # what samplers learn from
    assert told["cause"] == Cause.LOST_TWICE
    assert len(read_trials(desk.folder)) == 3


def test_a_space_with_nothing_new_ends_the_search_before_its_total(tmp_path: Path) -> None:
    desk = Desk(tmp_path, space=TINY)
    done = desk.search(40)[-1]
    assert isinstance(done, Done)
    assert done.exhausted is not None
    assert "14 configs" in done.exhausted
    # The control is no point of this space (the engine reports nothing), and a tenth of 40 measures again.
    assert len(done.view.promises) == 15
    assert len(done.view.trials) == 19
    assert done.why.startswith(done.exhausted)


def test_resuming_goes_on_to_the_total_and_asks_nothing_twice(desk: Desk) -> None:
    desk.search(2)
    events = desk.search(5)
    assert [event.number for event in events if isinstance(event, Finished)] == [2, 3, 4]
    trials = read_trials(desk.folder)
    configs = [Config(trial.config) for trial in trials if trial.config is not None]
    assert len(set(configs)) == len(configs) == 4


def _guesses(dispatch: FakeDispatch) -> dict[int, float | None]:
    return {
        order.number: order.load.guess for order in dispatch.submitted if isinstance(order.load, CapacityLoad)
    }


def _capable(order: Order) -> Measured:
    """Every trial has its capacity at three times its number and 2."""
    outcome = good(order)
    metrics = {**outcome.measurement.metrics, "capacity_speed": Estimate(value=3.0 * order.number + 2)}
    return replace(outcome, measurement=replace(outcome.measurement, metrics=metrics))


def test_a_capacity_is_looked_for_from_those_that_were_measured_before(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = desk.order
    monkeypatch.setattr(
        desk, "order", lambda number, config: replace(plain(number, config), load=CapacityLoad())
    )
    dispatch = FakeDispatch(_capable)
    list(desk.events(4, dispatch))
    # Capacities 2, 5, 8, … are known when the next one is sent out.
    trials = read_trials(desk.folder)
    assert _guesses(dispatch) == {
        order.number: first_speed(trials[: order.number], order) for order in dispatch.submitted
    }
    assert _guesses(dispatch)[1] == 2.0


@pytest.mark.parametrize("totals", [(7,), (3, 7)])
def test_new_configs_are_told_the_front_so_far_and_repeats_and_the_control_are_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, totals: tuple[int, ...]
) -> None:
    monkeypatch.setattr("tests.tuner.test_study.GOAL", Goal.of(("capacity",)))
    desk.study = replace(desk.study, objectives=("capacity",), engine="simulated")
    plain = desk.order
    monkeypatch.setattr(
        desk, "order", lambda number, config: replace(plain(number, config), load=CapacityLoad())
    )

    def capable(order: Order) -> Measured:
        outcome = good(order)
        # The second is the best.
        speed = Estimate(value=9.0 if order.number == 2 else 5.0 + 0.1 * order.number, low=4.0 + order.number)
        metrics = {**outcome.measurement.metrics, "capacity_speed": speed, "capacity_rps": speed}
        return replace(outcome, measurement=replace(outcome.measurement, metrics=metrics))

    told = {}
    for total in totals:
        dispatch = FakeDispatch(capable)
        list(desk.events(total, dispatch))
        for order in dispatch.submitted:
            assert isinstance(order.load, CapacityLoad)
            told[order.number] = [(bar.trial, bar.speed) for bar in order.load.bars]
    repeat = next(trial.number for trial in read_trials(desk.folder) if trial.repeats is not None)
    assert told[0] == told[repeat] == []
    assert told[1] == [(0, 4.0)]
    assert told[2] == [(1, 5.0)]
    assert all(told[number] == [(2, 6.0)] for number in range(3, repeat))


@pytest.mark.parametrize("at", [1, 3])
def test_a_resumed_search_begins_each_capacity_where_an_unbroken_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    guesses: list[dict[int, float | None]] = []
    for name, totals in (("unbroken", (5,)), ("resumed", (at, 5))):
        (tmp_path / name).mkdir()
        desk = Desk(tmp_path / name)
        plain = desk.order
        monkeypatch.setattr(
            desk,
            "order",
            lambda number, config, plain=plain: replace(plain(number, config), load=CapacityLoad()),
        )
        sent: dict[int, float | None] = {}
        for total in totals:
            dispatch = FakeDispatch(_capable)
            list(desk.events(total, dispatch))
            sent |= _guesses(dispatch)
        guesses.append(sent)
    assert guesses[0] == guesses[1]
    assert len(guesses[0]) == 5


def test_a_study_that_has_its_total_is_done_at_once(desk: Desk) -> None:
    desk.search(3)
    events = desk.search(3)
    assert [type(event) for event in events] == [Done]


def test_a_search_that_is_no_longer_listened_to_leaves_nothing_running(desk: Desk) -> None:
    dispatch = FakeDispatch(good, gpus=3)
    events = desk.events(9, dispatch)
    under_way: set[int] = set()
    for event in events:
        if isinstance(event, Started):
            under_way.add(event.number)
        if isinstance(event, Finished):
            under_way.discard(event.number)
        if len(under_way) == 3:
            break
    events.close()
    assert dispatch.cancelled
    assert desk.open().running() == ()
    assert desk.journal.synced[-1] == (1, "KILLED")
    desk.search(9)
    assert len(read_trials(desk.folder)) == 9


def test_interrupted_trials_are_the_first_to_be_asked_again(desk: Desk) -> None:
    def interrupted(order: Order) -> Outcome:
        if order.number == 2:
            raise KeyboardInterrupt
        return good(order)

    dispatch = FakeDispatch(interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(desk.events(5, dispatch))
    again = FakeDispatch(good)
    list(desk.events(5, again))
    assert again.submitted[0].arguments == dispatch.submitted[2].arguments
    assert again.submitted[0].number == 3
    assert [trial.number for trial in read_trials(desk.folder)] == [0, 1, 3, 4, 5]


def test_a_second_driver_on_one_study_is_refused_by_name(desk: Desk) -> None:
    desk.folder.mkdir(parents=True)
    code = (
        "import sys, pathlib; from tuner.study import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(desk.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StudyError, match=rf"study tea is being searched by process {other.pid} on"):
            desk.search(3)
        other.kill()
    with locked(desk.folder):
        pass  # the lock went with the process


def test_a_database_of_another_study_of_that_name_is_refused(desk: Desk, tmp_path: Path) -> None:
    desk.search(2)
    (desk.folder / "trials").rename(tmp_path / "elsewhere")
    with pytest.raises(StudyError, match="has not its control; give the study another name"):
        desk.search(4)


def test_a_database_that_cannot_be_written_is_one_line_and_loses_nothing(desk: Desk, tmp_path: Path) -> None:
    desk.search(2)
    with sqlite3.connect(tmp_path / "study.db") as database:
        full = "SELECT RAISE(FAIL, 'disk is full')"
        database.execute(f"CREATE TRIGGER full BEFORE INSERT ON trials BEGIN {full}; END")
    database.close()
    with pytest.raises(SamplerError, match=r"disk is full; what was measured is on disk") as told:
        desk.search(4)
    assert "\n" not in str(told.value)
    assert len(read_trials(desk.folder)) == 2


def test_a_study_whose_database_was_lost_is_rebuilt_from_disk(desk: Desk, tmp_path: Path) -> None:
    desk.search(6)
    (tmp_path / "study.db").unlink()
    events = desk.search(8)
    assert [event.number for event in events if isinstance(event, Finished)] == [6, 7]
    trials = read_trials(desk.folder)
    firsts = [trial.config for trial in trials[1:] if trial.repeats is None]
    assert len({Config(config) for config in firsts if config is not None}) == len(firsts)
    # What is recommended gets its second fresh measurement before a newcomer gets its first.
    assert [trial.repeats for trial in trials if trial.repeats is not None] == [4, 4]


def test_the_study_is_described_on_disk_from_the_start(desk: Desk) -> None:
    events = desk.events(3, FakeDispatch(good))
    next(events)
    assert read_study(desk.folder).name == "tea"
    events.close()


def test_the_collector_leaves_alone_what_a_study_begins_with_until_it_ends(desk: Desk) -> None:
    events = desk.events(3, FakeDispatch(good))
    next(events)
    assert gc.get_freeze_count() > 0
    events.close()
    assert gc.get_freeze_count() == 0


def test_mlflow_is_written_while_trials_run_and_when_all_is_done(desk: Desk) -> None:
    desk.search(3)
    assert desk.journal.synced == [(0, "RUNNING"), (1, "RUNNING"), (2, "RUNNING"), (3, "FINISHED")]


def test_a_log_is_not_kept_with_the_drivers_secrets_in_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12")

    def answer(order: Order) -> Outcome:
        return Failed(
            cause=Cause.DIED_AT_START,
            reason="no",
            ran=replace(good(order).ran, log="token hf_abcdefgh12 refused"),
        )

    desk.search(1, answer)
    log = (desk.folder / "trials" / "0000" / "engine.log").read_text()
    assert log == "token *** refused"
