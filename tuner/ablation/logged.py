"""An ablation as MLflow holds it: one run for the whole, one below it for every run of a cell. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from search_spaces.values import Json
from tuner.ablation.page import report_html
from tuner.ablation.plan import DESIGN, REPORT, Cells, Plan
from tuner.ablation.report import Report, report_json
from tuner.ablation.run import to_do
from tuner.ablation.terminal import report_lines
from tuner.entries import ON_FRONT, STUDY_ID, TRIAL, Entry, trial_entry
from tuner.family import Family, Member
from tuner.records import State, StoredTrial, trial_folder
from tuner.trial_note import trial_note

CELL = "cell"


def artifacts(report: Report) -> dict[str, str]:
    """Files of the ablation's own run, by name."""
    return {
        REPORT: json.dumps(report_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "report.txt": "\n".join(report_lines(report)) + "\n",
        "report.html": report_html(report),
    }


def family(plan: Plan, report: Report, finished: Sequence[StoredTrial], *, drawn: bool = True) -> Family:
    """All that MLflow is to hold of the ablation, as far as it is.

    Args:
        drawn: whether the report's files are among that; they are drawn anew each time.
    """
    return family_of(
        plan,
        finished,
        kind=f"{'simulated · ' if report.simulated else ''}ablation",
        entry=_own(plan, report),
        files=artifacts(report) if drawn else {},
    )


def family_of(
    plan: Cells, finished: Sequence[StoredTrial], *, kind: str, entry: Entry, files: Mapping[str, str]
) -> Family:
    """The runs of whatever is measured cell by cell.

    Args:
        kind: what it is, in words, before its name.
        entry: of the run for the whole.
        files: that run's artifacts, beside the design.
    """
    design = plan.folder / DESIGN
    return Family(
        id=f"{plan.study.id}/{plan.folder.name}",
        study_id=plan.study.id,
        space=plan.study.space_name,
        title=f"{kind} · {plan.study.name}/{plan.folder.name}",
        entry=entry,
        artifacts={
            **files,
            **({DESIGN: design.read_text(encoding="utf-8")} if design.exists() else {}),
        },
        members=tuple(member(plan, trial) for trial in finished),
        started=min((trial.started for trial in finished), default=plan.trial.finished),
        finished=not to_do(plan, finished),
    )


def _own(plan: Plan, report: Report) -> Entry:
    metrics: dict[str, float] = {
        "runs_done": float(report.progress.done),
        "runs_failed": float(report.progress.failed),
    }
    for outcome in report.outcomes:
        for name, effect in (
            ("product", outcome.product),
            ("combination", outcome.combination),
            ("shortfall", outcome.shortfall),
        ):
            if effect is not None:
                metrics |= {f"{name}/{outcome.metric}": effect.ratio}
    params: dict[str, Json] = {
        "study": report.study,
        "trial": report.trial,
        "factors": ", ".join(plan.names),
        "fraction": report.fraction,
        "base": report.base,
    }
    note = "\n\n".join(
        [
            *(["**SIMULATED, not measured.**"] if report.simulated else []),
            *report.summary,
            *report.cannot,
        ]
    )
    return Entry(
        params={name: str(value) for name, value in params.items()},
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


def member(plan: Cells, trial: StoredTrial) -> Member:
    """A run of a cell: all that a trial's run holds, but for what makes it one of the study's own trials."""
    entry = trial_entry(trial, plan.study, trial_note(trial, plan.study), on_front=False)
    run = next(run for run in plan.runs if run.number == trial.number)
    name = plan.name(run.cell)
    tags = {key: text for key, text in entry.tags.items() if key not in (STUDY_ID, TRIAL, ON_FRONT)}
    marked = " (simulated)" if trial.ran.engine == "simulated" else ""
    return Member(
        key=str(trial.number),
        title=f"{name}{marked} · block {run.block + 1}",
        entry=replace(
            entry, tags={**tags, CELL: name, "block": str(run.block + 1), "ablation": plan.folder.name}
        ),
        folder=trial_folder(plan.folder, trial.number),
        failed=trial.state is State.FAILED,
        started=trial.started,
        finished=trial.finished,
    )
