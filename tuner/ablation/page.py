"""An ablation's report as one HTML file: pictures beside the numbers they are made of, no network needed.

Everything of the report is escaped by the template; pictures are inline SVG, so the page needs no script and
prints as it looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from objectives.metrics import METRICS
from tuner.ablation.pictures import Axis, Bar, Panels, Waterfall, Way, bars, panels, waterfall, way
from tuner.ablation.report import AliasReport, EffectReport, MeanReport, OutcomeReport, Report, Verdict
from tuner.ablation.words import SLIGHT, listed, term, times
from tuner.titles import number

_BESIDE = (
    ("accepted_tokens_per_target_step", "accepted tokens per target step"),
    ("batch_occupancy", "batch slots in use"),
    ("kv_occupancy", "KV blocks in use"),
)
"""Drawn beside the rate and the latencies."""
_MORE = (
    ("step_ms", "target step, ms"),
    ("draft_acceptance", "draft tokens accepted"),
    ("batch_mean", "batch, mean"),
    ("waiting_mean", "waiting, mean"),
    ("prefix_hit_rate", "prefix hits"),
    ("preemptions", "preemptions"),
    ("bytes_per_token", "bytes per accepted token"),
    ("flops_per_token", "FLOPs per accepted token"),
)
"""In the table only."""
_SHARES = frozenset(metric.shown for metric in METRICS.values() if metric.unit == "share")
_DESIGNS = {
    "full": "every combination",
    "V": "a fraction of resolution V",
    "IV": "a fraction of resolution IV",
}
_WAYS: Mapping[Way, str] = {
    "better": "better",
    "worse": "worse",
    "slight": f"told, but less than {SLIGHT - 1:.0%}",
    "not told": "not told from 1",
}
_VERDICTS: Mapping[Verdict, str] = {
    "keep": "keep",
    "drop": "drop",
    "trade": "a trade",
    "cannot tell": "cannot tell",
}
_ALIASES = 4
"""Partial ones shown of an estimate; report.json has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A number with its pictures."""

    outcome: OutcomeReport
    waterfall: Waterfall
    effects: Axis
    """Of all its effects, for the tables."""
    panels: Panels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A metric over the cells."""

    metric: str
    title: str
    bars: Mapping[str, Bar]
    """By cell; empty for a column of numbers alone."""


def report_html(report: Report) -> str:
    """The whole page. The same report gives the same page."""
    return _template().render(
        report=report,
        numbers=[_drawn(outcome, report) for outcome in report.outcomes],
        columns=_columns(report),
        more=_present(report, _MORE),
        design=_DESIGNS[report.fraction],
        config=None if report.without is None else _yaml(report.without.config),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tuner.ablation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "times": times,
        "number": number,
        "many": lambda count, word: f"{count} {word}{'' if count == 1 else 's'}",
        "percent": lambda place: f"{100 * place:.2f}%",
        "term": term,
        "listed": listed,
        "value": _value,
        "aliases": _aliases,
        "verdict": _VERDICTS.__getitem__,
    }
    environment.globals |= {"way_words": _way_words, "quantity": _quantity, "share_text": _share}
    return environment.get_template("page.html.jinja")


def _drawn(outcome: OutcomeReport, report: Report) -> _Drawn:
    factors = (e for f in outcome.factors for e in (f.isolated, f.in_company, f.average))
    return _Drawn(
        outcome=outcome,
        waterfall=waterfall(outcome),
        effects=Axis.of([*factors, *(pair.effect for pair in outcome.interactions)]),
        panels=panels(outcome, report.cells),
    )


def _columns(report: Report) -> list[_Column]:
    """Rate and latencies, acceptance, occupancy: what was measured of them anywhere."""
    own = [(outcome.metric, f"{outcome.title}, {outcome.unit}") for outcome in report.outcomes]
    return [
        _Column(
            metric=metric,
            title=title,
            bars=bars(report.cells, metric, full=1.0 if metric in _SHARES else None),
        )
        for metric, title in _present(report, [*own, *_BESIDE])
    ]


def _present(report: Report, columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(metric, title) for metric, title in columns if any(metric in c.metrics for c in report.cells)]


def _yaml(config: Mapping[str, object] | None) -> str | None:
    if config is None:
        return None
    text: str = yaml.safe_dump({**config}, sort_keys=False, allow_unicode=True)
    return text


def _way_words(effect: EffectReport, outcome: OutcomeReport) -> str:
    if effect.low is None:
        return "measured once, so not told from 1"
    return _WAYS[way(effect, outcome)]


def _aliases(aliases: Sequence[AliasReport]) -> str:
    """What an estimate holds of other terms: whole ones, then the largest shares."""
    whole = [term(alias.factors) for alias in aliases if abs(alias.share) > 0.999]
    parts = sorted((a for a in aliases if abs(a.share) <= 0.999), key=lambda a: -abs(a.share))
    words = [f"aliased with {listed(whole)}"] if whole else []
    if parts:
        shown = [f"{number(alias.share)} of {term(alias.factors)}" for alias in parts[:_ALIASES]]
        words.append(f"holds {listed(shown)}{', and more' if len(parts) > _ALIASES else ''}")
    return "; ".join(words)


def _quantity(metric: str, mean: MeanReport) -> str:
    """`12.3`, `45%`, `1.2 G`; with the runs' ends where they differ as written."""
    least, middle, most = (_written(metric, value) for value in (mean.least, mean.mean, mean.most))
    return middle if least == most else f"{middle} ({least} to {most})"


def _written(metric: str, value: float) -> str:
    if metric in _SHARES:
        return _share(value)
    for power, sign in ((12, " T"), (9, " G"), (6, " M")):
        if abs(value) >= 10.0**power:
            return f"{number(value / 10.0**power)}{sign}"
    return number(value)


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 else f"{100 * value:.2g}%"


def _value(value: object) -> str:
    match value:
        case None:
            return "engine default"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)
