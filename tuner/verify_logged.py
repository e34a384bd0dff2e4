"""A verification as MLflow holds it: a run below the study's for the whole, one below that for every run."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from objectives.measurement import Estimate
from search_spaces.values import Json
from tuner.ablation.plan import DESIGN
from tuner.ablation.run import to_do
from tuner.entries import ON_FRONT, STUDY_ID, TAG_LENGTH, TRIAL, Entry, trial_entry
from tuner.family import Family, Member
from tuner.records import State, StoredTrial, StudyFile, trial_folder
from tuner.trial_note import trial_note
from tuner.verify.stored import VERIFICATION, verification_json
from tuner.verify.verification import Verification
from tuner.verify.words import verification_lines
from tuner.verify_plan import VerifyPlan


def verify_family(
    plan: VerifyPlan, study: StudyFile, finished: Sequence[StoredTrial], found: Verification | None
) -> Family:
    """All that MLflow is to hold of a verification, as far as it is.

    Args:
        found: what it came to; None while it runs.
    """
    design = plan.folder / DESIGN
    simulated = "simulated · " if plan.promised.engine == "simulated" else ""
    texts = {DESIGN: design.read_text(encoding="utf-8")} if design.exists() else {}
    if found is not None:
        texts[VERIFICATION] = json.dumps(verification_json(found), indent=2, allow_nan=False) + "\n"
        texts["verification.txt"] = "\n".join(verification_lines(found)) + "\n"
    return Family(
        id=f"{plan.promised.study_id}/verify/{plan.folder.name}",
        study_id=plan.promised.study_id,
        space=plan.promised.space,
        title=f"{simulated}verification · {plan.promised.study}/{plan.folder.name}",
        entry=_own(plan, found),
        artifacts=texts,
        members=tuple(_member(plan, study, trial) for trial in finished),
        started=min((trial.started for trial in finished), default=study.created),
        finished=found is not None and not to_do(plan, finished),
    )


def _own(plan: VerifyPlan, found: Verification | None) -> Entry:
    params: dict[str, Json] = {
        "study": plan.promised.study,
        "trial": plan.promised.trial,
        "pairs": plan.pairs,
        "traffic": plan.traffic.words,
        "stress": plan.stress,
    }
    tags = {
        "study": plan.promised.study,
        "verified_trial": str(plan.promised.trial),
        "verification": plan.folder.name,
        "simulated": "true" if plan.promised.engine == "simulated" else "false",
    }
    if found is not None:
        note = "\n\n".join(verification_lines(found))
        tags |= {"held": "true" if found.held else "false", "mlflow.note.content": note[:TAG_LENGTH]}
    return Entry(
        params={name: str(value) for name, value in params.items()},
        metrics={} if found is None else dict(_metrics(found)),
        series={},
        tags=tags,
    )


def _metrics(found: Verification) -> Iterator[tuple[str, float]]:
    for kept in found.promises:
        for name, estimate in (
            ("promised", kept.promised),
            ("verified", kept.verified),
            ("control", kept.control),
            ("ratio", kept.ratio),
        ):
            yield from _ends(f"{name}/{kept.name}", estimate)
        yield f"held/{kept.name}", float(kept.held)


def _ends(name: str, estimate: Estimate | None) -> Iterator[tuple[str, float]]:
    if estimate is None:
        return
    yield name, estimate.value
    for end, value in (("low", estimate.low), ("high", estimate.high)):
        if value is not None and abs(value) < _HUGE:
            yield f"{name}_{end}", value


_HUGE = 1e300
"""MLflow's databases keep no infinity."""


def _member(plan: VerifyPlan, study: StudyFile, trial: StoredTrial) -> Member:
    """A run: all that a trial's run holds, but for what makes it one of the study's own trials."""
    entry = trial_entry(trial, study, trial_note(trial, study), on_front=False)
    run = plan.runs[trial.number]
    tags = {key: text for key, text in entry.tags.items() if key not in (STUDY_ID, TRIAL, ON_FRONT)}
    marked = " (simulated)" if trial.ran.engine == "simulated" else ""
    side = plan.name(run.cell)
    return Member(
        key=str(trial.number),
        title=f"{side}{marked} · pair {run.block + 1}",
        entry=replace(
            entry, tags={**tags, "side": side, "pair": str(run.block + 1), "verification": plan.folder.name}
        ),
        folder=trial_folder(plan.folder, trial.number),
        failed=trial.state is State.FAILED,
        started=trial.started,
        finished=trial.finished,
    )
