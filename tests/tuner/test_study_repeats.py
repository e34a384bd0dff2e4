"""The end of a search through its own loop: what is measured again, when it stops, what that is worth."""

import json
import statistics
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.order import Cause, Order, Outcome
from objectives.measurement import Estimate
from search_spaces.values import Json
from tests.tuner import stories
from tests.tuner.dispatches import Answer, FakeDispatch
from tests.tuner.spaces import TINY
from tests.tuner.test_study import Desk
from tuner.front import FrontView, read_view
from tuner.records import State, read_trials
from tuner.remeasure import PATIENCE
from tuner.study import Done, Event, Finished, Retried, Started, search

IN_MEMORY = "sqlite:///:memory:"
"""For a search that is not resumed."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def quick(tmp_path: Path) -> Desk:
    return Desk(tmp_path, storage=IN_MEMORY)


def worth(arguments: Mapping[str, Json]) -> float:
    """The true goodput of a config: made up, the same whenever it is asked, between 5 and 10."""
    return 5 + 5 * zlib.crc32(json.dumps(arguments, sort_keys=True).encode()) / 2**32


def answered(goodput: float, noise: float) -> Outcome:
    outcome = stories.measured()
    metrics = {
        "goodput_rps": Estimate(value=goodput, low=goodput * (1 - noise), high=goodput * (1 + noise)),
        "tpot_p95_s": Estimate(value=0.04),
    }
    return replace(
        outcome,
        measurement=replace(outcome.measurement, metrics=metrics),
        ran=replace(outcome.ran, effective={}),
    )


def exact(order: Order) -> Outcome:
    return answered(worth(order.arguments), 0.001)


def repeats(folder: Path) -> list[int | None]:
    return [trial.repeats for trial in read_trials(folder)]


def test_the_last_tenth_measures_again_what_is_recommended_with_the_same_arguments(quick: Desk) -> None:
    dispatch = FakeDispatch(exact)
    events = list(quick.events(20, dispatch))
    seen = read_view(quick.folder)
    assert seen.recommended is not None
    best = seen.recommended.number
    assert repeats(quick.folder) == [None] * 18 + [best] * 2
    assert all(order.arguments == dispatch.submitted[best].arguments for order in dispatch.submitted[18:])
    started = [event for event in events if isinstance(event, Started) and event.repeats is not None]
    finished = [event for event in events if isinstance(event, Finished) and event.repeats is not None]
    assert [(event.number, event.repeats) for event in started] == [(18, best), (19, best)]
    assert [(event.number, event.repeats, event.on_front) for event in finished] == [
        (18, best, True),
        (19, best, True),
    ]
    done = events[-1]
    assert isinstance(done, Done)
    assert done.why.startswith("all 20 trials have finished; ")
    assert f"trial {best} is recommended, measured again twice" in done.why


def test_a_small_search_explores_to_its_end(quick: Desk) -> None:
    quick.search(5, exact)
    assert repeats(quick.folder) == [None] * 5


def test_a_config_that_fails_when_measured_again_is_not_recommended(quick: Desk) -> None:
    again: list[int] = []

    def answer(order: Order) -> Outcome:
        if order.number >= 8:
            again.append(order.number)
            if len(again) == 1:
                return stories.failed(Cause.DIED_UNDER_LOAD, "CUDA error")
        return exact(order)

    quick.search(10, answer)
    seen = read_view(quick.folder)
    lucky, then = (trial.repeats for trial in seen.trials[8:])
    assert lucky is not None
    assert lucky not in seen.numbers
    assert seen.promise(lucky).standing.cause is Cause.DIED_UNDER_LOAD
    assert seen.recommended is not None
    assert seen.recommended.number == then != lucky


def test_a_repeat_that_was_lost_is_sent_out_once_more(quick: Desk) -> None:
    lost: list[int] = []

    def answer(order: Order) -> Outcome:
        if order.number == 8 and not lost:
            lost.append(order.number)
            return stories.failed(Cause.LOST_NODE, "gone")
        return exact(order)

    events = quick.search(10, answer)
    assert [event.number for event in events if isinstance(event, Retried)] == [8]
    again = read_trials(quick.folder)[8]
    assert (again.state, again.attempts) == (State.MEASURED, 2)
    assert again.repeats is not None


def test_where_nothing_was_measured_all_trials_explore(quick: Desk) -> None:
    quick.search(12, lambda order: stories.failed(Cause.OUT_OF_MEMORY, "no room"))
    assert repeats(quick.folder) == [None] * 12


def test_the_control_is_measured_again_as_the_control(quick: Desk) -> None:
    dispatch = FakeDispatch(lambda order: answered(9.0 if order.number in (0, 8, 9) else 1.0, 0.01))
    list(quick.events(10, dispatch))
    trials = read_trials(quick.folder)
    assert [(trial.repeats, trial.is_control) for trial in trials[8:]] == [(0, True), (0, True)]
    assert dispatch.submitted[8].arguments == dispatch.submitted[0].arguments
    assert [trial.number for trial in read_view(quick.folder).control] == [0]


def test_several_at_once_do_not_measure_one_config_again_too_often(quick: Desk) -> None:
    dispatch = FakeDispatch(exact, gpus=4, last_first=True)
    list(quick.events(20, dispatch))
    told = [number for number in repeats(quick.folder) if number is not None]
    assert len(told) == 2
    assert len(read_trials(quick.folder)) == 20


@pytest.mark.parametrize("at", [17, 18, 19])
def test_a_search_stopped_between_two_trials_goes_on_as_an_unbroken_one(tmp_path: Path, at: int) -> None:
    told = []
    for name, stop in (("unbroken", None), ("stopped", at)):
        (tmp_path / name).mkdir()
        desk = Desk(tmp_path / name)
        events = desk.events(20, FakeDispatch(exact))
        for event in events:
            if isinstance(event, Finished) and event.done == stop:
                break
        events.close()
        desk.search(20, exact)
        told.append([(trial.number, trial.config, trial.repeats) for trial in read_trials(desk.folder)])
    assert told[0] == told[1]


def test_a_finished_study_that_goes_on_explores_and_then_measures_again(desk: Desk) -> None:
    desk.search(20, exact)
    desk.search(40, exact)
    told = repeats(desk.folder)
    assert len(told) == 40
    assert told[20:38] == [None] * 18
    assert None not in told[38:]


def test_repeats_come_back_from_disk_when_the_database_is_lost(desk: Desk, tmp_path: Path) -> None:
    desk.search(10, exact)
    (tmp_path / "study.db").unlink()
    desk.search(12, exact)
    told = repeats(desk.folder)
    assert [number is not None for number in told] == [False] * 8 + [True] * 2 + [False] * 2
    firsts = [trial.config for trial in read_trials(desk.folder)[1:] if trial.repeats is None]
    assert len({tuple(sorted((config or {}).items())) for config in firsts}) == len(firsts)


def test_a_spent_space_still_has_its_best_measured_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path, space=TINY)
    done = desk.search(40, exact)[-1]
    assert isinstance(done, Done)
    assert done.exhausted is not None
    assert done.why.startswith(done.exhausted)
    told = repeats(desk.folder)
    assert told[:15] == [None] * 15
    assert len(told[15:]) == 4
    assert None not in told[15:]


def _stopping(desk: Desk, total: int, answer: Answer) -> list[Event]:
    plan = replace(desk.plan(total), stop_when_stable=True)
    return list(search(plan, FakeDispatch(answer), desk.open(), desk.journal))


def _one_good() -> Answer:
    """The second trial's config is far better than all others, which are alike."""
    good: list[Mapping[str, Json]] = []

    def answer(order: Order) -> Outcome:
        if order.number == 2:
            good.append(order.arguments)
        return answered(9.0 if order.arguments in good else 1.0, 0.01)

    return answer


