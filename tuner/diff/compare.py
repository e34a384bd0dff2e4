"""How two configs differ: settings, promised numbers, and whether the records tell those apart.

Of each number the first of these that the records allow:

1. Where one side is the control that the other was verified beside: their runs in pairs, in alternation on
   one machine and each pair on traffic of its own (`objectives.alternation`).
2. Where both were verified beside a control: the ratio to it of the one over that of the other.
3. Where both are promised for the same traffic and load: the two promised intervals (`objectives.contrast`).
   That they were played the same requests makes this err towards "not told apart".

Else nothing is compared. Latencies of runs of the same requests are compared beside that request by request,
which sees far smaller differences, and takes a slow run for a slow config where there is one run a side.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from objectives.alternation import Difference, difference, latency_difference
from objectives.contrast import difference_of, ratio_of, told
from objectives.goal import Goal
from objectives.measurement import Estimate
from objectives.metrics import METRICS, Metric, published
from objectives.repeats import combined
from objectives.statistics import compare as compare_replays
from search_spaces.values import Json
from tuner.diff.side import Side

_BESIDE = ("goodput_rps", "slo_attainment", "ttft_p95_ms", "tpot_p95_ms", "e2e_p95_ms")
_ARITHMETIC = ("share", "count")
"""Units whose numbers differ by amounts; all others differ by ratios."""

_LATENCIES: tuple[Literal["ttft_s", "tpot_s", "e2e_s"], ...] = ("ttft_s", "tpot_s", "e2e_s")
_ENOUGH = 2
"""Pairs of runs from which their interval holds what differs from run to run."""


class How(StrEnum):
    """How two numbers were compared."""

    ALTERNATION = "runs in alternation, in pairs"
    OVER_CONTROL = "each over the control that it alternated with"
    INTERVALS = "the two promised intervals"
    REQUESTS = "request by request, over runs"
    ONE_RUN = "request by request, one run a side"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting on both sides; None: not set, or not told."""

    name: str
    a: Json
    b: Json

    @property
    def differs(self) -> bool:
        return self.a != self.b


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One metric on both sides."""

    name: str
    unit: str
    direction: Literal[1, -1, 0]
    """1: more is better; -1: less is; 0: neither."""
    is_objective: bool
    a: Estimate | None
    b: Estimate | None
    contrast: Estimate | None
    """a over b, or of a share or a count a less b, with a 95 % interval; None: not compared."""
    is_ratio: bool
    how: How | None
    different: bool | None
    """Whether they are told apart; None: not compared, or nobody knows."""
    pairs: int | None = None
    """Of runs, where the test is of such."""

    @property
    def better(self) -> Literal["a", "b"] | None:
        """The side that is better, where that is told."""
        if not self.different or not self.direction or self.contrast is None:
            return None
        more = self.contrast.value > (1 if self.is_ratio else 0)
        return "a" if more == (self.direction > 0) else "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two configs side by side."""

    a: Side
    b: Side
    settings: tuple[Setting, ...]
    """All of them, by name."""
    numbers: tuple[Number, ...]
    """Objectives first."""
    latencies: tuple[Number, ...]
    """Means of pairs of requests, a over b; empty where their requests are not the same or not at hand."""
    notes: tuple[str, ...]


def compared(a: Side, b: Side) -> Compared:
    """The comparison of a with b."""
    obstacles = tuple(_obstacles(a, b))
    return Compared(
        a=a,
        b=b,
        settings=_settings(a, b),
        numbers=tuple(_numbers(a, b, comparable=not obstacles)),
        latencies=() if obstacles else tuple(_latencies(a, b)),
        notes=(*a.remarks, *b.remarks, *obstacles, *_cautions(a, b)),
    )


def _settings(a: Side, b: Side) -> tuple[Setting, ...]:
    """What either is launched with; where only one side says it, the other's as it was in effect."""
    names = sorted(
        {*a.settings, *b.settings, *a.effective, *b.effective}, key=lambda name: (name != "model", name)
    )
    return tuple(
        Setting(
            name=name,
            a=a.settings.get(name, a.effective.get(name)),
            b=b.settings.get(name, b.effective.get(name)),
        )
        for name in names
    )


def _obstacles(a: Side, b: Side) -> Iterator[str]:
    """Why the promised numbers cannot be compared."""
    mine, other = a.promised, b.promised
    if mine.traffic.digest != other.traffic.digest:
        yield (
            f"their traffic differs ({mine.traffic.digest[:12]}, {other.traffic.digest[:12]}): what is "
            "promised of one says nothing of the other"
        )
    elif (mine.traffic.speed, mine.traffic.sessions, mine.measure) != (
        other.traffic.speed,
        other.traffic.sessions,
        other.measure,
    ):
        yield "they were measured under different loads: what is promised of one says nothing of the other"
    if a.simulated != b.simulated:
        yield f"{(a if a.simulated else b).label} was simulated, and the other was measured"


