"""A cost surface in a terminal: what will run and how long, and the report as a table."""

from collections.abc import Iterator, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from tuner.ablation.report import EffectReport
from tuner.ablation.surface.plan import SurfacePlan
from tuner.ablation.surface.report import SurfaceCellReport, SurfaceReport
from tuner.ablation.terminal import left_lines
from tuner.ablation.words import times
from tuner.titles import number

_WIDTH = 160


def surface_plan_lines(plan: SurfacePlan, *, left: int, each_s: float | None) -> list[str]:
    """What will run, what is known to fail, and how long it may take."""
    lines = [
        f"cost surface of trial {plan.trial.number} of {plan.study.name}, against {plan.base}",
        f"  depths {_listed(plan.depths)}, at acceptances {_listed(plan.acceptances)} (synthetic)",
        f"{len(plan.points)} cells; {plan.replicates} blocks of all cells, no speculation twice in each: "
        f"{len(plan.runs)} runs, one after the other",
    ]
    return lines + left_lines(plan, left=left, each_s=each_s)


def surface_lines(report: SurfaceReport) -> list[str]:
    """The whole report."""
    mark = " (SIMULATED, not measured)" if report.simulated else ""
    progress = report.progress
    failed = f", {progress.failed} failed" if progress.failed else ""
    return [
        f"Cost of speculation ({report.method}) of {report.title}, study {report.study}{mark}",
        report.load,
        f"{progress.done} of {progress.planned} runs done{failed}, {progress.blocks} blocks; ratios are "
        f"against {report.base}, with 95 % intervals; * told from 1",
        "",
        *_table(report),
        "",
        *_part("What it shows", report.summary),
        *_part("Cannot be estimated", report.cannot),
        *_part("Notes", report.notes),
    ]


def _table(report: SurfaceReport) -> list[str]:
    table = Table(title="By depth and acceptance", title_justify="left")
    rate = [] if report.rate is None else [report.rate]
    for name in ("depth", "acceptance", "TPOT", "step time", *rate, "tok/step", "batch", "runs"):
        table.add_column(name)
    table.add_row("none", "", "", "", *("" for _ in rate), *_levels(report.reference))
    for cell in report.cells:
        ratios = [_ratio(cell.ratios.get(name)) for name in ("tpot_mean_ms", "step_ms", *rate)]
        table.add_row(str(cell.depth), f"{cell.acceptance:g}", *ratios, *_levels(cell))
    page = StringIO()
    Console(file=page, width=max(Console().width, _WIDTH), force_terminal=False).print(table)
    return [line.rstrip() for line in page.getvalue().rstrip().splitlines()]


def _levels(cell: SurfaceCellReport) -> Iterator[str]:
    for name in ("accepted_tokens_per_target_step", "batch_mean"):
        found = cell.metrics.get(name)
        yield "–" if found is None else number(found.mean)
    yield str(sum(run.state == "measured" for run in cell.runs)) if cell.state == "measured" else cell.state


def _ratio(effect: EffectReport | None) -> str:
    return "?" if effect is None else f"{times(effect)}{' *' if effect.told else ''}"


def _part(head: str, lines: Sequence[str]) -> list[str]:
    return [head, *(f"  {line}" for line in lines), ""] if lines else []


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
