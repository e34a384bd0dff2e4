import math

import numpy as np
import pytest
from scipy.stats import binomtest

from objectives.bootstrap import Array, block_length, resampled, resampled_sums, starts
from objectives.measurement import Record
from objectives.statistics import (
    clustered_quantile_estimates,
    compare,
    quantile,
    quantile_estimates,
    ratio_estimate,
    requests_needed,
    share_estimate,
    wilson,
)
from tests.objectives.replays import answered, failed, steady


@pytest.mark.parametrize(("q", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_requests_needed_are_the_known_ones(q: float, needed: int) -> None:
    # All n below the true quantile: qⁿ ≤ 0.05, and one fewer would not do.
    assert requests_needed(q) == needed
    assert q**needed <= 0.05 < q ** (needed - 1)


@pytest.mark.parametrize("q", [0, 1, 95])
def test_a_percentile_is_not_a_quantile(q: float) -> None:
    with pytest.raises(ValueError, match="a quantile lies between 0 and 1"):
        requests_needed(q)


def test_one_failure_in_fifty_owns_the_tail() -> None:
    values = np.array([*np.linspace(1, 2, 49), math.inf])
    assert quantile(values, 0.99) == math.inf
    assert quantile(values, 0.95) == np.sort(values)[47]


def test_the_upper_end_of_a_short_tail_is_missing() -> None:
    values = np.random.default_rng(0).random(48)
    p50, p95 = quantile_estimates(values, (0.5, 0.95))
    assert p50.high is not None
    assert p95.low is not None
    assert p95.high is None
    assert quantile_estimates(np.append(values, values[:11]), (0.95,))[0].high is not None


def test_an_interval_that_reaches_into_failures_has_no_upper_end() -> None:
    values = np.random.default_rng(0).random(100)
    values[::25] = math.inf  # 4 %: p95 is finite, and barely
    (p95,) = quantile_estimates(values, (0.95,))
    assert math.isfinite(p95.value)
    assert p95.high is None


def test_order_statistics_hold_an_interval_wide_where_the_bootstrap_is_too_narrow() -> None:
    # For n = 100 and p95 the 95 % ranks are 90 and 99 (Bin(100, 0.95): P(< 90) ≤ 2.5 %, P(≥ 99) > 2.5 %).
    values = np.linspace(1, 100, 100)
    (p95,) = quantile_estimates(np.random.default_rng(0).permutation(values), (0.95,))
    assert p95.low is not None
    assert p95.high is not None
    assert p95.low <= 90
    assert p95.high >= 99


def test_intervals_of_independent_values_cover_the_truth() -> None:
    rng = np.random.default_rng(5)
    truth = -math.log(0.05)  # p95 of the unit exponential
    covered = 0
    for seed in range(100):
        (p95,) = quantile_estimates(rng.exponential(size=120), (0.95,), seed=seed)
        covered += p95.low is not None and p95.high is not None and p95.low <= truth <= p95.high
    # 95 % wanted; below 90 of 100 has a chance of 1 % if it is so.
    assert covered >= 90


def autocorrelated(rng: np.random.Generator, n: int, rho: float) -> Array:
    """A first-order autoregression with unit variance."""
    shocks = rng.normal(size=n + 50) * math.sqrt(1 - rho**2)
    series = np.zeros(n + 50)
    for i in range(1, n + 50):
        series[i] = rho * series[i - 1] + shocks[i]
    return series[50:]


def test_intervals_of_waiting_times_that_hang_together_still_cover() -> None:
    rng = np.random.default_rng(6)
    blocks = single = 0
    for seed in range(100):
        series = autocorrelated(rng, 400, 0.8)
        estimate = ratio_estimate(series, np.ones(400), seed=seed)
        assert estimate.low is not None
        assert estimate.high is not None
        blocks += estimate.low <= 0 <= estimate.high
        single += abs(series.mean()) <= 1.96 * series.std() / math.sqrt(400)
    # Taken as independent the standard error is 3 times too small and half of the intervals miss.
    assert single < 60
    assert blocks >= 82


def test_blocks_grow_with_memory_as_theory_says() -> None:
    # For an AR(1), R(k) = ρ^k, so Σ|k|R(k) = 2ρ/(1-ρ)² and ΣR(k) = (1+ρ)/(1-ρ), and the best circular
    # block, (1.5 (Σ|k|R / ΣR)² n)^(1/3), is (6ρ²/(1-ρ²)² n)^(1/3).
    rng = np.random.default_rng(7)
    found = np.mean([block_length(autocorrelated(rng, 2000, 0.7)) for _ in range(20)])
    theory = np.cbrt(6 * 0.7**2 / (1 - 0.7**2) ** 2 * 2000)
    assert found == pytest.approx(theory, rel=0.3)


@pytest.mark.parametrize("n", [1, 2, 5, 27, 500])
def test_blocks_of_independent_values_stay_near_the_cube_root(n: int) -> None:
    length = block_length(np.random.default_rng(n).random(n))
    assert 1 <= length <= max(1, n // 3)
    assert length >= min(max(1, n // 3), math.ceil(round(np.cbrt(n), 9)))


def test_a_resample_is_as_long_as_the_sample_and_made_of_whole_blocks() -> None:
    (indices,) = resampled(10, 4, seed=3, resamples=50)
    assert indices.shape == (50, 10)
    steps = np.diff(indices, axis=1) % 10
    inside = [i for i in range(9) if i not in (3, 7)]
    assert (steps[:, inside] == 1).all()


def test_every_request_is_drawn_equally_often_the_first_and_last_too() -> None:
    # In a ring every start is as likely as another: 20,000 · 6 draws of 6 requests, 20,000 each.
    (indices,) = resampled(6, 2, seed=0, resamples=20_000)
    assert np.bincount(indices.ravel()) == pytest.approx(np.full(6, 20_000), rel=0.03)


@pytest.mark.parametrize(("n", "length"), [(10, 1), (10, 3), (11, 4), (30, 10)])
def test_block_sums_are_the_sums_of_what_is_drawn(n: int, length: int) -> None:
    values = np.random.default_rng(0).normal(size=n)
    (indices,) = resampled(n, length, seed=9)
    assert resampled_sums(values, length, seed=9) == pytest.approx(values[indices].sum(axis=1))
    assert starts(n, length, seed=9).max() < n


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (10, 10), (3, 17), (480, 500)])
def test_wilson_agrees_with_scipy(successes: int, n: int) -> None:
    known = binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson(successes / n, n) == pytest.approx((known.low, known.high))


def test_a_share_of_nothing_but_successes_still_has_a_width() -> None:
    estimate = share_estimate(np.ones(48, dtype=np.bool_))
    assert estimate.value == 1
    assert estimate.high == 1
    assert estimate.low == pytest.approx(48 / (48 + 1.96**2), abs=1e-4)  # Wilson at 1 is n / (n + z²)


def test_misses_in_one_burst_make_a_share_less_sure_than_misses_spread_out() -> None:
    spread = np.ones(400, dtype=np.bool_)
    spread[::8] = False
    burst = np.ones(400, dtype=np.bool_)
    burst[100:150] = False
    a, b = share_estimate(spread), share_estimate(burst)
    assert a.value == b.value == 0.875
    assert a.low is not None
    assert b.low is not None
    assert b.low < a.low - 0.02


def test_a_mean_of_few_requests_has_no_interval() -> None:
    estimate = ratio_estimate(np.linspace(0, 8, 9), np.ones(9))
    assert (estimate.value, estimate.low, estimate.high) == (4, None, None)
    with pytest.raises(ValueError, match="a ratio over nothing"):
        ratio_estimate(np.zeros(3), np.zeros(3))


def test_the_interval_of_a_mean_is_as_wide_as_the_textbook_says() -> None:
    values: Array = 2 * np.random.default_rng(3).standard_normal(2000)
    estimate = ratio_estimate(values, np.ones(2000))
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * 2 / math.sqrt(2000), rel=0.2)


def test_clustered_quantiles_equal_those_of_the_values_written_out() -> None:
    rng = np.random.default_rng(2)
    values, weights = rng.random(300), rng.integers(1, 5, size=300)
    found = clustered_quantile_estimates(values, weights.astype(float), np.arange(300) // 3, (0.5, 0.9, 0.95))
    written_out = np.repeat(values, weights)
    assert [e.value for e in found] == [
        np.quantile(written_out, q, method="higher") for q in (0.5, 0.9, 0.95)
    ]


def test_gaps_of_one_request_do_not_count_as_independent() -> None:
    # Each of 40 requests has its own speed and 50 gaps of it: it is 40 values, not 2,000.
    speeds = np.random.default_rng(4).random(40)
    owners = np.repeat(np.arange(40), 50)
    (together,) = clustered_quantile_estimates(speeds[owners], np.ones(2000), owners, (0.5,))
    (one_each,) = quantile_estimates(speeds, (0.5,))
    (naive,) = quantile_estimates(np.random.default_rng(0).permutation(speeds[owners]), (0.5,))
    for estimate in (together, one_each, naive):
        assert estimate.low is not None
        assert estimate.high is not None
    width = [e.high - e.low for e in (together, one_each, naive)]  # type: ignore[operator]
    assert width[0] == pytest.approx(width[1], rel=0.5)
    assert width[0] > 3 * width[2]


def slower(records: list[Record], factor: float) -> list[Record]:
    return [
        answered(r.request, due_s=r.due_s, ttft_s=r.ttft_s * factor, gap_s=r.tpot_s * factor, tokens=20)
        for r in records
    ]


def test_a_paired_comparison_sees_three_percent_in_a_hundred_requests() -> None:
    base = steady(100)
    noise = np.random.default_rng(8).lognormal(0, 0.05, 100)
    other = [slower([r], 1.03 * float(k))[0] for r, k in zip(base, noise, strict=True)]
    seen = compare(other, base, "ttft_s")
    assert seen.different
    assert seen.ratio == pytest.approx(1.03, abs=0.02)
    assert seen.low is not None
    assert seen.high is not None
    assert seen.low < 1.03 < seen.high
    assert not compare(other, slower(base, 1.03), "ttft_s").different


def test_pairs_are_found_by_request_whatever_the_order() -> None:
    base = steady(60)
    seen = compare(slower(base, 2)[::-1], base, "e2e_s")
    assert seen.ratio == pytest.approx(2)
    assert seen.n == 60


def test_failures_are_counted_beside_the_ratio() -> None:
    base = steady(60)
    a = [failed(0, due_s=0), failed(1, due_s=0.1), *base[2:]]
    b = [failed(0, due_s=0), *base[1:59], failed(59, due_s=5.9)]
    seen = compare(a, b, "tpot_s")
    assert (seen.n, seen.failed_a, seen.failed_b) == (57, 1, 1)
    assert seen.ratio == pytest.approx(1)
    assert not seen.different


def test_few_pairs_are_never_called_different() -> None:
    base = steady(9)
    assert not compare(slower(base, 5), base, "ttft_s").different


def test_two_replays_without_a_request_in_common_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no request has ttft_s in both replays"):
        compare([answered(0, due_s=0)], [answered(1, due_s=0)], "ttft_s")
