"""The numbers that an ablation is judged by, and their effects: a rate, TTFT, TPOT and E2E."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from objectives.effects import Effects, FactorEffects, Interaction
from objectives.factorial import Alias, Term
from objectives.measurement import Mode
from objectives.metrics import METRICS, latency_metric
from tuner.ablation.readings import NONE, Readings, effect_report
from tuner.ablation.report import (
    AliasReport,
    EffectReport,
    FactorEffectReport,
    InteractionReport,
    OutcomeReport,
)
from tuner.ablation.words import matters, promise
from tuner.loads import mode

_RATES = ("goodput_rps", "throughput_tokens_per_s")
TITLES = {
    "capacity_rps": "capacity",
    "goodput_rps": "goodput",
    "throughput_tokens_per_s": "throughput",
}
PINNED = 0.97
"""Share of the offered requests from which on a cell is taken to keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One number with what can be told of it."""

    metric: str
    """Its name inside."""
    report: OutcomeReport


def judged(readings: Readings) -> tuple[Judged, ...]:
    """The rate first, then the latencies; what none on did not measure is not there."""
    found = []
    for metric in (*_rate(readings), *(_latency(readings, name) for name in ("ttft", "tpot", "e2e"))):
        effects = readings.effects(metric)
        if effects is not None:
            found.append(Judged(metric=metric, report=_report(readings, metric, effects)))
    return tuple(found)


def _rate(readings: Readings) -> Iterator[str]:
    """The rate that the load measures and every cell has; else the first that none on has."""
    own = ("capacity_rps",) if mode(readings.plan.study) is Mode.CAPACITY else ()
    cells = {metric: {o.cell for o in readings.observations(metric)} for metric in (*own, *_RATES)}
    whole = [metric for metric in cells if cells[metric] >= set(readings.measured)]
    yield from (whole or [metric for metric in cells if NONE in cells[metric]])[:1]


def _latency(readings: Readings, name: str) -> str:
    """The mean, or a percentile where failed requests make the mean of some run infinite."""
    metrics = [latency_metric(name, point) for point in (None, 95, 50)]
    return max(metrics, key=lambda metric: len(readings.observations(metric)))


def _report(readings: Readings, metric: str, effects: Effects) -> OutcomeReport:
    known = METRICS[metric]
    more_is_better = not metric.endswith("_s") or metric in TITLES
    step, many, cells_seen = readings.step(metric), len(readings.plan.names), len(effects.cells) + 1
    cells = {
        readings.plan.name(cell): told
        for cell, effect in effects.cells.items()
        if (told := effect_report(effect, step=step)) is not None
    }
    combination = effect_report(effects.combination, step=step)
    # Weights: 1 on each alone and -n on none; then 1 on all, n - 1 on none and -1 on each alone.
    product = effect_report(effects.product, step=step, norm=math.sqrt(many + many**2))
    shortfall = effect_report(effects.shortfall, step=step, norm=math.sqrt(1 + (many - 1) ** 2 + many))
    averaged = 2 / math.sqrt(cells_seen)
    interactions = tuple(
        _interaction(pair, more_is_better, step=step, norm=2 * averaged) for pair in effects.interactions
    )
    title = TITLES.get(metric) or _latency_title(metric)
    return OutcomeReport(
        metric=known.shown,
        title=title,
        unit=known.shown_unit,
        better="more" if more_is_better else "less",
        informative=not _pinned(readings, metric),
        cells=cells,
        factors=tuple(
            _factor(name, told, step=step, norm=averaged) for name, told in effects.factors.items()
        ),
        interactions=interactions,
        product=product,
        combination=combination,
        shortfall=shortfall,
        sentence=promise(
            title,
            factors=len(readings.plan.names),
            more_is_better=more_is_better,
            product=product,
            combination=combination,
            shortfall=shortfall,
            interactions=interactions,
        ),
        noise=effects.noise,
        degrees_of_freedom=effects.degrees_of_freedom,
    )


def _latency_title(metric: str) -> str:
    name, point, _ = metric.split("_")
    return f"{name.upper()} {point}"


def _factor(name: str, told: FactorEffects, *, step: float, norm: float) -> FactorEffectReport:
    return FactorEffectReport(
        factor=name,
        isolated=effect_report(told.isolated, step=step),
        in_company=effect_report(told.in_company, step=step),
        average=effect_report(told.average, step=step, norm=norm),
        mixed_with=_terms(told.mixed_with),
        aliases=_aliases(told.aliases),
    )


def _interaction(told: Interaction, more_is_better: bool, *, step: float, norm: float) -> InteractionReport:
    effect = effect_report(told.effect, step=step, norm=norm)
    return InteractionReport(
        pair=told.pair,
        effect=effect,
        contend=_contend(effect, more_is_better),
        mixed_with=_terms(told.mixed_with),
        aliases=_aliases(told.aliases),
    )


def _contend(effect: EffectReport | None, more_is_better: bool) -> bool | None:
    if effect is None or not matters(effect):
        return None
    return (effect.ratio < 1) is more_is_better


def _terms(terms: Sequence[Term]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(sorted(term)) for term in terms)


def _aliases(aliases: Sequence[Alias]) -> tuple[AliasReport, ...]:
    return tuple(AliasReport(factors=tuple(sorted(alias.term)), share=alias.share) for alias in aliases)


def _pinned(readings: Readings, metric: str) -> bool:
    """Whether every cell kept up with the offered load, so that its rate is the load's own."""
    if metric not in _RATES or mode(readings.plan.study) is Mode.CLOSED:
        return False
    served = "goodput_rps" if metric == "goodput_rps" else "throughput_rps"
    for cell in readings.measured:
        offered, rate = readings.mean(cell, "offered_rps"), readings.mean(cell, served)
        if not offered or rate is None or rate < PINNED * offered:
            return False
    return True


def gain(effect: EffectReport, better: str) -> bool:
    """Whether a told effect is for the better."""
    return (effect.ratio > 1) is (better == "more")
