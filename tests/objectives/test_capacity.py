"""The capacity's search against a plain scan, and its interval against a known truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.capacity import (
    CapacitySearch,
    SpeedGrid,
    Verdicts,
    capacity_estimate,
    crossing,
    non_increasing,
)

GRID = SpeedGrid(reference=2.0, resolution=0.05, lowest=0.25, highest=16.0)


def found(grid: SpeedGrid, truth: float, guess: float | None) -> tuple[CapacitySearch, list[int]]:
    """Search for the highest speed that is at most the truth."""
    search, played = CapacitySearch(grid, guess), [0]
    search.tell(0, held=grid.speed(0) <= truth)
    while (k := search.next()) is not None:
        played.append(k)
        search.tell(k, held=grid.speed(k) <= truth)
    return search, played


@given(st.floats(0.1, 100), st.none() | st.floats(0.1, 100), st.sampled_from([0.02, 0.05, 0.3]))
def test_the_search_ends_where_a_scan_of_every_speed_does(
    truth: float, guess: float | None, resolution: float
) -> None:
    grid = SpeedGrid(reference=2.0, resolution=resolution, lowest=0.25, highest=16.0)
    search, played = found(grid, truth, guess)
    held = [k for k in range(grid.first, grid.last + 1) if grid.speed(k) <= truth]
    assert search.held == (max(held) if held else None)
    assert search.failed == (None if grid.last in held else max(held, default=grid.first - 1) + 1)
    assert len(set(played)) == len(played)
    assert all(grid.first <= k <= grid.last for k in played)


@given(st.floats(0.6, 31))
def test_a_right_guess_needs_few_replays(truth: float) -> None:
    _, played = found(GRID, truth, guess=truth)
    assert len(played) <= 6


@given(st.floats(0.6, 31))
def test_no_search_needs_more_replays_than_twice_the_logarithm(truth: float) -> None:
    _, played = found(GRID, truth, guess=None)
    assert len(played) <= 2 + 2 * math.ceil(math.log2(GRID.last - GRID.first + 2))


@given(st.floats(1e-3, 1e3))
def test_the_grid_is_bounded_and_its_nearest_speed_is_within_half_a_step(speed: float) -> None:
    k = GRID.nearest(speed)
    assert 0.5 * (1 - 1e-9) <= GRID.speed(k) <= 32 * (1 + 1e-9)
    if GRID.speed(GRID.first) <= speed <= GRID.speed(GRID.last):
        assert abs(math.log(GRID.speed(k) / speed)) <= math.log(1.05) / 2 + 1e-9


def test_a_grid_needs_bounds_around_its_reference() -> None:
    with pytest.raises(ValueError, match="grid of speeds"):
        SpeedGrid(reference=1.0, resolution=0.05, lowest=2.0, highest=4.0)


def test_verdicts_that_contradict_each_other_still_end_the_search() -> None:
    search = CapacitySearch(GRID)
    search.tell(0, held=True)
    search.tell(-3, held=False)
    played = 0
    while (k := search.next()) is not None:
        search.tell(k, held=k % 2 == 0)
        played += 1
    assert played < 30
    assert search.held is not None
    assert search.failed == search.held + 1


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), min_size=1, max_size=8))
def test_pooling_gives_the_closest_non_increasing_sequence(points: list[tuple[float, int]]) -> None:
    values = np.array([value for value, _ in points])
    weights = np.array([float(weight) for _, weight in points])
    pooled = non_increasing(values, weights)
    # The min-max formula of isotonic regression (Barlow et al., theorem 1.4).
    n = len(points)

    def mean(start: int, end: int) -> float:
        return float(np.average(values[start : end + 1], weights=weights[start : end + 1]))

    expected = [max(min(mean(s, e) for s in range(i + 1)) for e in range(i, n)) for i in range(n)]
    assert pooled == pytest.approx(expected, abs=1e-9)


def test_the_crossing_is_linear_in_log_rate() -> None:
    rates, shares, ones = np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.96, 0.92]), np.ones(3)
    assert crossing(rates, shares, ones, 0.94) == pytest.approx(2 * math.sqrt(2))
    assert crossing(rates, shares, ones, 0.9) == math.inf
    assert crossing(rates, np.array([0.9, 0.8, 0.7]), ones, 0.95) == 0.0


def test_the_interval_covers_a_known_capacity_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    rates = np.array([4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0])
    shares = 1 - 0.05 * (rates / 10) ** 6  # at a rate of 10 exactly 95 % meet the SLO
    covered, draws = 0, 300
    for _ in range(draws):
        verdicts = [
            Verdicts(r, rng.random(300) < s) for r, s in zip(rates, np.clip(shares, 0, 1), strict=True)
        ]
        held = max((v.rate for v in verdicts if v.met.mean() >= 0.95), default=0.0)
        estimate = capacity_estimate(held, verdicts, 0.95)
        low = 0.0 if estimate.low is None else estimate.low
        high = math.inf if estimate.high is None else estimate.high
        assert low <= estimate.value <= high
        covered += low <= 10.0 <= high
    # 95 % within three standard errors of 300 draws, more being no fault: the ends are moved to the value.
    assert covered / draws >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / draws)


def test_a_capacity_beyond_the_rates_played_has_no_end_there() -> None:
    every = [Verdicts(rate, np.ones(100, dtype=bool)) for rate in (1.0, 2.0)]
    none = [Verdicts(rate, np.zeros(100, dtype=bool)) for rate in (1.0, 2.0)]
    assert capacity_estimate(2.0, every, 0.95).high is None
    assert capacity_estimate(0.0, none, 0.95).low == 0.0


def test_a_replay_cut_after_a_handful_of_misses_bounds_the_capacity_all_the_same() -> None:
    whole, cut = Verdicts(2.0, np.ones(64, dtype=bool)), Verdicts(2.2, np.zeros(4, dtype=bool))
    estimate = capacity_estimate(2.0, [whole, cut], 0.95)
    assert estimate.low == 2.0
    assert estimate.high is not None
    assert 2.0 < estimate.high <= 2.2


def test_a_handful_of_requests_gives_no_interval() -> None:
    estimate = capacity_estimate(2.0, [Verdicts(2.0, np.ones(5, dtype=bool))], 0.95)
    assert (estimate.value, estimate.low, estimate.high) == (2.0, None, None)
