"""What MLflow holds of a trial and of a study: parameters, metrics and tags, as plain data. Pure.

Names a person filters by are short (`on_front`, `cause`); those that only the ledger needs begin with
`tuner.`. Everything here comes from disk, where secrets are blanked already.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from objectives.measurement import Estimate
from objectives.metrics import published
from objectives.quality import QualityVerdict
from search_spaces.values import Json, Scalar
from tuner.bracket import capacity_text, replays
from tuner.curve import series
from tuner.front import GUARDED, FrontView, held
from tuner.history import best_so_far
from tuner.loads import concurrency, measure_of, mode, offered_rps, sessions, speed
from tuner.quality import Checks
from tuner.quality_words import quality_state
from tuner.records import StoredTrial, StudyFile

STUDY_ID = "tuner.study_id"
TRIAL = "trial"
ON_FRONT = "on_front"
QUALITY = "quality"

INTERVAL = "interval/"
"""Prefix of the ends of 95 % intervals."""

NAME_LENGTH = 250
PARAM_LENGTH = 6000
TAG_LENGTH = 5000
"""MLflow's own limits; 8,000 for a tag in new versions, 5,000 in old ones."""

_NOT_IN_NAMES = re.compile(r"[^\w\-./ :]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run."""

    params: Mapping[str, str]
    metrics: Mapping[str, float]
    """Finite ones only."""
    series: Mapping[str, tuple[tuple[int, float], ...]]
    """Metrics with a value a step, as pairs of the two; `tuner.curve` says what a step of a curve is."""
    tags: Mapping[str, str]


def trial_entry(
    trial: StoredTrial, study: StudyFile, note: str, *, on_front: bool, checks: Checks | None = None
) -> Entry:
    """A trial's run: config by path, `engine.*` as asked, `effective.*` as the engine reports it, and
    `workload.*`, since trials of studies at different speeds lie in one experiment.

    Args:
        checks: what is known of quality; None where it is not asked for.
    """
    ran = trial.ran
    params = {
        **_texts("", trial.config or {}),
        "engine.model": trial.model,
        **_texts("engine.", dict(_leaves(trial.arguments))),
        **_texts("environment.", trial.environment),
        **_texts("effective.", dict(_leaves(ran.effective))),
        **_texts("workload.", _load(study)),
    }
    metrics = {
        **({} if trial.measurement is None else _measured(trial)),
        **({} if checks is None else _quality(checks.verdicts.get(trial.artefact))),
        **{
            f"{name}_s": seconds
            for name, seconds in (
                ("start", ran.start_s),
                ("replay", ran.replay_s),
                ("probe", ran.probe_s),
                ("trial", ran.total_s),
            )
            if seconds is not None
        },
    }
    measurement = trial.measurement
    positions = () if measurement is None else measurement.accepted_per_position or ()
    acceptance = {"acceptance_by_position": tuple(enumerate(positions, start=1))} if positions else {}
    slo_held = held(study, trial)
    return Entry(
        params={_name(name): text[:PARAM_LENGTH] for name, text in params.items()},
        metrics={_name(name): value for name, value in metrics.items()},
        series={**acceptance, **series(measurement)},
        tags=_tags(
            {
                STUDY_ID: study.id,
                "study": study.name,
                TRIAL: str(trial.number),
                "repeats": None if trial.repeats is None else str(trial.repeats),
                "status": trial.state.value,
                "cause": trial.cause,
                "reason": trial.reason,
                ON_FRONT: _flag(on_front),
                "is_control": _flag(trial.is_control),
                "engine": ran.engine or study.engine,
                "engine_version": ran.version,
                "gpu" if trial.gpus else "cpu": ran.hardware,
                "node": ran.node,
                "simulated": _flag((ran.engine or study.engine) == "simulated"),
                "attempts": str(trial.attempts),
                "tuner_version": trial.tuner_version,
                "warnings": "\n".join(measurement.warnings) if measurement else None,
                "mode": measurement.mode if measurement else mode(study),
                "capacity": capacity_text(measurement),
                "held": None if slo_held is None else _flag(slo_held),
                "disagreements": _flag(bool(measurement.disagreements)) if measurement else None,
                QUALITY: quality_tag(trial, study, checks),
                "artefact": None if checks is None else trial.artefact,
                "mlflow.note.content": note,
            }
        ),
    )


def quality_tag(trial: StoredTrial, study: StudyFile, checks: Checks | None) -> str | None:
    """`passed`, `failed`, `not checked`; None where it is not asked for, or the trial was not measured."""
    return None if checks is None or trial.measurement is None else quality_state(study, trial, checks)


def study_entry(view: FrontView, note: str) -> Entry:
    """The study's own run: what was searched, on what, and how far it is."""
    study = view.study
    took = replays(trial.measurement for trial in view.trials)
    limits = {f"slo.{name}": value for name, value in asdict(study.slo).items() if value is not None}
    params = {
        "space": study.space_name,
        "objectives": ", ".join(study.objectives),
        "sampler": study.sampler,
        "seed": study.seed,
        "trace": study.trace,
        "trace.digest": study.trace_digest,
        **_load(study),
        **{f"measure.{name}": value for name, value in measure_of(study).model_dump().items()},
        **limits,
        **{f"quality.{name}": value for name, value in _leaves(_quality_limits(study))},
        **{f"trace.{name}": value for name, value in _leaves(study.trace_figures)},
    }
    return Entry(
        params={name: text[:PARAM_LENGTH] for name, text in _texts("", params).items()},
        metrics={
            **{f"trials_{state}": float(count) for state, count in view.counts.items()},
            "front_size": float(len(view.front)),
            **best_so_far(view),
            "replays": float(took.played),
            "saved_s": took.saved_s,
        },
        series={},
        tags=_tags(
            {
                STUDY_ID: study.id,
                "study": study.name,
                "space": study.space_name,
                "trace_digest": study.trace_digest,
                "engine": study.engine,
                "simulated": _flag(study.engine == "simulated"),
                "mode": mode(study),
                "front": ", ".join(map(str, view.numbers)),
                "verified": ", ".join(
                    f"{number} {'held' if found.held else 'not held'} {found.finished:%Y-%m-%d %H:%M}"
                    for number, found in view.verified.items()
                ),
                "recommended": None if view.recommended is None else str(view.recommended.number),
                "tuner_version": study.tuner_version,
                "mlflow.note.content": note,
            }
        ),
    )


def _quality_limits(study: StudyFile) -> dict[str, Json]:
    kept = study.options.get(GUARDED)
    return dict(kept) if isinstance(kept, dict) else {}


def _quality(verdict: QualityVerdict | None) -> dict[str, float]:
    """A verdict's estimates with their ends."""
    if verdict is None:
        return {}
    found: dict[str, float] = {}
    for name in ("nll_increase", "kl", "agreement", "alike"):
        estimate: Estimate = getattr(verdict, name)
        found |= {
            end: value for end, value in _ends(f"quality_{name}", estimate).items() if value is not None
        }
    return found


def _load(study: StudyFile) -> dict[str, str]:
    """How hard every trial is driven, as far as the study says."""
    figures = {
        "speed": speed(study),
        "offered_rps": offered_rps(study),
        "concurrency": concurrency(study),
    }
    said = {name: f"{value:.4g}" for name, value in figures.items() if value is not None}
    return said | {"sessions": sessions(study).value}


def _measured(trial: StoredTrial) -> dict[str, float]:
    found: dict[str, float] = {}
    if trial.measurement is not None:
        for name, estimate in published(trial.measurement).items():
            ends = _ends(name, estimate)
            found |= {end: value for end, value in ends.items() if value is not None and abs(value) < _HUGE}
        found["requests"] = float(trial.measurement.requests)
        found["failed_requests"] = float(trial.measurement.failed_requests)
        took = replays([trial.measurement])
        found |= {"replays": float(took.played), "replays_cut": float(took.cut), "saved_s": took.saved_s}
    return found


def _ends(name: str, estimate: Estimate) -> dict[str, float | None]:
    """A metric and its interval's ends. MLflow puts those of one prefix together: there are more of them than
    of all other metrics."""
    return {
        name: estimate.value,
        f"{INTERVAL}{name}_low": estimate.low,
        f"{INTERVAL}{name}_high": estimate.high,
    }


_HUGE = 1e300
"""MLflow's databases keep no infinity; an interval without an end has no end here."""


def _leaves(settings: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    """Nested settings by dotted name."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _texts(
    prefix: str, values: Mapping[str, Json] | Mapping[str, Scalar] | Mapping[str, str]
) -> dict[str, str]:
    return {
        f"{prefix}{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def _tags(tags: Mapping[str, str | None]) -> dict[str, str]:
    return {name: _cut(text) for name, text in tags.items() if text}


def _cut(text: str) -> str:
    return text if len(text) <= TAG_LENGTH else f"{text[: TAG_LENGTH - 1]}…"


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:NAME_LENGTH]


def _flag(value: bool) -> str:
    return "true" if value else "false"
