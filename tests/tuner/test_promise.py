"""What a config is judged by once it was measured again, and how sure that is."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from cluster.order import Cause, Failed, Outcome
from objectives.measurement import Estimate, Measurement
from tests.tuner import stories
from tuner.front import front_json, view
from tuner.promise import NOTHING, promised, promises
from tuner.records import State, StoredTrial, read_outcome, write_outcome


def trial(number: int, outcome: Outcome | float, repeats: int | None = None) -> StoredTrial:
    """A trial with this outcome; or measured, with this goodput and no interval."""
    if not isinstance(outcome, float):
        return replace(stories.stored(outcome, number), repeats=repeats)
    measured = stories.measured(outcome, 0.04)
    exact = {"goodput_rps": Estimate(value=outcome), "tpot_p95_s": Estimate(value=0.04)}
    return replace(
        stories.stored(measured, number),
        repeats=repeats,
        measurement=Measurement(metrics=exact, requests=2, failed_requests=0, duration_s=1.0),
    )


def goodput(promised: StoredTrial) -> Estimate:
    assert promised.measurement is not None
    return promised.measurement.metrics["goodput_rps"]


def test_the_measurement_that_a_config_was_chosen_by_is_no_part_of_what_is_promised() -> None:
    (promise,) = promises([trial(3, 90.0), trial(7, 40.0, 3), trial(9, 10.0, 3)])
    assert goodput(promise.standing).value == pytest.approx(20.0)  # geometric mean of 40 and 10
    assert promise.standing.number == 3
    assert [one.number for one in promise.fresh] == [7, 9]
    assert goodput(promise.first).value == 90.0


def test_one_fresh_measurement_is_the_promise() -> None:
    (promise,) = promises([trial(3, 90.0), trial(7, 40.0, 3)])
    assert goodput(promise.standing).value == pytest.approx(40.0)


def test_without_repeats_every_trial_stands_for_itself() -> None:
    trials = [trial(0, 1.0), trial(1, 2.0), replace(stories.stored(stories.failed(), 2))]
    assert [promise.standing for promise in promises(trials)] == trials
    assert not any(promise.again for promise in promises(trials))


def test_the_interval_is_students_with_what_repeats_of_all_configs_show_of_runs() -> None:
    groups = [[8.0, 10.0, 12.0], [20.0, 22.0]]
    trials = [
        trial(1, 8.0),
        trial(2, 20.0),
        trial(3, 5.0),
        trial(4, 10.0, 1),
        trial(5, 12.0, 1),
        trial(6, 22.0, 2),
    ]
    squares = [statistics.variance(map(math.log, values)) * (len(values) - 1) for values in groups]
    deviation = math.sqrt(sum(squares) / 3)  # three degrees of freedom: two of the one, one of the other
    quantile = float(student.ppf(0.975, 3))
    expected = {1: (math.sqrt(120.0), 2), 2: (22.0, 1), 3: (5.0, 1)}
    for promise in promises(trials):
        value, runs = expected[promise.first.number]
        reach = math.exp(quantile * deviation / math.sqrt(runs))
        estimate = goodput(promise.standing)
        assert (estimate.low, estimate.value, estimate.high) == pytest.approx(
            (value / reach, value, value * reach)
        )


def test_two_runs_of_one_config_do_not_blur_the_intervals_of_all_others() -> None:
    wide, single = promises([trial(1, 8.0), trial(2, 20.0), trial(3, 10.0, 1)])
    assert goodput(single.standing) == Estimate(value=20.0)
    estimate = goodput(wide.standing)
    # One degree of freedom: 12.7 deviations of the two runs, which lie log(10 / 8) / √2 from their mean.
    reach = math.exp(12.7062047 * math.log(10 / 8) / math.sqrt(2))
    assert (estimate.low, estimate.high) == pytest.approx((10 / reach, 10 * reach))


@pytest.mark.parametrize("order", [(4, 5), (5, 4)])
def test_a_config_that_failed_when_measured_again_is_on_no_front(order: tuple[int, int]) -> None:
    good, bad = order
    trials = [
        trial(1, 9.0),
        trial(2, 1.0),
        trial(good, 9.0, 1),
        trial(bad, stories.failed(Cause.OUT_OF_MEMORY, "no room"), 1),
    ]
    seen = view(stories.study_file(), trials)
    assert seen.numbers == (2,)
    standing = seen.promise(1).standing
    assert (standing.state, standing.cause) == (State.FAILED, Cause.OUT_OF_MEMORY)
    assert standing.reason == f"failed when it was measured again (trial {bad}): no room"
    assert seen.recommended is not None
    assert seen.recommended.number == 2


@pytest.mark.parametrize("cause", [Cause.LOST_NODE, Cause.CLIENT_LATE, Cause.CANCELLED])
def test_a_repeat_that_was_lost_says_nothing_about_its_config(cause: Cause) -> None:
    trials = [trial(1, 9.0), trial(2, Failed(cause=cause, reason="gone"), 1)]
    (promise,) = promises(trials)
    assert promise.standing == trials[0]
    assert promise.fresh == ()


def test_a_config_without_a_score_when_measured_again_has_none() -> None:
    again = replace(trial(2, 9.0, 1), state=State.UNSCORED, reason="tpot_p95 is missing")
    seen = view(stories.study_file(), [trial(1, 9.0), again])
    assert seen.numbers == ()
    assert seen.recommended is None


def test_what_held_is_recommended_before_what_looks_better_and_was_measured_once() -> None:
    seen = view(stories.study_file(), [trial(1, 9.0), trial(2, 8.0), trial(3, 6.0, 1)])
    assert [best.number for best in seen.best_first] == [2]
    assert seen.recommended is not None
    assert seen.recommended.number == 1
    shown = front_json(seen)
    assert isinstance(shown["recommended"], dict)
    assert (shown["recommended"]["number"], shown["recommended"]["measured_again"]) == (1, 1)
    assert shown["recommended"]["repeats"] == [3]
    assert shown["recommended"]["on_front"] is False
    assert isinstance(shown["front"], list)
    (front,) = shown["front"]
    assert isinstance(front, dict)
    assert (front["number"], front["measured_again"], front["repeats"]) == (2, 0, [])


def test_a_trial_from_before_there_were_repeats_is_read_as_a_first_one(tmp_path: Path) -> None:
    outcome = stories.measured()
    folder = write_outcome(tmp_path, replace(stories.stored(outcome), repeats=4), outcome)
    assert read_outcome(folder).repeats == 4
    path = folder / "outcome.json"
    text = path.read_text()
    assert '  "repeats": 4,\n' in text
    path.write_text(text.replace('  "repeats": 4,\n', ""))
    assert read_outcome(folder).repeats is None


_TRIALS = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 5.0, math.inf]), st.none() | st.integers(0, 5)), max_size=9
)


@given(_TRIALS)
def test_every_trial_counts_for_one_config_and_a_promise_needs_a_score(
    drawn: Sequence[tuple[float, int | None]],
) -> None:
    trials: list[StoredTrial] = []
    for number, (value, repeats) in enumerate(drawn):
        known = repeats is not None and repeats < number and trials[repeats].repeats is None
        made = trial(number, value, repeats if known else None)
        trials.append(made if math.isfinite(value) else replace(made, state=State.UNSCORED))
    found = promises(trials)
    numbers = [one.number for promise in found for one in (promise.first, *promise.again)]
    assert sorted(numbers) == [one.number for one in trials]
    for promise in found:
        all_scored = all(one.state is State.MEASURED for one in (promise.first, *promise.again))
        assert (promise.standing.state is State.MEASURED) == all_scored
        if all_scored:
            chosen = promise.fresh or (promise.first,)
            logs = [math.log(goodput(one).value) for one in chosen]
            assert goodput(promise.standing).value == pytest.approx(math.exp(statistics.mean(logs)))


@given(_TRIALS, st.integers(0, 9))
def test_what_was_worked_out_before_changes_no_promise(
    drawn: Sequence[tuple[float, int | None]], gone: int
) -> None:
    """Trials land one after another; in the end one of them is no longer believed."""
    trials: list[StoredTrial] = []
    so_far = NOTHING
    for number, (value, repeats) in enumerate(drawn):
        known = repeats is not None and repeats < number and trials[repeats].repeats is None
        made = trial(number, value, repeats if known else None)
        trials.append(made if math.isfinite(value) else replace(made, state=State.UNSCORED))
        so_far = promised(trials, so_far)
        assert so_far == promised(trials)
    left = [one for one in trials if one.number != gone]
    assert promised(left, so_far) == promised(left)


def test_a_config_that_nothing_has_changed_is_not_judged_again() -> None:
    trials = [trial(0, 1.0), trial(1, 2.0), trial(2, 3.0, 1)]
    before = promised(trials)
    after = promised([*trials, trial(3, 4.0)], before)
    assert all(new is old for new, old in zip(after.promises, before.promises, strict=False))