def _cautions(a: Side, b: Side) -> Iterator[str]:
    if a.simulated and b.simulated:
        yield "SIMULATED, not measured: both"
    for what, mine, other in (
        ("hardware", a.hardware, b.hardware),
        ("engine version", a.engine_version, b.engine_version),
    ):
        if mine != other:
            both = f"{mine or 'unknown'}, {other or 'unknown'}"
            yield f"their {what} differs ({both}), and may be what is seen here"
    if a.promised.slo != b.promised.slo:
        yield "their SLOs differ, so goodput and capacity count other requests"
    for side in (a, b):
        if side.quality is False:
            yield f"{side.label} failed its check of quality: it does not answer like the reference"
        if side.held is False:
            yield f"{side.label} did not hold its promise when it was verified"


def _numbers(a: Side, b: Side, *, comparable: bool) -> Iterator[Number]:
    aims = [
        METRICS[one.metric].shown for side in (a, b) for one in Goal.of(side.promised.objectives).objectives
    ]
    for name in dict.fromkeys((*aims, *_BESIDE)):
        if name in a.numbers or name in b.numbers:
            metric = next(one for one in METRICS.values() if one.shown == name)
            yield _number(metric, a, b, is_objective=name in aims, comparable=comparable)


def _number(metric: Metric, a: Side, b: Side, *, is_objective: bool, comparable: bool) -> Number:
    mine, other = a.numbers.get(metric.shown), b.numbers.get(metric.shown)
    is_ratio = metric.unit not in _ARITHMETIC
    contrast, how, pairs = _contrast(metric, a, b, is_ratio=is_ratio, comparable=comparable)
    return Number(
        name=metric.shown,
        unit=metric.shown_unit,
        direction=metric.direction,
        is_objective=is_objective,
        a=mine,
        b=other,
        contrast=contrast,
        is_ratio=is_ratio,
        how=how,
        different=None if contrast is None else told(contrast, 1 if is_ratio else 0),
        pairs=pairs,
    )


def _contrast(
    metric: Metric, a: Side, b: Side, *, is_ratio: bool, comparable: bool
) -> tuple[Estimate | None, How | None, int | None]:
    if is_ratio and a.study_id == b.study_id:
        first, second = _over_control(metric, a), _over_control(metric, b)
        if b.is_control and first is not None:
            return first.ratio, How.ALTERNATION, first.pairs
        if a.is_control and second is not None:
            return second.ratio.inverse(1), How.ALTERNATION, second.pairs
        if first is not None and second is not None:
            return ratio_of(first.ratio, second.ratio), How.OVER_CONTROL, min(first.pairs, second.pairs)
    mine, other = a.numbers.get(metric.shown), b.numbers.get(metric.shown)
    if not comparable or mine is None or other is None:
        return None, None, None
    if not is_ratio:
        return difference_of(mine, other), How.INTERVALS, None
    if min(mine.value, other.value) <= 0:
        return None, None, None
    return ratio_of(mine, other), How.INTERVALS, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OverControl:
    ratio: Estimate
    pairs: int


def _over_control(metric: Metric, side: Side) -> _OverControl | None:
    """The config over the control, over the pairs that measured both; None with too few to tell.

    A capacity is known to its bracket alone, which all runs may share: there the brackets are in the interval
    beside what differs from run to run.
    """
    values = [tuple(published(one).get(metric.shown) for one in pair) for pair in side.pairs]
    ratios = [
        ratio_of(mine, other) for mine, other in values if mine and other and min(mine.value, other.value) > 0
    ]
    if len(ratios) < _ENOUGH:
        return None
    if metric.name.startswith("capacity"):
        return _OverControl(ratio=combined(metric.name, ratios), pairs=len(ratios))
    ratio = _as_estimate(difference([math.log(one.value) for one in ratios]))
    return _OverControl(ratio=ratio, pairs=len(ratios))


def _as_estimate(found: Difference) -> Estimate:
    return Estimate(value=found.ratio, low=found.low, high=found.high)


def _latencies(a: Side, b: Side) -> Iterator[Number]:
    """Each latency of the same requests, a over b."""
    pairs = min(len(a.runs), len(b.runs))
    if not pairs or a.label == b.label:
        return
    # The first run is the one that a config was chosen by: of several, the fresh ones are compared.
    mine, other = a.runs[-pairs:], b.runs[-pairs:]
    for name in _LATENCIES:
        try:
            if pairs >= _ENOUGH:
                ratio, how = _as_estimate(latency_difference(mine, other, name)), How.REQUESTS
            else:
                found = compare_replays(mine[0], other[0], name)
                ratio = Estimate(value=found.ratio, low=found.low, high=found.high)
                how = How.ONE_RUN
        except ValueError:
            continue  # no request was answered by both with this latency
        yield Number(
            name=f"{name.removesuffix('_s')} of the same requests",
            unit="ratio",
            direction=-1,
            is_objective=False,
            a=None,
            b=None,
            contrast=ratio,
            is_ratio=True,
            how=how,
            different=told(ratio, 1),
            pairs=pairs,
        )


def differing(settings: Sequence[Setting], a: Side, b: Side) -> tuple[Setting, ...]:
    """The settings that differ and that either side was launched with."""
    asked = {*a.settings, *b.settings}
    return tuple(one for one in settings if one.differs and one.name in asked)
