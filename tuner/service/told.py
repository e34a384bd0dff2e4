"""What the service tells, as JSON: events as they happen, jobs and trials as they stand. Shapes only."""

import math
from datetime import datetime
from typing import assert_never

from cluster.order import Failed, Measured
from cluster.phase import Phase
from objectives.metrics import published
from search_spaces.values import Json
from tuner.ablation.run import AblationEvent, RunFinished, RunRetried, RunStarted, RunWaiting
from tuner.events import Done, Event, Finished, FrontMoved, Noted, Retried, Started, UnderWay, Waiting
from tuner.front import FrontView
from tuner.records import StoredTrial
from tuner.service.jobs import Job

Told = tuple[str, dict[str, Json]]
"""An event's name and what it says."""


def event_json(event: Event | str) -> Told:
    """An event of a search."""
    match event:
        case str():
            return "note", {}
        case Started():
            return "trial_started", {
                "trial": event.number,
                "config": None if event.config is None else dict(event.config),
                "is_control": event.is_control,
                "repeats": event.repeats,
            }
        case UnderWay():
            return "trial_phase", {"trial": event.number, "node": event.node, **phase_json(event.phase)}
        case Waiting():
            return "waiting", {
                "running_s": {str(number): seconds for number, seconds in event.running_s.items()},
                "done": len(event.view.trials),
                "total": event.total,
                "left_s": event.eta_s,
            }
        case Retried():
            return "trial_retried", {"trial": event.number, "reason": event.reason}
        case Noted():
            return "node", {"text": event.text}
        case Finished():
            return _finished_json(event)
        case FrontMoved():
            return "front_moved", {"front": list(event.numbers)}
        case Done():
            best = event.view.recommended
            return "searched", {
                "front": list(event.view.numbers),
                "recommended": None if best is None else best.number,
                "why": event.why,
                "logged": event.logged,
            }
        case _:
            assert_never(event)


def ablation_event_json(event: AblationEvent | str) -> Told:
    """An event of an ablation."""
    match event:
        case str():
            return "note", {}
        case RunStarted():
            return "run_started", {"run": event.run.number, "cell": event.cell, "left_s": event.far.eta_s}
        case RunWaiting():
            return "waiting", {
                "cell": event.cell,
                "done": event.far.done,
                "total": event.far.total,
                "left_s": event.far.eta_s,
            }
        case RunRetried():
            return "run_retried", {"cell": event.cell, "reason": event.reason}
        case RunFinished():
            return "run_finished", {
                "run": event.run.number,
                "cell": event.cell,
                "state": event.stored.state.value,
                "cause": None if event.stored.cause is None else event.stored.cause.value,
                "reason": event.stored.reason,
                "done": event.far.done,
                "total": event.far.total,
                "left_s": event.far.eta_s,
            }
        case _:
            assert_never(event)


def phase_json(phase: Phase) -> dict[str, Json]:
    """A phase, but for how far it is."""
    return {"phase": phase.name.value, "stage": phase.stage, "replay": phase.replay, "speed": phase.speed}


def _finished_json(event: Finished) -> Told:
    far: dict[str, Json] = {
        "trial": event.number,
        "repeats": event.repeats,
        "done": event.done,
        "total": event.total,
        "left_s": event.eta_s,
    }
    match event.outcome:
        case Measured(measurement=measured):
            shown = published(measured)
            values: dict[str, Json] = {
                name: _finite(shown[name].value) for name in event.objectives if name in shown
            }
            return "trial_measured", {
                **far,
                "objectives": values,
                "on_front": event.on_front,
                "unscored": event.unscored,
            }
        case Failed(cause=cause, reason=reason):
            return "trial_failed", {**far, "cause": cause.value, "reason": reason}


def job_json(job: Job, running: list[Json]) -> dict[str, Json]:
    """A job as everybody may see it, without the text of a space, which is long.

    Args:
        running: its trials under way, as `tuner.service.running` tells them.
    """
    return {
        "id": job.id,
        "kind": job.kind.value,
        "study": job.study,
        "user": job.user,
        "state": job.state.value,
        "becomes": None if job.wanted is None else job.wanted.value,
        "simulated": job.simulated,
        "gpus": job.gpus,
        "place": job.place,
        "queued": job.queued.isoformat(),
        "started": _stamp(job.started),
        "ended": _stamp(job.ended),
        "reason": job.reason,
        "deaths": job.deaths,
        "running": running,
        "request": {name: value for name, value in job.request.items() if name != "space"},
    }


def trials_json(seen: FrontView) -> list[Json]:
    """Every finished trial of a study, repeats among them, by number."""
    return [trial_json(seen, trial) for trial in seen.trials]


def trial_json(seen: FrontView, trial: StoredTrial) -> dict[str, Json]:
    """One finished trial as it was measured."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "is_control": trial.is_control,
        "repeats": trial.repeats,
        "config": None if trial.config is None else dict(trial.config),
        "objectives": {
            name: {
                "value": _finite(estimate.value),
                "low": _finite(estimate.low),
                "high": _finite(estimate.high),
            }
            for name, estimate in seen.objective_values(trial).items()
        },
        "on_front": (trial.number if trial.repeats is None else trial.repeats) in seen.numbers,
        "cause": None if trial.cause is None else trial.cause.value,
        "reason": trial.reason,
        "simulated": trial.ran.engine == "simulated",
        "attempts": trial.attempts,
        "started": trial.started.isoformat(),
        "finished": trial.finished.isoformat(),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: what is late for ever has no number."""
    return value if value is not None and math.isfinite(value) else None


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
