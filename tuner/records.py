"""What a study leaves on disk: one folder a trial, complete or not there at all.

    runs/<study>/study.json              what is searched, on what traffic, for what (StudyFile)
    runs/<study>/trials/0007/outcome.json     everything but the series (StoredTrial)
                            /requests.parquet one row a request of the first replay, or of the one that failed
                            /counters.parquet one row a reading of the engine's counters
                            /engine.log  command.txt
                            /steps/01-requests.parquet  01-counters.parquet  …
                                              the same of every further replay, in the order they were played

A trial's folder is filled under another name, flushed to the disk and then renamed, so a folder that has a
trial's name is whole, whatever happened to the driver or its machine meanwhile. This is the truth about a
study: the sampler's database and MLflow are filled from it. JSON and Parquet only; secrets are blanked before
anything is written.
"""

import errno
import json
import logging
import math
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from cluster.order import Cause, Measured, Order, Outcome, Ran
from objectives.measurement import Estimate, LoadPoint, Measurement, Mode
from objectives.slo import Slo
from search_spaces.artefact import artefact
from search_spaces.values import Json, Scalar
from tuner.durable import flush, flush_tree
from tuner.mistakes import Mistake
from tuner.redaction import redacted_environment, redacted_settings, redacted_text, without_passwords
from tuner.series import write_records, write_samples

_Raw = dict[str, Any]  # what json.loads gives; typed on the way out of this module

SCHEMA = 1
"""Of outcome.json and study.json; raised when a reader of the old shape would misread the new one."""

OUTCOME = "outcome.json"
REQUESTS = "requests.parquet"
COUNTERS = "counters.parquet"
LOG = "engine.log"
COMMAND = "command.txt"
STUDY = "study.json"
TRIALS = "trials"
STEPS = "steps"


_LOG = logging.getLogger(__name__)


class RecordError(Mistake):
    """A study's file cannot be read; the message says which and why."""


class TornRecord(RecordError):
    """The file is not there or no whole JSON, so it says nothing."""


