"""A cost surface as MLflow holds it: one run for the whole, one below it for every run of a cell. Pure."""

import json
from collections.abc import Sequence

from tuner.ablation.logged import member
from tuner.ablation.plan import DESIGN, REPORT
from tuner.ablation.report import report_json
from tuner.ablation.run import to_do
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
    kind = "simulated · " if report.simulated else ""
    own = f"{plan.study.name}/{plan.folder.name}"
    design = plan.folder / DESIGN
    return Family(
        id=f"{plan.study.id}/{plan.folder.name}",
        study_id=plan.study.id,
        space=plan.study.space_name,
        title=f"{kind}cost surface · {own}",
        entry=_own(plan, report),
        artifacts={
            **(surface_artifacts(report) if drawn else {}),
            **({DESIGN: design.read_text(encoding="utf-8")} if design.exists() else {}),
        },
        members=tuple(member(plan, trial) for trial in finished),
        started=min((trial.started for trial in finished), default=plan.trial.finished),
        finished=not to_do(plan, finished),
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