def test_a_search_that_may_stop_does_so_when_front_and_recommendation_are_settled(desk: Desk) -> None:
    done = _stopping(desk, 60, _one_good())[-1]
    assert isinstance(done, Done)
    # The good one is trial 2, and then the front stays as it is for so many; two fresh measurements suffice.
    assert repeats(desk.folder) == [None] * (3 + PATIENCE) + [2, 2]
    assert done.why == (
        "none of the last 10 measured configs improved the front beyond its noise; "
        "trial 2 is recommended, measured again twice, and no other may be better"
    )
    assert [type(event) for event in _stopping(desk, 60, _one_good())] == [Done]


def test_what_cannot_be_told_apart_is_measured_again_as_often_as_there_is_a_reserve(quick: Desk) -> None:
    done = _stopping(quick, 40, lambda order: answered(5.0, 0.1))[-1]
    assert isinstance(done, Done)
    told = [number for number in repeats(quick.folder) if number is not None]
    assert len(told) == 4
    assert "may be as good, not measured again as often" in done.why


def test_while_late_trials_improve_the_front_a_search_that_may_stop_goes_on(quick: Desk) -> None:
    _stopping(quick, 20, lambda order: answered(5.0 + order.number, 0.001))
    assert len(read_trials(quick.folder)) == 20


def _searched(folder: Path, seed: int, noise: float) -> tuple[FrontView, Callable[[int], float]]:
    """A search whose measurements are off by so much, and the truth about its trials."""
    folder.mkdir()
    desk = Desk(folder, seed=seed, storage=IN_MEMORY)
    rng = np.random.default_rng(seed)
    dispatch = FakeDispatch(
        lambda order: answered(worth(order.arguments) * float(np.exp(rng.normal(0, noise))), noise)
    )
    list(desk.events(14, dispatch))
    sent = {order.number: worth(order.arguments) for order in dispatch.submitted}
    return read_view(desk.folder), lambda number: sent[number]


def test_the_promised_number_is_nearer_the_truth_than_the_one_it_was_chosen_by(tmp_path: Path) -> None:
    noise = 0.2
    chosen: list[float] = []
    promised: list[float] = []
    for seed in range(16):
        seen, truth = _searched(tmp_path / str(seed), seed, noise)
        assert seen.recommended is not None
        number = seen.recommended.number
        first = seen.promise(number).first
        for told, trial in ((chosen, first), (promised, seen.recommended)):
            value = seen.objective_values(trial)["goodput"].value
            told.append(float(np.log(value / truth(number))))
    # The best of 12 noisy numbers is lucky; the fresh ones are not, within four standard errors of 16 means
    # of two.
    assert statistics.mean(chosen) > 0.5 * noise
    assert abs(statistics.mean(promised)) < 4 * noise / np.sqrt(2 * 16)
    errors = [statistics.mean(map(abs, told)) for told in (promised, chosen)]
    assert errors[0] < errors[1]
