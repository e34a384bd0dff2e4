"""How sure a number is: intervals for percentiles, shares and ratios, and comparisons of two replays.

All intervals are 95 %, two-sided, and speak of one replay: they hold how the numbers would vary over other
stretches of traffic like this one, not how the engine varies from one start to the next. Two trials that
were played the same requests are compared with `compare`, which pairs them; that sees far smaller
differences than two intervals side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri

from objectives.bootstrap import Array, block_length, resampled, resampled_sums
from objectives.measurement import Estimate, Record

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2

FEWEST = 10
"""Below this many requests no bootstrap interval is given: there is too little to resample."""

_GROUPS = 1024
"""Values kept of a clustered sample when it is resampled: ends are exact to a thousandth in rank."""


def requests_needed(q: float) -> int:
    """Fewest independent requests from which the q-quantile can be bounded from above with 95 % confidence.

    All n requests lie below the true q-quantile with probability qⁿ; unless that is at most 5 %, not even
    the slowest request seen is an upper bound. So n ≥ ln 0.05 / ln q: 5 for the median, 29, 59 and 299 for
    p90, p95 and p99.
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile lies between 0 and 1, got {q}")
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(q))


def quantile(values: Array, q: float) -> float:
    """The q-quantile, always one of the values.

    The next higher order statistic (NumPy's "higher") keeps infinities: interpolating between a number
    and infinity would give NaN.
    """
    return float(np.sort(values)[_position(len(values), q)])


def quantile_estimates(values: Array, qs: Sequence[float], *, seed: int = 0) -> tuple[Estimate, ...]:
    """Quantiles of one value a request, in order of due times; values may be infinite, never NaN.

    Each end is the wider of the block bootstrap's (which knows that neighbours are alike) and the exact
    one from order statistics (which knows how little a short tail says). `high` is None where
    `requests_needed` says that no upper bound exists, and where the bound is infinite. The value itself
    is infinite where the quantile falls on a failed request.

    Source of the order-statistic interval: H. David, H. Nagaraja, "Order Statistics", 3rd ed., section 7.1.
    """
    n = len(values)
    ordered = np.sort(values)
    positions = [_position(n, q) for q in qs]
    bootstrapped = _resampled_positions(values, positions, seed) if n >= FEWEST else None
    estimates = []
    for i, (q, position) in enumerate(zip(qs, positions, strict=True)):
        below, above = _order_ranks(n, q)
        low = -math.inf if below is None else float(ordered[below])
        high = math.inf if above is None else float(ordered[above])
        if bootstrapped is not None:
            first, last = _ends(bootstrapped[:, i])
            low, high = min(low, first), max(high, last)
        estimates.append(_estimate(float(ordered[position]), low, high))
    return tuple(estimates)


def clustered_quantile_estimates(
    values: Array, weights: Array, owners: NDArray[np.int64], qs: Sequence[float], *, seed: int = 0
) -> tuple[Estimate, ...]:
    """Quantiles of values of which every request owns many, as the gaps between its tokens.

    Whole requests are resampled, because the gaps of one request are alike. The number of requests, not
    of values, decides whether there is an upper end.

    Args:
        values: (g,) values, possibly infinite.
        weights: (g,) how many times each value counts; whole numbers.
        owners: (g,) which request each value belongs to: 0 … requests - 1, in order of due times. Requests
            without values may be left out of it.
        qs: the quantiles.
    """
    owned, owner = np.unique(owners, return_inverse=True)
    n = len(owned)
    order = np.argsort(values, kind="stable")
    ordered, weight, owner = values[order], weights[order], owner[order]
    running = np.cumsum(weight)
    points = [float(ordered[np.searchsorted(running, _position(running[-1], q), side="right")]) for q in qs]
    if n < FEWEST:
        return tuple(Estimate(value=point) for point in points)

    # Neighbouring values share a group; a group is represented by its largest.
    group = np.minimum((running - weight) * _GROUPS // running[-1], _GROUPS - 1).astype(np.int64)
    heads = np.flatnonzero(np.diff(group, prepend=-1))
    largest = ordered[np.append(heads[1:], len(ordered)) - 1]
    group = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(ordered))))
    counts = np.zeros((n, len(heads)), dtype=np.float32)
    np.add.at(counts, (owner, group), weight)

    means = np.bincount(owner, ordered * weight, n) / np.bincount(owner, weight, n)
    length = block_length(means)
    drawn = []
    for indices in resampled(n, length, seed):
        rows = np.arange(len(indices))[:, None] * n
        times = np.bincount((rows + indices).ravel(), minlength=len(indices) * n).reshape(-1, n)
        cumulative = np.cumsum(times.astype(np.float32) @ counts, axis=1, dtype=np.float64)
        total = cumulative[:, -1]
        drawn.append(
            np.stack(
                [largest[(cumulative > _positions(total, q)[:, None]).argmax(axis=1)] for q in qs], axis=1
            )
        )
    resamples = np.concatenate(drawn)
    estimates = []
    for i, (q, point) in enumerate(zip(qs, points, strict=True)):
        low, high = _ends(resamples[:, i])
        bounded = n >= requests_needed(q)
        estimates.append(_estimate(point, min(low, point), max(high, point) if bounded else math.inf))
    return tuple(estimates)


def ratio_estimate(above: Array, below: Array, *, seed: int = 0) -> Estimate:
    """Sum of `above` over sum of `below`, one pair a request, in order of due times; the values are finite.

    With ones below it is the mean. Raises ValueError where the sum below is 0.
    """
    total = float(below.sum())
    if total == 0:
        raise ValueError("a ratio over nothing: the values below sum to 0")
    value = float(above.sum()) / total
    n = len(above)
    if n < FEWEST:
        return Estimate(value=value)
    length = block_length(above - value * below)
    denominators = resampled_sums(below, length, seed)
    known = denominators > 0
    low, high = _ends(resampled_sums(above, length, seed)[known] / denominators[known])
    return _estimate(value, min(low, value), max(high, value))


