"""From the runs of a verification to what became of each promise. Pure; docs/verify.md has the rule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from objectives.goal import Objective
from objectives.held import Verdict, ratio_held, run_mean, share_held
from objectives.measurement import Estimate, Measurement, Record
from objectives.metrics import METRICS
from objectives.slo import Slo
from search_spaces.measure import Capacity
from tuner.titles import interval, number
from tuner.verify.promised import Promised
from tuner.verify.verification import Kept

RATE = 0.05
"""Most that a verification in which every promise is true fails by chance, all promises together."""

JOINT = "slo_attainment"
"""Name of the promise that requests meet all limits at once, where there are several."""

_NORMAL = 1.959963984540054
"""Standard errors from a mean to the ends of its 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run of the config or of the control that was measured."""

    measurement: Measurement
    met: Mapping[str, float]
    """Share of the requests that met each limit of the SLO, by its name (`limit_shares`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A run of the config and one of the control beside it, on traffic of their own. None: not measured."""

    config: Side | None
    control: Side | None


def limit_shares(records: Sequence[Record], slo: Slo) -> dict[str, float]:
    """Share of these requests that met each limit, by its name; with several limits, all at once as well."""
    single = {
        f"{latency}_p{round(slo.attainment * 100):02}_ms": replace(
            Slo(attainment=slo.attainment), **{f"{latency}_s": limit}
        )
        for latency, limit in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2e", slo.e2e_s))
        if limit is not None
    }
    wanted = single | ({JOINT: slo} if len(single) > 1 else {})
    return {name: sum(map(one.met_by, records)) / len(records) for name, one in wanted.items()}


def limits(slo: Slo) -> tuple[str, ...]:
    """Names of the promises that an SLO makes."""
    names = tuple(slo.limits())
    return (*names, JOINT) if len(names) > 1 else names


def judged(promised: Promised, pairs: Sequence[Pair]) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
    """What became of each promise; and what was not promised, or cannot be judged, one sentence each."""
    goal, unjudged = promised.goal, []
    objectives = []
    for objective in goal.objectives:
        value = promised.values.get(objective.metric)
        if value is None or not _positive(value.value):
            unjudged.append(f"{objective.name}: the study has no number to promise")
        elif objective.metric == JOINT and promised.slo.limits():
            unjudged.append(f"{objective.name}: it is judged as the limits are, not against the control")
        else:
            objectives.append(objective)
    names = limits(promised.slo)
    if names and not promised.slo_held:
        unjudged.append("the SLO: it did not hold at this load in the study either, so it is not promised")
        names = ()
    if not objectives and not names:
        return (), tuple(unjudged)
    level = RATE / (len(objectives) + len(names))
    kept = [_objective(objective, promised, pairs, level) for objective in objectives]
    kept += [_limit(name, promised.slo, pairs, level) for name in names]
    return tuple(kept), tuple(unjudged)


def _objective(objective: Objective, promised: Promised, pairs: Sequence[Pair], level: float) -> Kept:
    name, metric = objective.metric, METRICS[objective.metric]
    mine = [pair.config.measurement for pair in pairs if pair.config is not None]
    both = [
        (pair.config.measurement, pair.control.measurement)
        for pair in pairs
        if pair.config is not None and pair.control is not None
    ]
    wanted = promised.values[name]
    control = None if promised.control is None else promised.control.get(name)
    beside = control is not None and _positive(control.value) and bool(both)
    beside = beside and all(_positive(other.value(name)) for _, other in both)
    more = objective.direction == "maximise"
    better: Literal["more", "less"] = "more" if more else "less"
    blank = Kept(
        name=objective.name,
        kind="objective",
        unit=metric.shown_unit,
        better=better,
        promised=metric.show(wanted),
        verified=None,
        control=None,
        ratio=None,
        against_control=beside,
        bound=None,
        noticed=None,
        held=False,
        why="no run of the config was measured",
    )
    values = [one.value(name) for one in mine]
    lacking = sum(not _positive(value) for value in values)
    if not values or lacking:
        why = f"{lacking} of {len(values)} runs had no {objective.name} to speak of" if values else blank.why
        return replace(blank, why=why)
    if beside:
        assert control is not None
        logs = [_log(one, name) - _log(other, name) for one, other in both]
        base = math.log(wanted.value) - math.log(control.value)
        first = [both[0][0].metrics[name], both[0][1].metrics[name], wanted, control]
    else:
        logs, base = [_log(one, name) for one in mine], math.log(wanted.value)
        first = [mine[0].metrics[name], wanted]
    requests = mine[0].requests
    verdict = ratio_held(
        logs,
        base,
        more_is_better=more,
        level=level,
        least=_least(name, promised, requests, sides=2 if beside else 1),
        within=_within(first),
    )
    return replace(
        blank,
        verified=metric.show(run_mean([_value(one, name) for one in mine], logarithmic=True)),
        control=metric.show(run_mean([_value(other, name) for _, other in both], logarithmic=True))
        if beside
        else None,
        ratio=verdict.estimate,
        bound=verdict.bound,
        noticed=verdict.noticed,
        held=verdict.held,
        why=_ratio_words(verdict, more=more, beside=beside),
    )


def _limit(name: str, slo: Slo, pairs: Sequence[Pair], level: float) -> Kept:
    mine = [pair.config for pair in pairs if pair.config is not None]
    blank = Kept(
        name=name,
        kind="limit",
        unit="share",
        better="more",
        promised=Estimate(value=slo.attainment),
        verified=None,
        control=None,
        ratio=None,
        against_control=False,
        bound=None,
        noticed=None,
        held=False,
        why="no run of the config was measured",
    )
    if not mine:
        return blank
    requests = min(side.measurement.requests for side in mine)
    verdict = share_held([side.met[name] for side in mine], requests, slo.attainment, level=level)
    seen = f"{verdict.estimate.value:.1%} of the requests met it, {slo.attainment:.0%} are to"
    noticed = 0.0 if verdict.noticed is None else verdict.noticed
    return replace(
        blank,
        verified=verdict.estimate,
        bound=verdict.bound,
        noticed=verdict.noticed,
        held=verdict.held,
        why=f"{seen}; told not held from {noticed:.1%} down" if verdict.held else seen,
    )


def _ratio_words(verdict: Verdict, *, more: bool, beside: bool) -> str:
    over = "over the control, " if beside else ""
    seen = f"{over}×{interval(verdict.estimate)} of what was promised"
    if verdict.bound is None or verdict.noticed is None:
        return f"{seen}; one run without an interval tells nothing, so verify with more --pairs"
    if verdict.held:
        return f"{seen}; told not held from ×{number(verdict.noticed)} {'down' if more else 'up'}"
    return f"{seen}, ×{number(verdict.bound)} at {'most' if more else 'least'}"


def _least(name: str, promised: Promised, requests: int, *, sides: int) -> float:
    """Deviation of a ratio that comes of steps alone: of the grid of speeds, or one request more or less.

    A value rounded to a step d is off by up to d / 2 either way, evenly: variance d² / 12. Of a rare
    event the count varies by its own mean, of which one is the least that can be counted on.
    """
    if name.startswith("capacity") and isinstance(promised.measure, Capacity):
        return math.log1p(promised.measure.resolution) * math.sqrt(sides / 12)
    if name.startswith(("goodput", JOINT, "cost")):
        return math.sqrt(sides) / requests
    return 0.0


def _within(estimates: Sequence[Estimate]) -> float | None:
    """Deviation of a ratio of these by their own intervals, as if they knew nothing of each other."""
    found = 0.0
    for estimate in estimates:
        ends = [end for end in (estimate.low, estimate.high) if end is not None and _positive(end)]
        if not ends:
            return None
        found += max(abs(math.log(end / estimate.value)) for end in ends) ** 2
    return math.sqrt(found) / _NORMAL


def _positive(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _value(measurement: Measurement, name: str) -> float:
    return measurement.metrics[name].value


def _log(measurement: Measurement, name: str) -> float:
    return math.log(measurement.metrics[name].value)
