"""The interval of a difference from two intervals, against cases by hand, a closed form and a simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.contrast import difference_of, ratio_of, told
from objectives.measurement import Estimate

_NUMBERS = st.floats(0.01, 100)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    value = draw(_NUMBERS)
    return Estimate(value=value, low=value * draw(st.floats(0.5, 1)), high=value * draw(st.floats(1, 2)))


def test_of_normal_numbers_it_is_the_interval_that_the_textbook_has() -> None:
    # Standard errors 1 and 2: that of the difference is the root of 5.
    z = 1.959963984540054
    a = Estimate(value=10, low=10 - z, high=10 + z)
    b = Estimate(value=4, low=4 - 2 * z, high=4 + 2 * z)
    found = difference_of(a, b)
    assert found.value == 6
    assert found.low == pytest.approx(6 - z * math.sqrt(5))
    assert found.high == pytest.approx(6 + z * math.sqrt(5))


def test_intervals_that_overlap_may_tell_two_numbers_apart() -> None:
    a, b = Estimate(value=10, low=9, high=11), Estimate(value=11.6, low=10.6, high=12.6)
    assert a.high is not None
    assert b.low is not None
    assert a.high > b.low
    assert told(difference_of(a, b), 0) is True


def test_each_end_is_made_of_the_ends_that_push_that_way() -> None:
    # By hand: a = 5 (4, 8), b = 2 (1, 6): low 3 - √(1² + 4²), high 3 + √(3² + 1²).
    found = difference_of(Estimate(value=5, low=4, high=8), Estimate(value=2, low=1, high=6))
    assert found.low == pytest.approx(3 - math.sqrt(17))
    assert found.high == pytest.approx(3 + math.sqrt(10))


@pytest.mark.parametrize("missing", ["low", "high"])
def test_an_end_that_is_not_known_leaves_one_end_unknown(missing: str) -> None:
    ends = {"low": 9.0, "high": 11.0, missing: None}
    found = difference_of(
        Estimate(value=10, low=ends["low"], high=ends["high"]), Estimate(value=1, low=1, high=1)
    )
    assert (found.low is None, found.high is None) == (missing == "low", missing == "high")


def test_what_one_end_tells_needs_no_other() -> None:
    assert told(Estimate(value=2, low=1.5), 1) is True
    assert told(Estimate(value=0.5, high=0.9), 1) is True
    assert told(Estimate(value=2, high=3), 1) is None
    assert told(Estimate(value=2), 1) is None
    assert told(Estimate(value=1.1, low=0.9, high=1.3), 1) is False


def test_a_ratio_of_nothing_is_refused_and_an_end_of_nothing_is_not_known() -> None:
    with pytest.raises(ValueError, match="above 0"):
        ratio_of(Estimate(value=0, low=0, high=1), Estimate(value=1, low=1, high=1))
    assert ratio_of(Estimate(value=1, low=0, high=2), Estimate(value=1, low=1, high=1)).low is None


@given(estimates(), estimates())
def test_turned_round_a_ratio_is_its_inverse(a: Estimate, b: Estimate) -> None:
    there, back = ratio_of(a, b), ratio_of(b, a)
    assert there.low is not None
    assert back.high is not None
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)


@given(estimates(), estimates(), _NUMBERS)
def test_units_do_not_change_a_ratio(a: Estimate, b: Estimate, factor: float) -> None:
    plain, scaled = ratio_of(a, b), ratio_of(a.times(factor), b.times(factor))
    assert plain.low == pytest.approx(scaled.low)
    assert plain.high == pytest.approx(scaled.high)


def test_equal_numbers_are_told_apart_one_time_in_twenty() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4000, 2)) * [1.0, 3.0] + 50
    reach = 1.959963984540054 * np.array([1.0, 3.0])
    wrong = sum(
        told(
            difference_of(
                *(
                    Estimate(value=value, low=value - half, high=value + half)
                    for value, half in zip(row.tolist(), reach.tolist(), strict=True)
                )
            ),
            0,
        )
        is True
        for row in draws
    )
    # 200 expected of 4000, standard deviation √(4000 · 0.05 · 0.95) = 13.8; five of those either way.
    assert 131 <= wrong <= 269
