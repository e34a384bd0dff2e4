import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.report.axis import Axis, axis

NUMBERS = st.floats(min_value=1e-6, max_value=1e9)


@given(values=st.lists(NUMBERS, min_size=1, max_size=20), zero=st.booleans(), log=st.booleans())
def test_every_value_has_a_place_in_its_order(values: list[float], zero: bool, log: bool) -> None:
    made = axis(values, zero=zero and not log, log=log)
    assert made.low <= min(values)
    assert max(values) <= made.high
    places = [made.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)


@given(values=st.lists(NUMBERS, min_size=1, max_size=20), log=st.booleans())
def test_ticks_lie_within_the_axis_ascending_and_few(values: list[float], log: bool) -> None:
    made = axis(values, log=log)
    assert list(made.ticks) == sorted(set(made.ticks))
    tolerance = 1e-6 * (made.high - made.low)
    assert all(made.low - tolerance <= tick <= made.high + tolerance for tick in made.ticks)
    assert 1 <= len(made.ticks) <= 8


def test_ticks_are_round() -> None:
    assert axis([0.0, 10.0], room=0.0).ticks == (0, 2, 4, 6, 8, 10)
    assert axis([0.1, 0.6], room=0.0).ticks == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    assert axis([1.0, 1000.0], log=True, room=0.0).ticks == (1, 3, 10, 30, 100, 300, 1000)


def test_places_on_an_axis_from_zero_are_shares_of_it() -> None:
    made = axis([8.0], zero=True, room=0.25)  # a quarter of 8 is left free at the end
    assert (made.low, made.high) == (0.0, 10.0)
    assert made.at(5.0) == 0.5


def test_equal_ratios_are_equally_wide_on_a_logarithmic_axis() -> None:
    made = Axis(low=1.0, high=10_000.0, ticks=(), log=True)
    assert [made.at(value) for value in (1, 10, 100, 1000, 10_000)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_what_is_no_number_is_left_out_and_nothing_at_all_still_makes_an_axis() -> None:
    assert axis([math.inf, math.nan, 3.0, 5.0]).high < 6
    assert axis([]).ticks
    assert axis([7.0]).at(7.0) == pytest.approx(0.5)
