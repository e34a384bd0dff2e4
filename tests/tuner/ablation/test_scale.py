import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.ablation.report import EffectReport
from tuner.ablation.scale import Scale, scale

_RATIOS = st.floats(min_value=1e-4, max_value=1e4)


def _effect(ratio: float, low: float | None = None, high: float | None = None) -> EffectReport:
    return EffectReport(ratio=ratio, low=low, high=high, told=False)


def test_equal_factors_are_equal_distances() -> None:
    axis = Scale(0.5, 8.0)  # 2^-1 to 2^3: a doubling is a quarter of it
    assert [axis.at(ratio) for ratio in (0.5, 1, 2, 4, 8)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_what_lies_beyond_is_put_at_the_end() -> None:
    axis = Scale(0.5, 2.0)
    assert [axis.at(ratio) for ratio in (0.0, 0.1, 3.0, math.inf)] == [0, 0, 1, 1]


@given(st.lists(_RATIOS, max_size=6))
def test_every_ratio_and_1_lie_inside(ratios: list[float]) -> None:
    axis = scale([None, *map(_effect, ratios)])
    assert all(0 < axis.at(ratio) < 1 for ratio in [1.0, *ratios])


@given(st.lists(_RATIOS, max_size=6))
def test_ticks_are_few_on_the_axis_in_order_and_name_1(ratios: list[float]) -> None:
    axis = scale(map(_effect, ratios))
    ticks = axis.ticks
    assert 2 <= len(ticks) <= 9
    assert list(ticks) == sorted(ticks)
    assert all(axis.holds(tick) for tick in ticks)
    assert any(math.isclose(tick, 1.0) for tick in ticks)


@given(st.lists(_RATIOS, max_size=6))
def test_ticks_leave_each_other_room_to_be_read(ratios: list[float]) -> None:
    axis = scale(map(_effect, ratios))
    places = [axis.at(tick) for tick in axis.ticks]
    assert all(after - before > 0.05 for before, after in itertools.pairwise(places))


def test_an_interval_that_spans_decades_leaves_the_ratios_room() -> None:
    # Of 1.5 and 2 the span is a doubling; the interval gets no more than that again on each side
    axis = scale([_effect(1.5, 0.001, 1000.0), _effect(2.0, 1.9, 2.1)])
    assert axis.at(2.0) - axis.at(1.0) > 0.25
    assert not axis.holds(1000.0)


def test_noise_of_a_percent_does_not_fill_the_picture() -> None:
    axis = scale([_effect(1.001, 0.999, 1.003)])
    assert axis.high / axis.low >= 1.1
