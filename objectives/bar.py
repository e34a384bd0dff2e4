"""What the front has already: how low a capacity must be for its config to be certain not to join it. Pure.

A config is beaten by one that is nowhere worse, even if that one's losses lie at the worst ends of their
intervals and its own at their best: as `objectives.front.possibly_on_front` has it. All objectives but the
capacity are known once the workload's own speed was played, so what is left is a speed. Once the SLO is known
to break at that speed or below, the capacity need not be known any closer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from objectives.goal import Objective, objective
from objectives.measurement import Measurement
from objectives.metrics import LATENCIES

_OF_THE_WORKLOAD = ("goodput_rps", "goodput_tokens_per_s", "slo_attainment", "slo_margin")
"""Metrics beside latencies that a replay at the workload's speed gives by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One config of the front, at the worst ends of its intervals."""

    trial: int
    """Its number."""
    speed: float
    """A capacity at this speed or below is no better."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """By the name of each objective that is no capacity, less being better."""


def is_capacity(wanted: Objective) -> bool:
    """Whether it is of the highest speed at which the SLO holds."""
    return wanted.metric.startswith("capacity_")


def known_before(wanted: Objective) -> bool:
    """Whether it is known before a capacity is: from the replay at the workload's speed, and nothing else."""
    return wanted.metric.startswith(tuple(f"{name}_" for name in LATENCIES)) or (
        wanted.metric in _OF_THE_WORKLOAD
    )


def highest(bars: Iterable[Bar], measurement: Measurement) -> Bar | None:
    """Of the bars whose other objectives are nowhere worse than the best that was measured here: the highest.

    Args:
        measurement: at the workload's speed. A bar with an objective that it lacks, or whose better end is
            not known, says nothing.
    """
    beating = [bar for bar in bars if all(_beats(bar, name, measurement) for name in bar.losses)]
    return max(beating, key=lambda bar: bar.speed, default=None)


def _beats(bar: Bar, name: str, measurement: Measurement) -> bool:
    best = best_loss(objective(name), measurement)
    return best is not None and bar.losses[name] <= best


def best_loss(wanted: Objective, measurement: Measurement) -> float | None:
    """At the better end of its interval; None where that is not known."""
    estimate = measurement.metrics.get(wanted.metric)
    end = None if estimate is None else (estimate.high if wanted.direction == "maximise" else estimate.low)
    return None if end is None else wanted.loss(end)


def worst_loss(wanted: Objective, measurement: Measurement) -> float | None:
    """At the worse end of its interval; None where that is not known."""
    estimate = measurement.metrics.get(wanted.metric)
    end = None if estimate is None else (estimate.low if wanted.direction == "maximise" else estimate.high)
    return None if end is None else wanted.loss(end)
