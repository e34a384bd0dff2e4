"""A cost surface as MLflow holds it: one run for the whole, one below it for every run of a cell. Pure."""

import json
from collections.abc import Sequence

from tuner.ablation.logged import family_of
from tuner.ablation.plan import REPORT
from tuner.ablation.report import report_json
from tuner.ablation.surface.plan import SurfacePlan
from tuner.ablation.surface.report import SurfaceReport
from tuner.ablation.surface.terminal import surface_lines
from tuner.entries import Entry
from tuner.family import Family
from tuner.records import StoredTrial


def surface_artifacts(report: SurfaceReport) -> dict[str, str]:
    """Files of the surface's own run, by name."""
    return {
        REPORT: json.dumps(report_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "report.txt": "\n".join(surface_lines(report)) + "\n",
    }


def surface_family(
    plan: SurfacePlan, report: SurfaceReport, finished: Sequence[StoredTrial], *, drawn: bool = True
) -> Family:
    """All that MLflow is to hold of the surface, as far as it is.

    Args:
        drawn: whether the report's files are among that.
    """
    return family_of(
        plan,
        finished,
        kind=f"{'simulated · ' if report.simulated else ''}cost surface",
        entry=_own(plan, report),
        files=surface_artifacts(report) if drawn else {},
    )


def _own(plan: SurfacePlan, report: SurfaceReport) -> Entry:
    metrics: dict[str, float] = {
        "runs_done": float(report.progress.done),
        "runs_failed": float(report.progress.failed),
    }
    for one in report.break_even:
        if one.acceptance is not None:
            metrics[f"break_even/depth_{one.depth}/{one.metric}"] = one.acceptance
    note = "\n\n".join(
        [*(["**SIMULATED, not measured.**"] if report.simulated else []), *report.summary, *report.cannot]
    )
    return Entry(
        params={
            "study": report.study,
            "trial": str(report.trial),
            "depths": ", ".join(str(depth) for depth in report.depths),
            "acceptances": ", ".join(f"{acceptance:g}" for acceptance in report.acceptances),
            "base": report.base,
        },
        metrics=metrics,
        series={},
        tags={
            "study": report.study,
            "ablation": plan.folder.name,
            "ablated_trial": str(report.trial),
            "simulated": "true" if report.simulated else "false",
            "tuner_version": plan.study.tuner_version,
            "mlflow.note.content": note[:5000],
        },
    )
