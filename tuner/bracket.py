"""A trial's capacity as people read it: the two speeds it lies between, and what finding it took. Words only.

The number and its interval are measured on the node; what is read off the curve here is on which side the
search met an end: a capacity "at least" the highest rate tried, or "below" the lowest, is no number.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from objectives.measurement import LoadPoint, Measurement, Mode
from objectives.metrics import METRICS
from tuner.titles import interval, number

Side = Literal["", "at least", "at most", "below"]

_SAME_SPEED = 1 + 1e-9
"""Speeds are powers of one ratio, so equal ones differ by rounding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The replays that the capacity lies between. One of the two may be missing, never both."""

    held: LoadPoint | None
    """At the capacity: the highest speed at which the SLO held; None: it held at none that was tried."""
    failed: LoadPoint | None
    """At the lowest speed above it; None: it held at the highest that was tried."""

    @property
    def resolution(self) -> float | None:
        """By what share of the capacity the next speed is higher; None where there is no next or no first."""
        if self.held is None or self.failed is None:
            return None
        return self.failed.speed / self.held.speed - 1

    @property
    def side(self) -> Side:
        """What stands before the number; nothing where both ends are known."""
        return "at least" if self.failed is None else "below" if self.held is None else ""


def bracket(measurement: Measurement | None) -> Bracket | None:
    """Where the measurement's capacity lies; None where none was looked for, or requests have no rate."""
    if measurement is None or measurement.mode is not Mode.CAPACITY:
        return None
    curve = [point for point in measurement.curve if point.offered_rps is not None]
    speed = measurement.value("capacity_speed")
    if not curve or speed is None:
        return None
    # A verdict near the capacity may contradict another: the node has settled which of them counts.
    held = [point for point in curve if point.held and point.speed <= speed * _SAME_SPEED]
    last = max(held, key=lambda point: point.speed, default=None)
    failed = [p for p in curve if not p.held and (last is None or p.speed > last.speed * _SAME_SPEED)]
    first = min(failed, key=lambda point: point.speed, default=None)
    return None if last is None and first is None else Bracket(held=last, failed=first)


def capacity_text(measurement: Measurement | None) -> str | None:
    """`18.2 (17.5 to 19.1) requests/s`, `at least 24 (23.1 to ?) requests/s`, `below 0.5 requests/s`.

    None where there is no capacity to tell.
    """
    if measurement is None or bracket(measurement) is None:
        return None
    return f"{estimate_text(measurement, 'capacity_rps')} requests/s"


def estimate_text(measurement: Measurement | None, metric: str) -> str:
    """A metric's value with its interval in people's unit, before it the side of a capacity with one end.

    `–` where it was not measured.

    Args:
        metric: its name inside.
    """
    estimate = None if measurement is None else measurement.metrics.get(metric)
    if estimate is None or not math.isfinite(estimate.value):
        return "–"
    side = side_of(measurement, metric)
    if side != "below":
        return " ".join([*([side] if side else []), interval(METRICS[metric].show(estimate))])
    return f"below {below_text(measurement, metric)}"


def side_of(measurement: Measurement | None, metric: str) -> Side:
    """What stands before a metric's number; a capacity that is at least so high costs at most so much."""
    found = bracket(measurement)
    if found is None:
        return ""
    if metric == "cost_per_million_tokens":
        return "at most" if found.side == "at least" else ""
    return found.side if is_capacity(metric) else ""


def is_capacity(metric: str) -> bool:
    """Whether a metric says the capacity, in whatever unit."""
    return metric.startswith("capacity_")


def below_text(measurement: Measurement | None, metric: str) -> str:
    """The lowest load tried, at which the SLO did not hold: the measured number itself is 0 then."""
    found = bracket(measurement)
    assert found is not None  # asked only where the side is "below"
    assert found.failed is not None
    rps, speed = found.failed.offered_rps, number(found.failed.speed)
    return number(rps) if metric == "capacity_rps" and rps is not None else f"speed {speed}"


def resolution_text(measurements: Iterable[Measurement | None]) -> str | None:
    """`5 %`, or `5 to 22 %` where a search was ended early; None where no capacity has both its ends."""
    found = [b.resolution for m in measurements if (b := bracket(m)) is not None and b.resolution is not None]
    if not found:
        return None
    ends = dict.fromkeys(f"{100 * share:.2g}" for share in (min(found), max(found)))
    return f"{' to '.join(ends)} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """What trials' curves took."""

    played: int
    cut: int
    """Of those played, cut short, their verdict being certain."""
    saved_s: float
    """What the cuts saved at the least."""

    @property
    def text(self) -> str:
        """`9 replays, 3 of them cut, 41 s saved`."""
        many = f"{self.played} replay{'' if self.played == 1 else 's'}"
        return many if not self.cut else f"{many}, {self.cut} of them cut, {number(self.saved_s)} s saved"


def replays(measurements: Iterable[Measurement | None]) -> Replays:
    """Of all these trials together."""
    points = [point for m in measurements if m is not None for point in m.curve]
    return Replays(
        played=len(points),
        cut=sum(point.cut_s is not None for point in points),
        saved_s=sum(point.saved_s for point in points),
    )
