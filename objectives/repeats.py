"""Several replays of one workload, within one engine start or each with its own, as one measurement. Pure.

They are of the same requests, so what the traffic happened to be is alike in all of them and is not averaged
out; what differs from replay to replay is. So the variance of the combined value has two parts: the mean of
the variances within the replays, as their intervals have it, and a k-th of the variance between the k of
them. An end of the interval is the root of the two parts' squared reaches away: the normal's quantile times
the first standard error, and Student's with k - 1 degrees of freedom times the second. With two repeats that
is 12.7, and no less would do: of two values nobody knows how far apart a third may be. Giving each part its
own quantile errs on the safe side where both matter (W. Cochran, "Approximate significance levels of the
Behrens-Fisher test", Biometrics 20(1), 1964).

Where other configs were repeated too, all of them together tell how runs of one and the same config differ
(`spreads`), with more degrees of freedom than two repeats have by themselves.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy.stats import t as student

from objectives.measurement import Estimate, Measurement
from objectives.metrics import METRICS
from objectives.statistics import CONFIDENCE

_UPPER = (1 + CONFIDENCE) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How single runs of one config differ in one metric."""

    variance: float
    """Of one run: of the value for shares and counts, of its logarithm for all else."""
    freedom: int
    """Degrees of freedom that it was estimated with, at least 1."""


_UNKNOWN: Mapping[str, Spread] = MappingProxyType({})


def spreads(groups: Sequence[Sequence[Measurement]]) -> dict[str, Spread]:
    """By metric, the pooled variance of runs within these groups; of metrics that were repeated at all.

    That it is the same for all configs is an assumption, on the logarithm a fair one: noise of so many per
    cent. Values of 0 or below, or that are not finite, say nothing there and are left out.

    Args:
        groups: the measurements of one config each. Groups of one add nothing.
    """
    names = dict.fromkeys(name for group in groups for one in group for name in one.metrics)
    found = {}
    for name in names:
        squares, freedom = 0.0, 0
        for group in groups:
            values = np.array([one.metrics[name].value for one in group if name in one.metrics])
            values = values[np.isfinite(values)]
            if not _arithmetic(name):
                values = np.log(values[values > 0])
            if len(values) > 1:
                squares += float(((values - values.mean()) ** 2).sum())
                freedom += len(values) - 1
        if freedom:
            found[name] = Spread(variance=squares / freedom, freedom=freedom)
    return found


def combine(measurements: Sequence[Measurement], known: Mapping[str, Spread] = _UNKNOWN) -> Measurement:
    """One measurement of repeats.

    Latencies, rates and amounts per something are combined by their geometric mean, shares and counts by
    their arithmetic mean. A metric that not every repeat has is left out, with a warning. Requests, failed
    requests and durations are summed; warnings and disagreements are merged. One measurement stays as it is,
    but for intervals that take in how runs are known to differ.

    Args:
        known: how single runs differ, by metric; where it is missing, these repeats alone say so.

    Raises ValueError without measurements.
    """
    if not measurements:
        raise ValueError("no measurements to combine")
    first = measurements[0]
    if len(measurements) == 1:
        if not known:
            return first
        return replace(first, metrics=_Combined(measurements, tuple(first.metrics), known))
    names = [name for name in first.metrics if all(name in other.metrics for other in measurements)]
    return Measurement(
        metrics=_Combined(measurements, names, known),
        requests=sum(measurement.requests for measurement in measurements),
        failed_requests=sum(measurement.failed_requests for measurement in measurements),
        duration_s=sum(measurement.duration_s for measurement in measurements),
        accepted_per_position=_positions(measurements),
        warnings=(
            *_merged([measurement.warnings for measurement in measurements]),
            *_left_out(measurements, names),
        ),
        disagreements=_merged([measurement.disagreements for measurement in measurements]),
        mode=first.mode,
        curve=tuple(
            sorted((point for one in measurements for point in one.curve), key=lambda point: point.speed)
        ),
    )


class _Combined(Mapping[str, Estimate]):
    """Metrics of repeats, each combined when it is first asked for: a front reads two of some dozens, of
    thousands of configs. Pickles as the dictionary that it stands for."""

    __slots__ = ("_found", "_known", "_measurements", "_names")

    def __init__(
        self, measurements: Sequence[Measurement], names: Sequence[str], known: Mapping[str, Spread]
    ) -> None:
        self._measurements = measurements
        self._names = dict.fromkeys(names)
        self._known = known
        self._found: dict[str, Estimate] = {}

    def __getitem__(self, name: str) -> Estimate:
        if name not in self._found:
            if name not in self._names:
                raise KeyError(name)
            estimates = [measurement.metrics[name] for measurement in self._measurements]
            alone = len(estimates) == 1 and name not in self._known
            self._found[name] = estimates[0] if alone else combined(name, estimates, self._known.get(name))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[str, Estimate]], tuple[dict[str, Estimate]]]:
        return dict, (dict(self),)