class State(StrEnum):
    """What became of a trial."""

    MEASURED = "measured"
    FAILED = "failed"
    UNSCORED = "unscored"
    """Measured, but a metric that an objective needs is missing: no number, never on the front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """One finished trial as it lies on disk, without its series."""

    study: str
    number: int
    is_control: bool
    repeats: int | None = None
    """Number of the trial whose config it measured again; None: it was the first of its config."""
    config: Mapping[str, Scalar] | None
    """Active parameters by path; None for a control that is no point of the space."""
    state: State
    cause: Cause | None = None
    """None unless failed."""
    reason: str | None = None
    """Why it failed or has no score, one line; None if measured."""
    measurement: Measurement | None = None
    """None if failed."""
    step_speeds: tuple[float, ...] = ()
    """Speed of each replay under steps/, in their order."""
    model: str
    trust_remote_code: bool = False
    """Whether the engine was let run the model's own code."""
    arguments: Mapping[str, Json]
    environment: Mapping[str, str]
    gpus: int
    ran: Ran
    """Its log is empty: that lies in engine.log."""
    attempts: int = 1
    """How often it was sent out; above 1 where a node was lost or a client was late."""
    started: datetime
    finished: datetime
    tuner_version: str
    schema: int = SCHEMA

    @property
    def artefact(self) -> str:
        """Fingerprint of what of its config can change what the model answers."""
        return artefact(self.model, self.arguments, self.environment).fingerprint

    @classmethod
    def of(
        cls,
        order: Order,
        outcome: Outcome,
        *,
        config: Mapping[str, Scalar] | None,
        is_control: bool,
        attempts: int,
        started: datetime,
        finished: datetime,
        tuner_version: str,
        secrets: Iterable[str],
        unscored: str | None = None,
        repeats: int | None = None,
    ) -> Self:
        """The trial of an outcome.

        Args:
            secrets: values blanked in the reason wherever they stand.
            unscored: why a measured one has no score, None if it has.
            repeats: the trial whose config it measured again, if it did.
        """
        cause: Cause | None = None
        reason, measurement = unscored, None
        if isinstance(outcome, Measured):
            measurement = outcome.measurement
            state = State.MEASURED if unscored is None else State.UNSCORED
        else:
            state, cause = State.FAILED, outcome.cause
            reason = redacted_text(outcome.reason, secrets)
        return cls(
            study=order.study,
            number=order.number,
            is_control=is_control,
            repeats=repeats,
            config=None if config is None else dict(config),
            state=state,
            cause=cause,
            reason=reason,
            measurement=measurement,
            step_speeds=tuple(step.point.speed for step in outcome.steps),
            model=order.model,
            trust_remote_code=order.trust_remote_code,
            arguments=redacted_settings(order.arguments),
            environment=redacted_environment(order.environment),
            gpus=order.gpus,
            ran=_shown(outcome.ran),
            attempts=attempts,
            started=started,
            finished=finished,
            tuner_version=tuner_version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """What a study is: written once when it is made, read by whatever comes to it later."""

    name: str
    id: str
    """Never given twice, so that MLflow can tell two studies of one name apart."""
    space_name: str
    space_text: str
    """The space as it was, YAML."""
    trace: str
    """Where the trace came from."""
    trace_digest: str
    trace_figures: Mapping[str, Json] = field(default_factory=dict)
    """What a reader should know of the trace: requests, tokens, rate."""
    objectives: tuple[str, ...]
    slo: Slo
    sampler: str
    seed: int
    engine: str
    """"vllm" or "simulated"."""
    created: datetime
    tuner_version: str
    options: Mapping[str, Json] = field(default_factory=dict)
    """Whatever else resuming needs, by the name of the command-line option."""
    schema: int = SCHEMA


def write_study(folder: Path, study: StudyFile) -> None:
    """Write study.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = asdict(study) | {
        "created": study.created.isoformat(),
        "trace_figures": redacted_settings(study.trace_figures),
        "options": redacted_settings(study.options),
    }
    part = folder / f".{STUDY}.part"
    with _making_room_helps(part, "the study was not begun: make room, then search again"):
        part.write_text(_to_json(raw))
        flush([part])
        part.replace(folder / STUDY)
        flush([folder])


def read_study(folder: Path) -> StudyFile:
    """Raises RecordError where there is none or it cannot be read."""
    raw = _from_json(folder / STUDY)
    try:
        _check_schema(raw)
        return StudyFile(
            **raw
            | {
                "objectives": tuple(raw["objectives"]),
                "slo": Slo(**raw["slo"]),
                "created": datetime.fromisoformat(raw["created"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / STUDY, error) from error


def trial_folder(study_folder: Path, number: int) -> Path:
    return study_folder / TRIALS / f"{number:04d}"


def step_files(trial_folder: Path, number: int) -> tuple[Path, Path]:
    """Where the requests and counters of a further replay lie; the first is number 1."""
    steps = trial_folder / STEPS
    return steps / f"{number:02d}-{REQUESTS}", steps / f"{number:02d}-{COUNTERS}"


def write_outcome(
    study_folder: Path,
    trial: StoredTrial,
    outcome: Outcome,
    *,
    secrets: Iterable[str] = (),
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Put a finished trial on disk; the folder it lies in.

    Args:
        files: what else belongs into its folder, by name.
        secrets: values blanked in the log wherever they stand.

    Raises:
        OSError: the disk is full or not writable, or the trial is there already.
    """
    folder = trial_folder(study_folder, trial.number)
    part = part_folder(folder)
    shutil.rmtree(part, ignore_errors=True)  # what a killed driver left
    with _making_room_helps(part, _not_kept(trial.number)):
        part.mkdir(parents=True)
        _fill(part, trial, outcome, secrets, files)
        flush_tree(part)
        part.rename(folder)
        flush([folder.parent])
    return folder


def part_folder(trial_folder: Path) -> Path:
    """Where a trial's folder is filled before it has its name."""
    return trial_folder.with_name(f".{trial_folder.name}.part")


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def _making_room_helps(part: Path, advice: str) -> Iterator[None]:
    """Leave nothing half-written; where the disk is full, say what that means and what to do."""
    try:
        yield
    except OSError as error:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
        if error.errno not in _NO_ROOM:
            raise
        raise OSError(error.errno, f"{os.strerror(error.errno)}; {advice}", str(part.parent)) from error


def _not_kept(number: int) -> str:
    return f"trial {number} was not kept and is measured again: make room, then go on with --resume"


def _fill(
    part: Path, trial: StoredTrial, outcome: Outcome, secrets: Iterable[str], files: Mapping[str, bytes]
) -> None:
    ran = outcome.ran
    (part / OUTCOME).write_text(_to_json(_raw_trial(trial)))
    (part / LOG).write_text(redacted_text(ran.log, secrets), encoding="utf-8", errors="replace")
    (part / COMMAND).write_text(_command_text(trial))
    write_records(part / REQUESTS, outcome.records)
    write_samples(part / COUNTERS, outcome.samples)
    for name, content in files.items():
        (part / name).write_bytes(content)
    for number, step in enumerate(outcome.steps, 1):
        requests, counters = step_files(part, number)
        requests.parent.mkdir(exist_ok=True)
        write_records(requests, step.records)
        write_samples(counters, step.samples)


def read_outcome(folder: Path) -> StoredTrial:
    """Raises RecordError where there is none or it cannot be read."""
    raw = _from_json(folder / OUTCOME)
    try:
        _check_schema(raw)
        measurement, ran = raw["measurement"], raw["ran"]
        return StoredTrial(
            **raw
            | {
                "state": State(raw["state"]),
                "cause": None if raw["cause"] is None else Cause(raw["cause"]),
                "measurement": None if measurement is None else _measurement(measurement),
                "step_speeds": tuple(raw.get("step_speeds", ())),
                "ran": Ran(**ran | {"command": tuple(ran["command"])}),
                "started": datetime.fromisoformat(raw["started"]),
                "finished": datetime.fromisoformat(raw["finished"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / OUTCOME, error) from error


def read_trials(study_folder: Path) -> tuple[StoredTrial, ...]:
    """Every finished trial of a study, by number. What is half-written is not there.

    A trial whose outcome is torn (a copy that was broken off, a bad disk) is left out, with a warning that
    names its file: the search measures another one in its place.

    Raises RecordError where one says what this version does not understand.
    """
    folders = (path for path in (study_folder / TRIALS).glob("*") if path.name.isdecimal())
    found = (_read_unless_torn(path) for path in folders)
    return tuple(sorted((trial for trial in found if trial is not None), key=lambda trial: trial.number))


def numbers_on_disk(study_folder: Path) -> set[int]:
    """Numbers of the trials that have a folder, readable or not."""
    return {int(path.name) for path in (study_folder / TRIALS).glob("*") if path.name.isdecimal()}


def _read_unless_torn(trial_folder: Path) -> StoredTrial | None:
    try:
        return read_outcome(trial_folder)
    except TornRecord as torn:
        _LOG.warning(
            "%s; this trial is left out: put the file back from a copy, or tuner doctor --clean removes it",
            torn,
        )
        return None


def _shown(ran: Ran) -> Ran:
    return Ran(
        engine=ran.engine,
        version=ran.version,
        hardware=ran.hardware,
        node=ran.node,
        command=tuple(without_passwords(word) for word in ran.command),
        effective=redacted_settings(ran.effective),
        launch=ran.launch,
        stages_s=ran.stages_s,
        start_s=ran.start_s,
        warm_up_s=ran.warm_up_s,
        replay_s=ran.replay_s,
        probe_s=ran.probe_s,
        stop_s=ran.stop_s,
        total_s=ran.total_s,
    )


def _raw_trial(trial: StoredTrial) -> dict[str, object]:
    ran = asdict(trial.ran)
    del ran["log"]
    raw = asdict(trial) | {
        "started": trial.started.isoformat(),
        "finished": trial.finished.isoformat(),
        "ran": ran,
    }
    if trial.measurement is not None:
        raw["measurement"] = _strict(asdict(trial.measurement))
    return raw


def _strict(value: object) -> object:
    """JSON has no infinity and no NaN; they are written as text ("inf", "nan")."""
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {key: _strict(item) for key, item in value.items()}
        case list() | tuple():
            return [_strict(item) for item in value]
        case _:
            return value


def _measurement(raw: _Raw) -> Measurement:
    positions = raw["accepted_per_position"]
    return Measurement(
        metrics=_estimates(raw["metrics"]),
        requests=raw["requests"],
        failed_requests=raw["failed_requests"],
        duration_s=raw["duration_s"],
        accepted_per_position=None if positions is None else tuple(positions),
        warnings=tuple(raw["warnings"]),
        disagreements=tuple(raw.get("disagreements", ())),
        mode=Mode(raw.get("mode", Mode.FIXED)),
        curve=tuple(_point(point) for point in raw.get("curve", ())),
    )


def _point(raw: _Raw) -> LoadPoint:
    return LoadPoint(**raw | {"metrics": _estimates(raw["metrics"])})


def _estimates(raw: _Raw) -> dict[str, Estimate]:
    return {name: _estimate(estimate) for name, estimate in raw.items()}


def _estimate(raw: _Raw) -> Estimate:
    low, high = raw["low"], raw["high"]
    return Estimate(
        value=float(raw["value"]),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
    )


def _command_text(trial: StoredTrial) -> str:
    """What was run, as a line that a shell takes; what was asked for, if no engine was started."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(trial.environment.items())]
    if trial.ran.command:
        return " ".join([*variables, shlex.join(trial.ran.command)]) + "\n"
    trust = {"trust_remote_code": True} if trial.trust_remote_code else {}
    asked = json.dumps({"model": trial.model, **trust, **trial.arguments}, indent=2)
    return f"# no engine was started; asked for:\n{asked}\n"


def _to_json(raw: Mapping[str, object]) -> str:
    return json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _check_schema(raw: _Raw) -> None:
    if raw["schema"] != SCHEMA:
        raise ValueError(f"schema {raw['schema']}, this version reads {SCHEMA}")


def _from_json(path: Path) -> _Raw:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TornRecord(f"{path}: no such file") from error
    except ValueError as error:  # no UTF-8, no JSON, or half of it
        raise TornRecord(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    except OSError as error:
        raise _damaged(path, error) from error
    if not isinstance(raw, dict):
        raise RecordError(f"{path}: expected an object, got {type(raw).__name__}")
    return raw


def _damaged(path: Path, error: Exception) -> RecordError:
    return RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})")
