"""Which config is measured again next, how many are, and when enough is known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.measurement import Estimate, Measurement
from tests.tuner import stories
from tuner.front import FrontView, view
from tuner.records import StoredTrial
from tuner.remeasure import (
    FRESH,
    PATIENCE,
    doubt,
    next_repeat,
    owed,
    reserve,
    rivals,
    settled,
    stable,
    standing_text,
)

STUDY = replace(stories.study_file(), objectives=("goodput",))
NOBODY: dict[int, int] = {}


def trial(number: int, goodput: float, repeats: int | None = None, *, around: float = 0.1) -> StoredTrial:
    """Goodput within ± `around`; TPOT as good as the goodput is bad."""
    metrics = {
        "goodput_rps": Estimate(value=goodput, low=goodput - around, high=goodput + around),
        "tpot_p95_s": Estimate(value=goodput / 100, low=goodput / 101, high=goodput / 99),
    }
    measured = Measurement(metrics=metrics, requests=2, failed_requests=0, duration_s=1.0)
    return replace(stories.stored(stories.measured(), number), repeats=repeats, measurement=measured)


def seen(*trials: StoredTrial) -> FrontView:
    return view(STUDY, trials)


def test_about_a_tenth_is_kept_two_at_least_and_nothing_of_a_small_search() -> None:
    kept = {total: reserve(total) for total in (1, 5, 6, 8, 9, 10, 19, 20, 29, 30, 40, 80, 300)}
    assert kept == {1: 0, 5: 0, 6: 1, 8: 1, 9: 1, 10: 2, 19: 2, 20: 2, 29: 2, 30: 3, 40: 4, 80: 8, 300: 30}


def test_what_is_recommended_comes_first_until_it_was_measured_twice() -> None:
    first = [trial(0, 1.0), trial(1, 9.0), trial(2, 8.95)]
    assert next_repeat(seen(*first), 40, NOBODY) == 1
    assert next_repeat(seen(*first, trial(3, 9.0, 1)), 40, NOBODY) == 1
    # Twice, counting what is under way; the next is the only one that may be as good.
    assert next_repeat(seen(*first, trial(3, 9.0, 1)), 40, {1: 1}) == 2
    assert next_repeat(seen(*first, trial(3, 9.0, 1), trial(4, 9.0, 1)), 40, NOBODY) == 2


def test_then_one_that_looks_better_since_the_first_choice_was_lucky() -> None:
    lucky = [trial(0, 1.0), trial(1, 9.0), trial(2, 8.0), trial(3, 6.0, 1), trial(4, 6.0, 1)]
    assert next_repeat(seen(*lucky), 40, NOBODY) == 2
    # It has held once, so it is recommended, and lacks its second.
    assert next_repeat(seen(*lucky, trial(5, 7.5, 2)), 40, NOBODY) == 2


def test_a_study_with_many_repeats_gives_one_to_the_control() -> None:
    done = [trial(0, 1.0), trial(1, 9.0), trial(2, 9.0, 1), trial(3, 9.0, 1)]
    assert next_repeat(seen(*done), 49, NOBODY) == 1  # alone on the front
    assert next_repeat(seen(*done), 50, NOBODY) == 0
    assert next_repeat(seen(*done, trial(4, 1.0, 0)), 50, NOBODY) == 1


def test_then_the_one_whose_place_on_the_front_is_least_certain() -> None:
    two = replace(STUDY, objectives=("goodput", "tpot_p95"))
    # 5 and 9 are on the front for certain; 7 and 7.02 might each dominate the other.
    close = replace(trial(3, 7.02), measurement=trial(3, 7.0).measurement)
    trials = [trial(0, 5.0), trial(1, 9.0), trial(2, 7.0), close, trial(4, 9.0, 1), trial(5, 9.0, 1)]
    assert next_repeat(view(two, trials), 40, NOBODY) in (2, 3)
    assert next_repeat(view(two, trials), 40, {2: 1}) == 3


def test_where_nothing_was_measured_there_is_nothing_to_measure_again() -> None:
    failed = [stories.stored(stories.failed(), number) for number in range(3)]
    assert next_repeat(seen(*failed), 40, NOBODY) is None
    assert owed(seen(*failed), 40, NOBODY) == 4
    assert standing_text(seen(*failed)) is None
    assert not stable(seen(*failed))


def test_what_is_owed_shrinks_with_every_repeat_sent_out() -> None:
    first = [trial(0, 1.0), trial(1, 9.0)]
    assert owed(seen(*first), 40, NOBODY) == 4
    assert owed(seen(*first), 40, {1: 1}) == 3
    assert owed(seen(*first, trial(2, 9.0, 1), trial(3, 9.0, 1)), 40, {1: 1}) == 1
    assert owed(seen(*first), 5, NOBODY) == 0


def test_a_new_best_of_a_resumed_study_is_owed_its_two_though_the_reserve_was_spent() -> None:
    before = [trial(0, 1.0), trial(1, 9.0), trial(2, 9.0, 1), trial(3, 9.0, 1)]
    assert owed(seen(*before), 20, NOBODY) == 0
    better = seen(*before, trial(4, 12.0))
    assert owed(better, 20, NOBODY) == FRESH
    assert next_repeat(better, 20, NOBODY) == 4
    assert owed(better, 20, {4: 2}) == 0


def _flat(count: int, at: int | None = None) -> list[StoredTrial]:
    """One good trial and others that only its noise could lift to it; the one at a place far better."""
    return [trial(0, 10.0), *(trial(n, 30.0 if n == at else 9.95) for n in range(1, count))]


def test_exploring_has_settled_when_no_late_trial_is_surely_better() -> None:
    assert settled(seen(*_flat(PATIENCE + 1)))
    assert not settled(seen(*_flat(PATIENCE)))
    assert not settled(seen(*_flat(20, at=19)))
    assert not settled(seen(*_flat(20, at=20 - PATIENCE)))
    assert settled(seen(*_flat(20, at=20 - PATIENCE - 1)))


def test_better_within_the_noise_is_no_improvement() -> None:
    rising = [trial(number, 10.0 + 0.009 * number) for number in range(PATIENCE + 2)]
    assert settled(seen(*rising))  # each overlaps the first, whose value its worst end does not reach
    steep = [trial(number, 10.0 + 0.2 * number) for number in range(PATIENCE + 2)]
    assert not settled(seen(*steep))


def test_failures_do_not_count_as_trials_without_improvement() -> None:
    failed = [stories.stored(stories.failed(), number) for number in range(2, 2 + PATIENCE)]
    assert not settled(seen(trial(0, 1.0), trial(1, 9.0), *failed))


def test_a_recommendation_is_stable_once_it_and_all_that_may_be_better_were_measured_twice() -> None:
    apart = [trial(0, 1.0), trial(1, 9.0)]
    assert not stable(seen(*apart))
    assert not stable(seen(*apart, trial(2, 9.0, 1)))
    sure = seen(*apart, trial(2, 9.0, 1), trial(3, 9.0, 1))
    assert rivals(sure) == ()
    assert stable(sure)
    assert standing_text(sure) == "trial 1 is recommended, measured again twice, and no other may be better"
    rivalled = [*sure.trials, trial(4, 8.9)]
    assert rivals(seen(*rivalled)) == (4,)
    assert not stable(seen(*rivalled))
    assert stable(seen(*rivalled, trial(5, 8.9, 4), trial(6, 8.9, 4)))


def _ending(number: int, goodput: float, low: float | None, high: float | None) -> StoredTrial:
    made = trial(number, goodput)
    assert made.measurement is not None
    metrics = {
        **made.measurement.metrics,
        "goodput_rps": Estimate(value=goodput, low=low, high=high),
    }
    return replace(made, measurement=replace(made.measurement, metrics=metrics))


def test_an_end_that_is_not_known_is_taken_to_be_as_far_away_as_the_other() -> None:
    best = [trial(0, 1.0), trial(1, 9.0)]
    assert rivals(seen(*best, _ending(2, 8.0, 7.5, None))) == ()
    assert rivals(seen(*best, _ending(2, 8.0, 7.0, None))) == (2,)  # as good as 9, and the best may be 8.9
    assert rivals(seen(*best, _ending(2, 8.0, None, 9.0))) == (2,)
    assert rivals(seen(*best, _ending(2, 8.0, None, None))) == (2,)
    assert rivals(seen(_ending(1, 9.0, None, 9.5), trial(2, 8.45))) == (2,)  # the best may be 8.5
    assert rivals(seen(_ending(1, 9.0, None, 9.5), trial(2, 8.35))) == ()


def _row(value: float, reach: float, second: float, second_reach: float) -> tuple[Estimate, Estimate]:
    ends = ((value, reach), (second, second_reach))
    first, other = (Estimate(value=v, low=v - 1.959964 * r, high=v + 1.959964 * r) for v, r in ends)
    return first, other


def test_doubt_is_that_of_a_simulation_where_two_are_compared() -> None:
    rows = [_row(1.0, 0.2, 1.0, 0.1), _row(1.1, 0.1, 1.05, 0.1)]
    rng = np.random.default_rng(0)
    one, other = (
        np.stack([rng.normal(e.value, (e.high - e.value) / 1.959964, 400_000) for e in row])  # type: ignore[operator]
        for row in rows
    )
    shares = [1 - (other < one).all(axis=0).mean(), 1 - (one < other).all(axis=0).mean()]
    assert doubt(rows) == pytest.approx([p * (1 - p) for p in shares], abs=0.003)


@given(
    st.lists(
        st.tuples(*[st.sampled_from([1.0, 2.0, 3.0])] * 2, st.sampled_from([None, 0.0, 0.5, float("inf")])),
        min_size=1,
        max_size=6,
    )
)
def test_doubt_is_a_variance_and_nought_where_nothing_is_uncertain(
    drawn: Sequence[tuple[float, float, float | None]],
) -> None:
    rows = [
        tuple(
            Estimate(value=v, low=None if r is None else v - r, high=None if r is None else v + r)
            for v in (first, second)
        )
        for first, second, r in drawn
    ]
    found = doubt(rows)
    assert ((found >= 0) & (found <= 0.25)).all()
    if all(reach in (None, 0.0) for *_, reach in drawn) and len({d[:2] for d in drawn}) == len(drawn):
        strictly = all(a[0] != b[0] and a[1] != b[1] for a in drawn for b in drawn if a is not b)
        assert not strictly or (found == 0).all()


def _studied(seed: int, total: int, noise: float) -> tuple[float, bool]:
    """A study of made-up configs whose runs differ by so much: the log-error of what is promised of the
    recommended one, and whether its interval holds the truth."""
    rng = np.random.default_rng(seed)
    truths = 8 * np.exp(rng.normal(0, 0.15, total - reserve(total)))

    def run(number: int, config: int, repeats: int | None = None) -> StoredTrial:
        goodput = float(truths[config] * np.exp(rng.normal(0, noise)))
        return trial(number, goodput, repeats, around=0.01 * goodput)

    trials = [run(number, number) for number in range(len(truths))]
    for number in range(len(truths), total):
        again = next_repeat(seen(*trials), total, NOBODY)
        assert again is not None
        trials.append(run(number, again, again))
    chosen = seen(*trials).recommended
    assert chosen is not None
    assert chosen.measurement is not None
    promised = chosen.measurement.metrics["goodput_rps"]
    truth = float(truths[chosen.number])
    assert promised.low is not None
    assert promised.high is not None
    return float(np.log(promised.value / truth)), promised.low <= truth <= promised.high


@pytest.mark.parametrize("total", [8, 20])
def test_the_promised_interval_holds_the_truth_about_as_often_as_it_says(total: int) -> None:
    errors, held = np.array([_studied(seed, total, 0.1) for seed in range(100)]).T
    # 0.95, less what a binomial of 100 may fall short by in one of a thousand cases.
    assert held.mean() >= 0.88
    assert abs(errors.mean()) < 0.035  # the best of so many noisy numbers is 0.08 to 0.11 too high
