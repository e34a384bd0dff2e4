import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.front import non_dominated
from objectives.measurement import Estimate
from tuner.drift.outlook import chances, dominated


def sure(*values: float) -> list[Estimate]:
    return [Estimate(value=value, low=value, high=value) for value in values]


@given(rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_of_one_draw_those_are_dominated_that_are_off_its_front(rows: list[tuple[int, int]]) -> None:
    values = np.array(rows, dtype=np.float64)
    assert (dominated(values[None]) == 1 - non_dominated(values)).all()


def test_without_errors_and_on_the_same_traffic_the_front_stays_as_it_is() -> None:
    losses = [sure(-10, 1), sure(-5, 0.5), sure(-4, 2)]
    found = chances(losses, np.ones((3, 2)))
    assert found.before.tolist() == [0, 0, 1]
    assert found.now.tolist() == found.before.tolist()


def test_a_config_that_the_new_traffic_hurts_most_moves_off_the_front() -> None:
    losses = [sure(-10, 1), sure(-8, 1)]
    found = chances(losses, np.array([[0.2, 1.0], [1.0, 1.0]]))  # the first one's capacity falls to a fifth
    assert found.before.tolist() == [0, 1]
    assert found.now[0] > 0.9


def test_what_all_configs_suffer_alike_moves_none() -> None:
    losses = [sure(-10, 1), sure(-8, 1)]
    assert chances(losses, np.full((2, 2), 0.3)).now.tolist() == [0, 1]


def test_a_measurement_that_may_be_wrong_leaves_the_front_in_doubt() -> None:
    # One objective, a standard error of 1 each, the same value: either is as likely better.
    losses = [[Estimate(value=-10, low=-11.96, high=-8.04)] for _ in range(2)]
    assert chances(losses, np.ones((2, 1))).before == pytest.approx([0.5, 0.5], abs=0.03)


def test_an_end_that_is_not_known_is_taken_to_be_as_far_as_the_other() -> None:
    both = [[Estimate(value=-10, low=-12, high=-8)], [Estimate(value=-9, low=-11, high=-7)]]
    one = [[Estimate(value=-10, low=-12)], [Estimate(value=-9, low=-11)]]
    ones = np.ones((2, 1))
    assert chances(one, ones).before == pytest.approx(chances(both, ones).before)
