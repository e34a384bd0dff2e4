"""An ablation in a terminal: what will run and how long, a line an event, the report as tables."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO

from rich.console import Console
from rich.table import Table

from objectives.metrics import METRICS
from tuner.ablation.plan import Cells, Plan
from tuner.ablation.report import (
    AliasReport,
    CellReport,
    EffectReport,
    MeanReport,
    OutcomeReport,
    Report,
)
from tuner.ablation.run import AblationEvent, Far, RunFinished, RunRetried, RunStarted, RunWaiting
from tuner.ablation.words import listed, term, times
from tuner.titles import number

_CELL_COLUMNS = (
    ("accepted_tokens_per_target_step", "tok/step"),
    ("step_ms", "step ms"),
    ("batch_mean", "batch"),
    ("batch_occupancy", "slots"),
    ("kv_occupancy", "KV"),
    ("prefix_hit_rate", "prefix hits"),
    ("preemptions", "preempt."),
    ("bytes_per_token", "bytes/tok"),
    ("flops_per_token", "FLOPs/tok"),
)
_SHARES = frozenset(metric.shown for metric in METRICS.values() if metric.unit == "share")
_WIDTH = 160
"""Tables are as wide as they need to be: a line that a narrow terminal folds can still be read."""


@dataclass
class Progress:
    """Turns an ablation's events into plain lines with the clock."""

    say: Callable[[str], None]
    started: float = field(default_factory=time.perf_counter)

    def show(self, event: AblationEvent | str) -> None:
        """Say one line; a string is said as it is."""
        minutes, seconds = divmod(int(time.perf_counter() - self.started), 60)
        self.say(f"[{minutes:02d}:{seconds:02d}] {event if isinstance(event, str) else _event_line(event)}")


def _event_line(event: AblationEvent) -> str:
    match event:
        case RunStarted(run=run, cell=cell, far=far):
            return f"run {run.number} started: {cell}, block {run.block + 1}{_far(far)}"
        case RunWaiting(cell=cell, running_s=seconds, far=far):
            return f"running {cell} for {seconds:.0f} s{_far(far)}"
        case RunRetried(cell=cell, reason=reason):
            return f"{cell} is run again: {reason}"
        case RunFinished(run=run, cell=cell, stored=stored, far=far):
            what = "measured" if stored.measurement else f"failed, {stored.cause}: {stored.reason}"
            return f"run {run.number} {cell} {what}{_far(far)}"


def _far(far: Far) -> str:
    left = "" if far.eta_s is None or far.done >= far.total else f", about {about(far.eta_s)} left"
    return f" [{far.done} of {far.total} done{left}]"


def about(seconds: float) -> str:
    """`40 s`, `7 min`, `3 h`."""
    if seconds >= 5400:
        return f"{seconds / 3600:.2g} h"
    if seconds >= 90:
        return f"{math.ceil(seconds / 60)} min"
    return f"{math.ceil(seconds / 10) * 10} s" if seconds >= 10 else f"{seconds:.1g} s"


def plan_lines(plan: Plan, *, left: int, each_s: float | None) -> list[str]:
    """What will run, what is known to fail, and how long it may take."""
    lines = [f"ablation of trial {plan.trial.number} of {plan.study.name}, against {plan.base}"]
    for factor in plan.factors:
        told = ", ".join(
            f"{change.setting} {_value(change.off)} → {_value(change.on)}" for change in factor.changes
        )
        lines.append(f"  {factor.name}: {told}")
    kind = {"full": "every combination", "V": "a resolution-V fraction", "IV": "a resolution-IV fraction"}
    lines.append(
        f"{kind[plan.design.fraction]}, {len(plan.design.cells)} cells; {plan.replicates} blocks of all "
        f"cells, none on twice in each: {len(plan.runs)} runs, one after the other"
    )
    return lines + left_lines(plan, left=left, each_s=each_s)


def left_lines(plan: Cells, *, left: int, each_s: float | None) -> list[str]:
    """Which cells are known to fail, how many runs are left, and how long they may take."""
    lines = [f"not run, known to fail: {plan.name(cell)}: {why}" for cell, why in plan.refused.items()]
    if left < len(plan.runs):
        lines.append(f"{len(plan.runs) - left} of them are not to be run any more")
    if each_s is None:
        lines.append(f"{left} runs; how long they take is not known")
    else:
        lines.append(f"{left} runs of about {about(each_s)}: about {about(left * each_s)}")
    return lines


def report_lines(report: Report) -> list[str]:
    """The whole report."""
    mark = " (SIMULATED, not measured)" if report.simulated else ""
    progress = report.progress
    failed = f", {progress.failed} failed" if progress.failed else ""
    return [
        f"Ablation of {report.title}, study {report.study}{mark}",
        report.load,
        f"{progress.done} of {progress.planned} runs done{failed}, {progress.blocks} blocks; ratios are "
        f"against {report.base}, with 95 % intervals; * told from 1",
        *(f"  {line}" for line in _factors(report)),
        "",
        *(line for outcome in report.outcomes for line in _outcome(outcome)),
        *_cells(report),
        *_listed("What it shows", report.summary),
        *_listed("With all others on", [f"{d.factor}: {d.verdict}; {d.why}" for d in report.drops]),
        *_without(report),
        *_listed("Questions", [f"{answer.question} {answer.answer}" for answer in report.answers]),
        *_listed("Cannot be estimated", report.cannot),
        *_listed("Notes", report.notes),
    ]


