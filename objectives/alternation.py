"""Two configs measured in alternation, a b b a …: how they differ, with all that differs from run to run.

One replay a side tells how requests differ within it (`objectives.statistics.compare`), and takes a slow run
for a slow config. Several replays a side, in alternation, show how much runs of one and the same config
differ, and only that makes "different" mean something: measured at 1 % between runs, two single replays of
one config are called different far more often than the one time in twenty that an interval promises.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from objectives.measurement import Record
from objectives.statistics import CONFIDENCE, compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one number of a relates to that of b, over pairs of replays."""

    ratio: float
    """Geometric mean of a / b over the pairs of replays."""
    low: float | None
    """Ends of its 95 % interval; None with fewer than two pairs."""
    high: float | None
    pairs: int

    @property
    def different(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def difference(log_ratios: Sequence[float]) -> Difference:
    """From log(a / b) of each pair of replays.

    Student's interval of their mean, with one degree of freedom fewer than pairs: two pairs give one that is
    six times as wide as five do. The pairs are independent, being different runs. What it speaks of is this
    traffic: other windows may differ otherwise.

    Raises ValueError without a pair, or for a ratio that is not finite.
    """
    logs = np.array(log_ratios, dtype=np.float64)
    if not len(logs) or not np.isfinite(logs).all():
        raise ValueError(f"log-ratios of one or more pairs, all finite; got {log_ratios}")
    n, mean = len(logs), float(logs.mean())
    if n < 2:
        return Difference(ratio=math.exp(mean), low=None, high=None, pairs=n)
    quantile = float(stdtrit(n - 1, 1 - (1 - CONFIDENCE) / 2))
    half = quantile * float(logs.std(ddof=1)) / math.sqrt(n)
    return Difference(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), pairs=n)


def latency_difference(
    a: Sequence[Sequence[Record]],
    b: Sequence[Sequence[Record]],
    metric: Literal["ttft_s", "tpot_s", "e2e_s"],
) -> Difference:
    """Compare a latency over pairs of replays of the same requests, each pair request by request.

    Args:
        a: replays of one config, in the order they were played.
        b: of the other, each paired with the one of `a` at its place: its neighbour in time.

    Raises ValueError where the sides differ in length, or a pair has nothing in common.
    """
    return difference(
        [math.log(compare(mine, other, metric).ratio) for mine, other in zip(a, b, strict=True)]
    )