def combined(name: str, estimates: Sequence[Estimate], known: Spread | None = None) -> Estimate:
    """One metric's estimate from those of at least two repeats; of one, where it is known how runs differ.

    An end that one of them lacks is missing, but where none has an interval (a throughput, a counter), the
    one given holds only how the repeats differ. Without one: of a single estimate whose runs' spread is of
    logarithms that it has not, and of values that are not finite.
    """
    metric = METRICS.get(name)
    values = [estimate.value for estimate in estimates]
    if not all(map(math.isfinite, values)):
        return estimates[0] if len(values) == 1 else Estimate(value=float(np.mean(values)))
    arithmetic = _arithmetic(name)
    if arithmetic or min(values) <= 0:
        known = known if arithmetic else None
        if len(values) == 1 and known is None:
            return estimates[0]
        mean, most = (
            _mean(values),
            1.0 if metric is not None and metric.unit == "share" else math.inf,
        )
        ends = _ends(estimates, known)
        low, high = (None if end is None else min(max(end, 0.0), most) for end in ends)
        return Estimate(value=mean, low=low, high=high)
    logs = [
        Estimate(
            value=math.log(estimate.value),
            low=None if estimate.low is None else _log(estimate.low),
            high=None if estimate.high is None else _log(estimate.high),
        )
        for estimate in estimates
    ]
    low, high = (None if end is None else _exp(end) for end in _ends(logs, known))
    return Estimate(value=math.exp(_mean([log.value for log in logs])), low=low, high=high)


def _arithmetic(name: str) -> bool:
    """Whether a metric differs by amounts, not by ratios."""
    metric = METRICS.get(name)
    return metric is not None and metric.unit in ("share", "count")


def _ends(estimates: Sequence[Estimate], spread: Spread | None) -> tuple[float | None, float | None]:
    """Ends of the mean's interval; None where there is none."""
    values = [estimate.value for estimate in estimates]
    known = any(estimate.low is not None or estimate.high is not None for estimate in estimates)
    below = [None if estimate.low is None else estimate.value - estimate.low for estimate in estimates]
    above = [None if estimate.high is None else estimate.high - estimate.value for estimate in estimates]
    if spread is None:
        spread = Spread(variance=float(np.var(values, ddof=1)), freedom=len(values) - 1)
    mean, between = _mean(values), spread.variance / len(values)
    down, up = (_reach(side if known else [0.0], between, spread.freedom) for side in (below, above))
    return (None if down is None else mean - down), (None if up is None else mean + up)


def _reach(within: Sequence[float | None], between: float, freedom: int) -> float | None:
    """From the mean to one end of its interval.

    Args:
        within: from each repeat's value to that end of its own.
        between: variance of the mean by how the repeats differ.
        freedom: degrees of freedom of that variance.
    """
    known = [reach for reach in within if reach is not None]
    if len(known) < len(within):
        return None
    if math.inf in known:
        return math.inf
    return math.sqrt(_mean([reach**2 for reach in known]) + _quantile(freedom) ** 2 * between)


@functools.cache
def _quantile(freedom: int) -> float:
    """Student's; SciPy takes a tenth of a millisecond for one, and a front asks for thousands of the same."""
    return float(student.ppf(_UPPER, freedom))


def _mean(values: Sequence[float]) -> float:
    """NumPy's, without its price where there is one value, as most configs have."""
    return values[0] if len(values) == 1 else float(np.mean(values))


def _log(end: float) -> float:
    return math.log(end) if end > 0 else -math.inf


def _exp(end: float) -> float:
    """Of few repeats that differ much an interval may reach beyond what a float holds."""
    return math.exp(end) if end < 700 else math.inf


def _positions(measurements: Sequence[Measurement]) -> tuple[float, ...] | None:
    each = [measurement.accepted_per_position for measurement in measurements]
    known = [positions for positions in each if positions is not None]
    if len(known) < len(each) or len({len(positions) for positions in known}) > 1:
        return None
    return tuple(float(mean) for mean in np.mean(known, axis=0))


def _merged(sentences: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Each once, in order of appearance."""
    return tuple(dict.fromkeys(said for each in sentences for said in each))


def _left_out(measurements: Sequence[Measurement], kept: Sequence[str]) -> tuple[str, ...]:
    missing = dict.fromkeys(
        name for measurement in measurements for name in measurement.metrics if name not in kept
    )
    return (f"left out, as not every repeat has them: {', '.join(missing)}",) if missing else ()