def _factors(report: Report) -> Iterator[str]:
    for factor in report.factors:
        told = ", ".join(f"{one.setting} {_value(one.off)} → {_value(one.on)}" for one in factor.settings)
        yield f"{factor.name}: {told}"
    if report.same:
        told = ", ".join(f"{one.setting} {_value(one.on)}" for one in report.same)
        yield f"the same in every cell: {told}"


def _outcome(outcome: OutcomeReport) -> list[str]:
    table = Table(title=f"{outcome.title} ({outcome.better} is better)", title_justify="left")
    held = any(
        [*(factor.aliases for factor in outcome.factors), *(pair.aliases for pair in outcome.interactions)]
    )
    for name in ("", "alone", "with all others on", "on average", *(["held with it"] if held else [])):
        table.add_column(name)
    for factor in outcome.factors:
        table.add_row(
            factor.factor,
            _effect(factor.isolated),
            _effect(factor.in_company),
            _effect(factor.average) if not factor.mixed_with else _mixed(factor.mixed_with),
            *([_aliases(factor.aliases)] if held else []),
        )
    for pair in outcome.interactions:
        table.add_row(
            term(pair.pair),
            "",
            "",
            _effect(pair.effect) if not pair.mixed_with else _mixed(pair.mixed_with),
            *([_aliases(pair.aliases)] if held else []),
        )
    return [*_printed(table), ""]


def _effect(effect: EffectReport | None) -> str:
    return "?" if effect is None else f"{times(effect)}{' *' if effect.told else ''}"


def _mixed(mixed: Sequence[Sequence[str]]) -> str:
    shown = [term(factors) for factors in mixed[:2]]
    more = f" and {len(mixed) - 2} more" if len(mixed) > 2 else ""
    return f"mixed with {', '.join(shown)}{more}"


def _aliases(aliases: Sequence[AliasReport]) -> str:
    shown = [f"{alias.share:+.2g} {term(alias.factors)}" for alias in aliases[:2]]
    more = f" and {len(aliases) - 2} more" if len(aliases) > 2 else ""
    return f"aliased: {', '.join(shown)}{more}" if shown else ""


def _cells(report: Report) -> list[str]:
    there = {name for cell in report.cells for name in cell.metrics}
    judged = [(outcome.metric, f"{outcome.title}{_unit(outcome.unit)}") for outcome in report.outcomes]
    engine = [(name, title) for name, title in _CELL_COLUMNS if name in there]
    return [
        *_cell_table("Cells, means over their runs", report, judged),
        *_cell_table("What the engine did in them", report, engine),
        *(line for cell in report.cells for line in _speculation(cell)),
        "",
    ]


def _cell_table(title: str, report: Report, columns: Sequence[tuple[str, str]]) -> list[str]:
    table = Table(title=title, title_justify="left")
    table.add_column("cell")
    for _, heading in columns:
        table.add_column(heading, justify="right")
    for cell in report.cells:
        if cell.state == "measured":
            table.add_row(cell.name, *(_mean(name, cell.metrics.get(name)) for name, _ in columns))
        else:
            table.add_row(cell.name, cell.state)
    return _printed(table)


def _unit(unit: str) -> str:
    return f", {unit}"


def _speculation(cell: CellReport) -> Iterator[str]:
    parts = []
    if cell.accepted_per_position:
        parts.append(
            "accepted by position " + ", ".join(f"{share:.0%}" for share in cell.accepted_per_position)
        )
    if cell.draft_share is not None:
        parts.append(f"{cell.draft_share:.0%} of the step is drafting and verifying more")
    if parts:
        yield f"{cell.name}: {'; '.join(parts)}"


def _mean(name: str, mean: MeanReport | None) -> str:
    if mean is None:
        return "?"
    return f"{mean.mean:.0%}" if name in _SHARES else _large(mean.mean)


def _large(value: float) -> str:
    for power, sign in ((12, "T"), (9, "G"), (6, "M")):
        if abs(value) >= 10**power:
            return f"{number(value / 10**power)}{sign}"
    return number(value)


def _without(report: Report) -> list[str]:
    rest = report.without
    if rest is None:
        return []
    lines = []
    if rest.dropped:
        against = [
            f"{outcome.title} {times(rest.against_all[outcome.metric])}"
            for outcome in report.outcomes
            if outcome.metric in rest.against_all
        ]
        measured = f", against all on: {listed(against)}" if against else ", which was not measured"
        lines.append(f"The config without {listed(rest.dropped)}{measured}")
    else:
        lines.append("Nothing that is told to be worth dropping; the trial's own config")
    if rest.config is not None:
        lines.append("  " + " ".join(f"{path}={_value(value)}" for path, value in rest.config.items()))
    lines += [f"  {rest.command}", *(f"  next: {line}" for line in rest.next), ""]
    return lines


def _listed(head: str, lines: Sequence[str]) -> list[str]:
    return [head, *(f"  {line}" for line in lines), ""] if lines else []


def _printed(table: Table) -> list[str]:
    page = StringIO()
    width = max(Console().width, _WIDTH)
    Console(file=page, width=width, force_terminal=False).print(table)
    return [line.rstrip() for line in page.getvalue().rstrip().splitlines()]


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
