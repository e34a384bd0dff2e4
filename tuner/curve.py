"""A trial's latency-against-rate curve as plain data: what MLflow keeps of it and what pictures draw.

A replay that was cut has a verdict and no latencies: its requests did not all end. So a curve of latencies
ends at the last whole replay, and beyond that the SLO is broken.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from objectives.measurement import Estimate, LoadPoint, Measurement
from objectives.metrics import METRICS, latency_metric
from objectives.slo import Slo

DRAWN = ("ttft", "tpot", "e2e")
"""Latencies with a place in the pictures."""

SERIES = (
    "slo_attainment",
    "goodput_rps",
    *(latency_metric(latency, point) for latency in DRAWN for point in (50, 95)),
)
"""What MLflow keeps of every whole replay."""

PREFIX = "curve/"
"""Of a series' name; MLflow puts the charts of one prefix together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A replay with the rate that it offered."""

    rps: float
    point: LoadPoint

    def shown(self, metric: str) -> Estimate | None:
        """A metric in people's units; None where this replay did not measure it, as no cut one does."""
        estimate = self.point.metrics.get(metric)
        if estimate is None or not math.isfinite(estimate.value):
            return None
        return METRICS[metric].show(estimate)

    @property
    def most_met(self) -> float:
        """The most that can have met the SLO, as a share: of a cut replay an upper bound."""
        return 1 - self.point.misses / self.point.requests


def curve(measurement: Measurement | None) -> tuple[Rated, ...]:
    """The trial's replays by ascending rate; empty where there are no two rates, for that is no curve."""
    if measurement is None:
        return ()
    rated = [
        Rated(rps=point.offered_rps, point=point)
        for point in measurement.curve
        if point.offered_rps is not None and point.requests
    ]
    if len({replay.rps for replay in rated}) < 2:
        return ()
    return tuple(sorted(rated, key=lambda replay: replay.rps))


def series(measurement: Measurement | None) -> dict[str, tuple[tuple[int, float], ...]]:
    """Pairs of step and value by MLflow's name of the series, in people's units.

    The step is the offered rate in whole thousandths of a request per second, since MLflow's are integers.
    `curve/held` is 1 where the SLO held and 0 where it did not, cut replays included.
    """
    replays = curve(measurement)
    if not replays:
        return {}
    found = {f"{PREFIX}held": tuple((_step(replay), float(replay.point.held)) for replay in replays)}
    for name in SERIES:
        pairs = [(_step(replay), shown.value) for replay in replays if (shown := replay.shown(name))]
        if pairs:
            found[f"{PREFIX}{METRICS[name].shown}"] = tuple(pairs)
    return found


def _step(replay: Rated) -> int:
    return round(1000 * replay.rps)


def spans_decades(values: Iterable[float]) -> bool:
    """Whether an axis for these values should be logarithmic: the largest is ten times the least or more."""
    found = [value for value in values if value > 0]
    return bool(found) and max(found) >= 10 * min(found)


def limit_ms(slo: Slo, metric: str) -> float | None:
    """The SLO's limit on a latency's percentile, in milliseconds; None where it has none."""
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    limit = limits.get(metric.partition("_")[0])
    return None if limit is None else limit * 1000
