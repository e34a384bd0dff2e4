"""What `tuner drift` tells, as data: what the terminal prints and `--json` writes. Shapes only."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from objectives.measurement import Estimate


class Verdict(StrEnum):
    """What became of the chosen config."""

    STEADY = "the traffic has not moved"
    STANDS = "the traffic has moved; the config is likely still on the front"
    MOVED = "the config has likely moved off the front"
    OVERLOADED = "the traffic is likely more than the config can serve within the SLO"

    @property
    def retune(self) -> bool:
        """Whether a search on the new traffic is worth its time."""
        return self in (Verdict.MOVED, Verdict.OVERLOADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One property of the traffic, then and now."""

    name: str
    unit: str
    before: Estimate
    now: Estimate
    kind: Literal["ratio", "difference"]
    change: Estimate
    """Now over before, or now less before; with its 95 % interval."""
    told: bool
    """Whether the interval leaves out no change."""
    matters: bool
    """Whether it is told, and larger than `compare.RATIO` or `compare.DIFFERENCE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far two distributions are apart."""

    name: str
    largest: float
    """Largest difference between the two cumulated shares, 0 to 1 (Kolmogorov, Smirnov)."""
    p: float
    """Chance of so much where there is no difference, by a bootstrap in blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is expected of one measured config on the new traffic."""

    number: int
    title: str
    is_control: bool
    chosen: bool
    measured: Mapping[str, float]
    """Objectives as the study measured them, in people's units."""
    expected: Mapping[str, float]
    """The same, times what the first-order model expects of the new traffic over the old."""
    off_front: float
    """Chance that another measured config dominates it, by that and its errors."""
    off_front_before: float
    """The same on the old traffic, by the measurements' errors alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """One config measured on the new traffic."""

    number: int
    """In the study."""
    title: str
    is_control: bool
    chosen: bool
    objectives: Mapping[str, str]
    """With intervals, in words."""
    on_front: bool
    ruled_out: bool
    """Whether another one dominates it even with the intervals at their ends."""
    failed: str | None
    """Why, where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """A study against a newer trace."""

    study: str
    simulated: bool
    trial: int
    """The chosen config."""
    title: str
    trace: str
    changes: tuple[Change, ...]
    distances: tuple[Distance, ...]
    outlook: tuple[Outlook, ...]
    """Of the front and the control, the chosen one first; empty where nothing is predicted."""
    capacity_rps: float | None
    """What the chosen config is expected to serve on the new traffic; None where no capacity was measured."""
    rate_rps: float | None
    """Of the new trace as it was recorded; None where all requests come at once."""
    remeasured: tuple[Remeasured, ...]
    """Empty unless it was asked for."""
    verdict: Verdict
    why: str
    next: str
    """The command that tunes again, warm-started from the study."""
    notes: tuple[str, ...]
