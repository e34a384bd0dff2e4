import numpy as np
import pytest

from objectives.front import hypervolume, indistinguishable, non_dominated, possibly_on_front
from objectives.measurement import Estimate

Ends = list[tuple[float, float]]


def spans(*rows: Ends | None) -> list[list[Estimate] | None]:
    return [
        None if row is None else [Estimate(value=(a + b) / 2, low=a, high=b) for a, b in row] for row in rows
    ]


def test_only_what_nothing_beats_is_on_the_front() -> None:
    losses = [(1, 5), (2, 3), (3, 3), (4, 1), (4, 2)]
    assert non_dominated(losses).tolist() == [True, True, False, True, False]


def test_duplicates_are_all_kept() -> None:
    assert non_dominated([(1, 2), (1, 2), (0, 3)]).tolist() == [True, True, True]


def test_no_trials_make_an_empty_front() -> None:
    assert non_dominated([]).tolist() == []
    assert hypervolume([], (1.0, 1.0)) == 0


def test_a_study_of_failures_has_an_empty_front() -> None:
    assert non_dominated([None, None]).tolist() == [False, False]
    assert hypervolume([None], (1.0, 1.0)) == 0
    assert possibly_on_front([None, None]).tolist() == [False, False]


def test_hypervolume_of_a_staircase_by_hand() -> None:
    # Below (4, 4): (1, 3) covers 3·1, (2, 2) adds 2·1, (3, 1) adds 1·1; (5, 0) is outside.
    assert hypervolume([(1, 3), (2, 2), (3, 1), (5, 0), None], (4, 4)) == pytest.approx(6)


def test_hypervolume_in_one_dimension_is_the_best_trials_margin() -> None:
    assert hypervolume([(3.0,), (1.0,)], (4.0,)) == 3


def test_a_reference_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 losses a trial, but the reference point has 3"):
        hypervolume([(1, 2)], (3, 3, 3))
    with pytest.raises(ValueError, match="a reference point is finite"):
        hypervolume([(1, 2)], (3, float("inf")))


def test_trials_with_different_numbers_of_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers of losses"):
        non_dominated([(1, 2), (1, 2, 3)])


def test_trials_are_told_apart_by_one_objective_whose_intervals_do_not_overlap() -> None:
    rows = spans([(1, 3), (5, 9)], [(2, 4), (6, 7)], [(2, 4), (10, 11)], None)
    assert indistinguishable(rows) == [(0, 1)]


def test_without_intervals_trials_cannot_be_told_apart() -> None:
    assert indistinguishable([[Estimate(value=1)], [Estimate(value=100)]]) == [(0, 1)]


def test_a_trial_may_be_on_the_front_until_something_certainly_dominates_it() -> None:
    rows = spans([(1, 3), (5, 7)], [(2, 4), (6, 8)], [(8, 9), (8, 9)], None)
    assert possibly_on_front(rows).tolist() == [True, True, False, False]


def test_a_missing_upper_end_rules_nothing_out() -> None:
    open_ended = [Estimate(value=1, low=0, high=None)]
    assert possibly_on_front([open_ended, [Estimate(value=9, low=8, high=10)]]).tolist() == [True, True]


def test_a_front_of_two_thousand_trials_takes_no_time_to_find() -> None:
    losses = np.random.default_rng(0).random((2000, 3))
    mask = non_dominated(losses)
    assert 0 < mask.sum() < 400
