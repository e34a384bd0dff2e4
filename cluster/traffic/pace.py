"""How a trace's requests come over time, and how many would be in service at once.

Concurrency needs to know how long a request takes, which a trace doesn't say: it is an assumption of the
caller's, the same for every load, so what comes out is what an engine that keeps up would see.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.traffic.request import Request
from cluster.traffic.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Arrivals counted in windows of equal length, from the first request on."""

    window_s: float
    rates: tuple[float, ...]
    """Requests per second of each window. The last window is whole: time after the last request counts."""
    peak: float
    dispersion: float | None
    """Variance over mean of the windows' counts: 1 for Poisson, more for load that swells and ebbs.
    Of the whole windows only; None where there are fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How long requests are assumed to take, whatever the load."""

    ttft_s: float
    """Prompt sent to first token."""
    tpot_s: float
    """Each further token."""

    def seconds(self, request: Request) -> float:
        """From a request's arrival to its last token."""
        return self.ttft_s + self.tpot_s * (request.output_length - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Requests in service at once, weighted by time, from the first arrival to the last request's end."""

    mean: float
    p50: int
    p90: int
    p99: int
    peak: int


def pace(trace: Trace, *, speed: float = 1.0, windows: int = 60) -> Pace:
    """Rates over time at a speed, in about so many windows of a round length.

    Raises:
        ValueError: for a trace without requests.
    """
    arrivals = _arrivals(trace, speed)
    window = _round_up(float(arrivals[-1]) / windows) if arrivals[-1] > 0 else 1.0
    counts = np.bincount((arrivals / window).astype(np.int64))
    whole = counts[:-1]
    return Pace(
        window_s=window,
        rates=tuple((counts / window).tolist()),
        peak=float(counts.max() / window),
        dispersion=float(whole.var(ddof=1) / whole.mean()) if len(whole) > 1 else None,
    )


def concurrency(trace: Trace, service: Service, *, speed: float = 1.0) -> Concurrency:
    """How many requests are in service at once at a speed, were each to take what `service` says.

    Raises:
        ValueError: for a trace without requests.
    """
    starts = _arrivals(trace, speed)
    ends = starts + np.array([service.seconds(request) for request in trace.requests])
    moments = np.concatenate((starts, ends))
    changes = np.concatenate((np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)))
    # Ends before starts where they coincide: a slot freed is free for whoever arrives.
    order = np.lexsort((changes, moments))
    level = np.cumsum(changes[order])[:-1]
    lasting = np.diff(moments[order])
    total = float(lasting.sum())
    if total == 0:
        everyone = len(starts)
        return Concurrency(mean=everyone, p50=everyone, p90=everyone, p99=everyone, peak=everyone)
    p50, p90, p99 = (_held(level, lasting, share * total) for share in (0.5, 0.9, 0.99))
    return Concurrency(
        mean=float((level * lasting).sum() / total), p50=p50, p90=p90, p99=p99, peak=int(level.max())
    )


def _held(level: NDArray[np.int64], lasting: NDArray[np.float64], time_s: float) -> int:
    """The lowest level that is not exceeded for so much time in all."""
    order = np.argsort(level, kind="stable")
    at = int(np.searchsorted(np.cumsum(lasting[order]), time_s))
    return int(level[order][min(at, len(level) - 1)])


def _arrivals(trace: Trace, speed: float) -> NDArray[np.float64]:
    if not trace.requests:
        raise ValueError("a trace without requests has no pace")
    if not (speed > 0 and math.isfinite(speed)):
        raise ValueError(f"speed must be a positive number, got {speed}")
    return np.array([request.arrival_s for request in trace.requests]) / speed


def _round_up(seconds: float) -> float:
    """The next of 1, 2, 5, 10, … (and of 0.5, 0.2, … below), so that a window is a length people know."""
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= seconds * (1 - 1e-9))
