"""The highest speed at which an SLO holds: how it is looked for, and how sure it is. Pure.

Speeds stand on a grid of equal ratios, so that two trials that end at the same capacity have played the same
speeds, and a bracket that has closed is known to one step of the grid. The search is an exponential one from
a first guess, then bisection, both on log speed (J. Bentley, A. Yao, "An almost optimal algorithm for
unbounded searching", 1976): strides that double until the capacity lies between two speeds, then halves. It
takes for granted that an SLO that holds at one speed holds at every lower
one; where noise near the capacity breaks that, it ends at one of the crossings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.bootstrap import Array, block_length, resampled_sums
from objectives.measurement import Estimate
from objectives.statistics import CONFIDENCE, FEWEST

_FIRST_STRIDE = 4
"""Steps of the grid from a guess to the next speed tried: 22 % at a resolution of 5 %. Doubled each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedGrid:
    """Speeds `reference · (1 + resolution)^k` for whole k between two bounds."""

    reference: float
    """The workload's own speed: k = 0."""
    resolution: float
    lowest: float
    """Times the reference."""
    highest: float
    """Times the reference."""

    def __post_init__(self) -> None:
        if not (self.reference > 0 and self.resolution > 0 and 0 < self.lowest <= 1 <= self.highest):
            raise ValueError(f"a grid of speeds around a positive reference, got {self}")

    @property
    def first(self) -> int:
        """The lowest k: none lies below `lowest`."""
        return math.ceil(math.log(self.lowest) / math.log1p(self.resolution) - 1e-9)

    @property
    def last(self) -> int:
        """The highest k: none lies above `highest`."""
        return math.floor(math.log(self.highest) / math.log1p(self.resolution) + 1e-9)

    def speed(self, k: int) -> float:
        return self.reference * (1 + self.resolution) ** k

    def nearest(self, speed: float) -> int:
        """The k whose speed is nearest on the log scale, within the bounds."""
        k = round(math.log(speed / self.reference) / math.log1p(self.resolution))
        return min(max(k, self.first), self.last)


class CapacitySearch:
    """Asks for one speed after the other until the capacity is known; told whether the SLO held at each."""

    def __init__(self, grid: SpeedGrid, guess: float | None = None) -> None:
        """`guess`: the speed to try first; None: the reference."""
        self._guess = 0 if guess is None else grid.nearest(guess)
        self._held = grid.first - 1
        """Highest k at which it held; below the grid: at none."""
        self._failed = grid.last + 1
        """Lowest k at which it did not; above the grid: at none."""
        self._grid = grid
        self._rising = True
        """Whether it held at the last k."""
        self._stride = _FIRST_STRIDE
        self._strode = False
        """Whether the last k asked for was a stride from the one before."""

    @property
    def held(self) -> int | None:
        """Highest k at which the SLO held; None if at none."""
        return self._held if self._held >= self._grid.first else None

    @property
    def failed(self) -> int | None:
        """Lowest k at which it did not; None if there is none."""
        return self._failed if self._failed <= self._grid.last else None

    def next(self) -> int | None:
        """The k to play next; None once nothing more is to be learnt."""
        self._strode = False
        if self._failed - self._held <= 1:
            return None
        if self._held < self._guess < self._failed:
            return self._guess
        if self._failed - self._held <= 2 * self._stride:
            return (self._held + self._failed) // 2
        self._strode = True
        return self._held + self._stride if self._rising else self._failed - self._stride

    def tell(self, k: int, *, held: bool) -> None:
        """The verdict at a k; what contradicts an earlier one is taken as far as that leaves room for it."""
        if held:
            self._held = max(self._held, min(k, self._failed - 1))
        else:
            self._failed = min(self._failed, max(k, self._held + 1))
        if self._strode and held is self._rising:
            self._stride *= 2
        self._rising = held


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What one replay said of each request, for the interval of the capacity."""

    rate: float
    """Offered, in the unit that the capacity is wanted in."""
    met: NDArray[np.bool_]
    """(n,) whether each request met the SLO, in order of due times. Of a cut replay: the requests that were
    decided by then."""


def capacity_estimate(capacity: float, verdicts: Sequence[Verdicts], attainment: float) -> Estimate:
    """The capacity with a 95 % interval from the misses at every rate played.

    Each resample draws the same blocks of requests at every rate, since all replays have the same requests
    and slow ones are slow at all of them. Its capacity is where its attainment, made non-increasing in the
    rate by pooling (isotonic regression, weighted by requests), falls through the SLO's share, linear in
    log rate between neighbours. An end that lies beyond the rates played is None.

    Args:
        capacity: the highest rate at which the SLO held; below the lowest rate played if it held at none.
        verdicts: of every replay that counts, in any order; rates are positive.
        attainment: share of requests that must meet the SLO.
    """
    ordered = sorted((verdict for verdict in verdicts if len(verdict.met)), key=lambda verdict: verdict.rate)
    # A replay that was cut at once decided few requests, all but alike: it still says where it fails.
    if max((len(verdict.met) for verdict in ordered), default=0) < FEWEST:
        return Estimate(value=capacity)
    rates = np.array([verdict.rate for verdict in ordered])
    counts = np.array([len(verdict.met) for verdict in ordered], dtype=np.float64)
    series = [verdict.met.astype(np.float64) for verdict in ordered]
    # One block length and one seed: replays of equal length draw the same requests.
    length = max(map(block_length, series))
    shares = np.stack(
        [resampled_sums(met, min(length, len(met)), seed=0) / len(met) for met in series], axis=1
    )
    drawn = np.array([crossing(rates, row, counts, attainment) for row in shares])
    tail = (1 - CONFIDENCE) / 2
    low = float(np.quantile(drawn, tail, method="lower"))
    high = float(np.quantile(drawn, 1 - tail, method="higher"))
    return Estimate(
        value=capacity,
        low=min(low, capacity) if low > 0 or capacity == 0 else None,
        high=max(high, capacity) if math.isfinite(high) else None,
    )


def crossing(rates: Array, shares: Array, weights: Array, attainment: float) -> float:
    """Where shares that fall with the rate go through `attainment`; 0 below all rates, infinite above.

    Args:
        rates: (p,) ascending, positive.
        shares: (p,) of requests that met the SLO at each.
        weights: (p,) requests behind each share.
    """
    falling = non_increasing(shares, weights)
    holds = falling >= attainment - 1e-12
    if not holds[0]:
        return 0.0
    if holds[-1]:
        return math.inf
    after = int(np.argmin(holds))
    above, below = falling[after - 1], falling[after]
    share = float((above - attainment) / (above - below))
    return float(rates[after - 1] * (rates[after] / rates[after - 1]) ** share)


def non_increasing(values: Array, weights: Array) -> Array:
    """The closest non-increasing sequence by weighted squares: pool adjacent violators.

    Source: R. Barlow et al., "Statistical Inference under Order Restrictions", 1972.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while pools and pools[-1][0] < mean:
            before, mass, count = pools.pop()
            mean = (before * mass + mean * total) / (mass + total)
            total, size = total + mass, size + count
        pools.append((mean, total, size))
    return np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])
