"""At which acceptance of its draft speculation breaks even, from ratios measured at a few acceptances.

Between two acceptances the logarithm of the ratio is taken to be a straight line; nothing is said beyond
those that were tried.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Pays = Literal["from", "at all", "at none", "cannot tell"]
"""`from` the break-even on; at all, or at none, of the acceptances tried."""

_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What speculation does to a number at one acceptance, against none."""

    acceptance: float
    ratio: float
    """Below 1 it pays: of a latency as it is, of a rate turned over. Positive."""
    low: float | None
    """Ends of its interval; None where there is none."""
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where speculation begins to pay."""

    pays: Pays
    acceptance: float | None = None
    """Given for `from` alone."""
    low: float | None = None
    """Where the interval's lower end crosses 1; None where it does so at none between those tried."""
    high: float | None = None
    """Where its upper end does."""


def break_even(priced: Sequence[Priced]) -> BreakEven:
    """Where the ratio crosses 1, if the intervals bear that.

    It takes a ratio told above 1 below the crossing and one told below 1 above it; a single crossing between;
    for `at all` and `at none` every ratio on that side, and the one next to the other side told.
    """
    points = sorted(priced, key=lambda point: point.acceptance)
    pays = [point.acceptance for point in points if point.high is not None and point.high < 1]
    costs = [point.acceptance for point in points if point.low is not None and point.low > 1]
    if pays and costs:
        at = _crossing(points, lambda point: point.ratio)
        if at is None or not max(costs) < at < min(pays):
            return BreakEven(pays="cannot tell")
        return BreakEven(
            pays="from",
            acceptance=at,
            low=_crossing(points, lambda point: point.low),
            high=_crossing(points, lambda point: point.high),
        )
    if pays and pays[0] == points[0].acceptance and all(point.ratio < 1 for point in points):
        return BreakEven(pays="at all")
    if costs and costs[-1] == points[-1].acceptance and all(point.ratio > 1 for point in points):
        return BreakEven(pays="at none")
    return BreakEven(pays="cannot tell")


def constant_acceptance(positions: Sequence[float]) -> float:
    """The constant acceptance a with as many accepted tokens a draft: a + a² + … + a^k = the positions' sum.

    Args:
        positions: (k,) share of drafts accepted up to and with each position, in [0, 1], from the first.

    Raises ValueError without a position.
    """
    if not positions:
        raise ValueError("the acceptance of one position or more")
    wanted, low, high = math.fsum(positions), 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if math.fsum(middle**power for power in range(1, len(positions) + 1)) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _crossing(points: Sequence[Priced], ratio: Callable[[Priced], float | None]) -> float | None:
    """The one acceptance at which the ratio falls through 1; None where it does not, or not just once."""
    found = [(point.acceptance, value) for point in points if (value := ratio(point)) is not None]
    falls, rises = [], 0
    for (a, before), (b, after) in pairwise(found):
        if before > 1 >= after:
            falls.append(a + (b - a) * math.log(before) / math.log(before / after))
        rises += before <= 1 < after
    return falls[0] if len(falls) == 1 and not rises else None