def wilson(share: float, n: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval of a share seen in n independent trials; sane at 0 and 1, where others are not.

    Source: E. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927.
    """
    if not n > 0 or not 0 <= share <= 1:
        raise ValueError(f"a share between 0 and 1 of a positive number, got {share} of {n}")
    z = float(ndtri((1 + confidence) / 2))
    spread = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    centre, scale = share + z**2 / (2 * n), 1 + z**2 / n
    # Rounding must not push the ends past what was seen.
    return min(max((centre - spread) / scale, 0.0), share), max(min((centre + spread) / scale, 1.0), share)


def share_estimate(met: NDArray[np.bool_], weights: Array | None = None, *, seed: int = 0) -> Estimate:
    """Share of requests (or of their weights, say tokens) for which something holds, in order of due times.

    Each end is the wider of Wilson's and the block bootstrap's: misses come in bursts, which Wilson does
    not know, and a bootstrap of nothing but successes has no width. With weights, Wilson is given the
    effective number of requests, (Σw)²/Σw² (L. Kish, "Survey Sampling", 1965).
    """
    weight = np.ones(len(met)) if weights is None else weights
    estimate = ratio_estimate(met * weight, weight, seed=seed)
    share = min(estimate.value, 1.0)
    low, high = wilson(share, float(weight.sum()) ** 2 / float(weight @ weight))
    if estimate.low is not None and estimate.high is not None:
        low, high = min(low, estimate.low), max(high, estimate.high)
    return Estimate(value=share, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How one latency of replay a relates to that of replay b, request by request."""

    ratio: float
    """Geometric mean of a / b over the pairs: 0.8 says that a took 0.8 times as long."""
    low: float | None
    high: float | None
    """Ends of its 95 % interval; None below `FEWEST` pairs."""
    n: int
    """Pairs that both replays answered and that have this latency."""
    failed_a: int
    """Requests that a failed and b did not. The ratio leaves them out, so read it with these."""
    failed_b: int

    @property
    def different(self) -> bool:
        """Whether the interval leaves out 1. Failures are not in it."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def compare(
    a: Sequence[Record],
    b: Sequence[Record],
    metric: Literal["ttft_s", "tpot_s", "e2e_s"],
    *,
    seed: int = 0,
) -> Comparison:
    """Compare two replays of the same trace, pairing records by `request`.

    The interval is a block bootstrap of the mean log-ratio over pairs in order of due times. It holds the
    noise within this one replay a side; how the engine varies from start to start needs several replays.

    Raises ValueError where no request was answered by both with this latency above 0.
    """
    others = {record.request: record for record in b}
    pairs = [(x, others[x.request]) for x in sorted(a, key=_due) if x.request in others]
    answered = [(x, y) for x, y in pairs if x.ok and y.ok]
    took = np.array([(getattr(x, metric), getattr(y, metric)) for x, y in answered], dtype=np.float64)
    took = took.reshape(-1, 2)
    took = took[(np.isfinite(took) & (took > 0)).all(axis=1)]
    n = len(took)
    if n == 0:
        raise ValueError(f"nothing to compare: no request has {metric} in both replays")
    logs = np.log(took[:, 0] / took[:, 1])
    estimate = ratio_estimate(logs, np.ones(n), seed=seed)
    return Comparison(
        ratio=math.exp(estimate.value),
        low=None if estimate.low is None else math.exp(estimate.low),
        high=None if estimate.high is None else math.exp(estimate.high),
        n=n,
        failed_a=sum(not x.ok and y.ok for x, y in pairs),
        failed_b=sum(x.ok and not y.ok for x, y in pairs),
    )


def _due(record: Record) -> float:
    return record.due_s


def _position(n: float, q: float) -> int:
    """0-based position of the q-quantile in n sorted values, NumPy's "higher"."""
    return int(_positions(np.array([float(n)]), q)[0])


def _positions(n: Array, q: float) -> Array:
    # 0.07 · 100 is a hair above 7 in floating point, and must not round up to 8.
    return np.ceil(q * (n - 1) - 1e-9)


def _order_ranks(n: int, q: float) -> tuple[int | None, int | None]:
    """0-based positions of the order statistics that enclose the q-quantile; None where there is none."""
    cumulative = bdtr(np.arange(n + 1), n, q)
    below = int(np.searchsorted(cumulative, _TAIL))
    above = int(np.searchsorted(cumulative, 1 - _TAIL))
    # Between "bounded at 95 % one-sided" and "at 97.5 %" the slowest request stands in for the end.
    bounded = n >= requests_needed(q)
    return (below - 1 if below > 0 else None), (min(above, n - 1) if bounded else None)


def _resampled_positions(values: Array, positions: list[int], seed: int) -> Array:
    """The order statistics at these positions of every resample: (resamples, positions)."""
    length = block_length(values)
    return np.concatenate(
        [
            np.partition(values[indices], sorted(set(positions)), axis=1)[:, positions]
            for indices in resampled(len(values), length, seed)
        ]
    )


def _ends(resamples: Array) -> tuple[float, float]:
    """The interval's ends from resampled values; infinities kept."""
    low = np.quantile(resamples, _TAIL, method="lower")
    high = np.quantile(resamples, 1 - _TAIL, method="higher")
    return float(low), float(high)


def _estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(
        value=value,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
    )
