"""What an engine's counters and gauges say over a replay. None always means unknown, never zero."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np

from objectives.measurement import Sample


def growth(samples: Sequence[Sample], counter: Callable[[Sample], float | None]) -> float | None:
    """How much a counter grew from the first sample to the last.

    None where either of them lacks it, where there are not two samples, and where it ever went down: the
    engine restarted, and what it had counted before is lost.
    """
    if len(samples) < 2 or counter(samples[0]) is None or counter(samples[-1]) is None:
        return None
    readings = [reading for sample in samples if (reading := counter(sample)) is not None]
    if any(later < earlier for earlier, later in pairwise(readings)):
        return None
    return readings[-1] - readings[0]


def ratio(above: float | None, below: float | None) -> float | None:
    """above / below; None where either is unknown or nothing is below."""
    return above / below if above is not None and below else None


def time_mean(
    samples: Sequence[Sample],
    gauge: Callable[[Sample], float | None],
    *,
    start_s: float,
    end_s: float,
) -> float | None:
    """Mean of a gauge over a span of time, readings joined by straight lines.

    Readings come unevenly, so they are weighted by time; before the first and after the last reading the
    gauge is taken to stay as read. None where no sample has it.
    """
    read = [(sample.at_s, reading) for sample in samples if (reading := gauge(sample)) is not None]
    if not read:
        return None
    at = np.array([when for when, _ in read])
    readings = np.array([reading for _, reading in read])
    if end_s <= start_s:
        return float(np.interp(start_s, at, readings))
    inside = at[(at > start_s) & (at < end_s)]
    span = np.concatenate(([start_s], inside, [end_s]))
    joined = np.interp(span, at, readings)
    return float(((joined[1:] + joined[:-1]) / 2 * np.diff(span)).sum() / (end_s - start_s))


def restarted(samples: Sequence[Sample]) -> bool:
    """Whether any counter ever went down."""
    names = [field.name for field in fields(Sample) if field.name.endswith("_total")]
    for name in names:
        last: float | tuple[float, ...] | None = None
        for sample in samples:
            reading: float | tuple[float, ...] | None = getattr(sample, name)
            if reading is None:
                continue
            if last is not None and np.any(np.less(reading, last)):
                return True
            last = reading
    return False
