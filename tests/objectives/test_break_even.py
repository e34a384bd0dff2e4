"""Break-even of speculation against closed forms, and what intervals must bear before one is told."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.break_even import Priced, break_even, constant_acceptance


def priced(*points: tuple[float, float], spread: float = 1.0) -> list[Priced]:
    return [
        Priced(acceptance=acceptance, ratio=ratio, low=ratio / spread, high=ratio * spread)
        for acceptance, ratio in points
    ]


def falling(crossing: float, slope: float) -> Callable[[float], float]:
    return lambda acceptance: math.exp(slope * (crossing - acceptance))


grids = st.lists(st.integers(0, 100), min_size=2, max_size=8, unique=True).map(
    lambda places: [place / 100 for place in places]
)


@given(grids, st.integers(1, 199), st.floats(0.1, 5), st.floats(0, 0.03))
def test_a_logarithm_that_is_a_line_is_met_exactly_with_ends_shifted_by_the_interval(
    grid: list[float], halves: int, slope: float, half: float
) -> None:
    crossing = halves / 200 + 0.001  # never on the grid
    ratio = falling(crossing, slope)
    found = break_even(priced(*((a, ratio(a)) for a in grid), spread=math.exp(half)))
    low, high = crossing - half / slope, crossing + half / slope
    if any(a < low for a in grid) and any(a > high for a in grid):
        assert found.pays == "from"
        assert found.acceptance == pytest.approx(crossing)
        assert found.low == pytest.approx(low)
        assert found.high == pytest.approx(high)
    elif min(grid) > high:
        assert found.pays == "at all"
    elif max(grid) < low:
        assert found.pays == "at none"
    else:
        assert found.pays == "cannot tell"
        assert found.acceptance is None


def test_the_step_model_breaks_even_where_tokens_make_up_for_the_draft() -> None:
    """TPOT ratio of depth 2 whose step takes 1.5 times as long: a + a² = 0.5 at a = (√3 - 1) / 2."""
    grid = [place / 50 for place in range(51)]
    found = break_even(priced(*((a, 1.5 / (1 + a + a * a)) for a in grid)))
    assert found.acceptance == pytest.approx((math.sqrt(3) - 1) / 2, abs=1e-3)


def test_ratios_that_cross_twice_are_not_told() -> None:
    assert break_even(priced((0.1, 1.2), (0.3, 0.8), (0.5, 1.2), (0.7, 0.8))).pays == "cannot tell"


def test_it_costs_where_it_should_pay_is_not_told() -> None:
    assert break_even(priced((0.2, 0.8), (0.8, 1.2))).pays == "cannot tell"


def test_without_intervals_nothing_is_told() -> None:
    points = [Priced(acceptance=a, ratio=r, low=None, high=None) for a, r in ((0.2, 1.5), (0.8, 0.5))]
    assert break_even(points).pays == "cannot tell"
    assert break_even([]).pays == "cannot tell"


@given(st.floats(0, 1), st.integers(1, 8))
def test_a_constant_acceptance_is_its_own(acceptance: float, depth: int) -> None:
    positions = [acceptance**power for power in range(1, depth + 1)]
    assert constant_acceptance(positions) == pytest.approx(acceptance, abs=1e-6)


def test_as_many_tokens_as_a_draft_that_fades() -> None:
    """0.7 + 0.05 tokens of two: a + a² = 0.75 at a = 0.5."""
    assert constant_acceptance([0.7, 0.05]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="one position"):
        constant_acceptance([])
