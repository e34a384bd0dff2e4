"""One config of a comparison, as `STUDY:TRIAL`, `STUDY:control` or an export's folder names it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from objectives.measurement import Estimate, Measurement, Record
from objectives.metrics import published
from search_spaces.load import parse_space
from search_spaces.values import Json
from tuner.ablation.plan import DESIGN
from tuner.export.digest import PROVENANCE, disagreements, read_provenance
from tuner.export.launch import explicit_arguments
from tuner.front import FrontView, read_view
from tuner.mistakes import Mistake
from tuner.promise import Promise
from tuner.quality import read_verdict
from tuner.records import REQUESTS, RecordError, State, read_trials, trial_folder
from tuner.series import read_records
from tuner.studies import study_folder, trial_of
from tuner.verify.promised import Promised, promised_from, promised_of
from tuner.verify.stored import VERIFICATION, VERIFY, latest_verification, read_verification

CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One config."""

    label: str
    """As the user named it."""
    promised: Promised
    simulated: bool
    is_control: bool
    settings: Mapping[str, Json]
    """What it is launched with, dotted: the model, arguments asked for or in effect, the environment."""
    effective: Mapping[str, Json]
    """Settings as the engine reported them, dotted."""
    engine_version: str | None
    hardware: str | None
    numbers: Mapping[str, Estimate]
    """What is promised of it, and all else that was measured, by the names and in the units of people."""
    again: int
    """Of how many fresh measurements the numbers are; 0: of the one that the config was chosen by."""
    held: bool | None
    """Whether its verification held; None: it has none."""
    quality: bool | None
    """Whether its quality passed; None: not checked."""
    runs: tuple[tuple[Record, ...], ...] = ()
    """Requests of every measured run at the study's speed, the first run first; none of an export."""
    pairs: tuple[tuple[Measurement, Measurement], ...] = ()
    """Of its verifications: each run of it with the control's that it alternated with."""
    remarks: tuple[str, ...] = ()
    """What must be known of it, one sentence each."""

    @property
    def study_id(self) -> str:
        return self.promised.study_id


def read_side(text: str, runs: Path) -> Side:
    """The config that this names. Raises Mistake where there is none, or it has no measurement."""
    if (Path(text) / PROVENANCE).is_file():
        return _of_folder(Path(text), text)
    study, colon, trial = text.rpartition(":")
    if not colon or not (trial == CONTROL or (trial.isascii() and trial.isdecimal())):
        raise Mistake(
            f"{text!r} is no config: STUDY:TRIAL, STUDY:{CONTROL} or the folder of an export is one"
        )
    folder = study_folder(study, runs)
    seen = read_view(folder)
    if trial == CONTROL:
        if not seen.control:
            raise Mistake(f"study {study} has no control that has finished")
        return _of_trial(folder, seen, seen.promise(seen.control[0].number), text)
    _, found = trial_of(folder, int(trial))
    promise = seen.promise(found.number if found.repeats is None else found.repeats)
    return _of_trial(folder, seen, promise, text)


def _of_trial(folder: Path, seen: FrontView, promise: Promise, label: str) -> Side:
    study, trial = seen.study, promise.standing
    if trial.measurement is None:
        raise Mistake(f"{label} has no measurement to compare ({trial.state}: {trial.reason})")
    space = parse_space(study.space_text, str(study.options.get("space", "space.yaml")))
    verification, verdict = latest_verification(folder, trial.number), read_verdict(folder, trial)
    measured = [one for one in (promise.first, *promise.again) if one.state is State.MEASURED]
    return Side(
        label=label,
        promised=promised_of(study, space, trial, next(iter(seen.control), None)),
        simulated=trial.ran.engine == "simulated",
        is_control=trial.is_control,
        settings=_settings(trial.model, explicit_arguments(trial), trial.environment),
        effective=dict(_dotted(dict(trial.ran.effective), "")),
        engine_version=trial.ran.version,
        hardware=trial.ran.hardware,
        numbers=published(trial.measurement),
        again=len(promise.fresh),
        held=None if verification is None else verification.held,
        quality=None if verdict is None else verdict.passed,
        runs=tuple(
            read_records(path)
            for one in measured
            if (path := trial_folder(folder, one.number) / REQUESTS).is_file()
        ),
        pairs=tuple(_pairs(folder, trial.number)),
    )


def _of_folder(folder: Path, label: str) -> Side:
    said = read_provenance(folder)
    promised = promised_from(said.get("promised"), str(folder / PROVENANCE))
    try:
        launch = _object(said["launch"])
        verification, quality = said["verification"], said["quality"]
        return Side(
            label=label,
            promised=promised,
            simulated=bool(said["simulated"]),
            is_control=False,
            settings=_settings(
                str(launch["model"]),
                _object(launch["arguments"]),
                {name: str(value) for name, value in _object(launch["environment"]).items()},
            ),
            effective=dict(_dotted(_object(said["effective"]), "")),
            engine_version=_text(said["engine_version"]),
            hardware=_text(said["hardware"]),
            numbers={name: _estimate(_object(one)) for name, one in _object(said["measured"]).items()},
            again=int(str(said["measured_again"])),
            held=None if verification is None else bool(_object(verification)["held"]),
            quality=None if quality is None else bool(_object(quality)["passed"]),
            remarks=tuple(f"{label}: {told}" for told in disagreements(folder)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Mistake(
            f"{folder / PROVENANCE}: not as tuner export writes it ({error}); export it again"
        ) from error


def _pairs(folder: Path, number: int) -> Iterator[tuple[Measurement, Measurement]]:
    """Of every verification of this config that is over, from a study or a folder of this very machine."""
    for path in sorted((folder / VERIFY).glob(f"*/{VERIFICATION}")):
        found = read_verification(path)
        if found.trial != number or found.source == "endpoint":
            continue
        try:
            design = json.loads((path.parent / DESIGN).read_text(encoding="utf-8"))
            sides = {run["number"]: (run["pair"], run["side"]) for run in design["runs"]}
            pairs = int(design["pairs"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{path.parent / DESIGN}: cannot be read ({type(error).__name__}: {error})"
            ) from error
        measured: dict[tuple[int, str], Measurement] = {
            sides[run.number]: run.measurement
            for run in read_trials(path.parent)
            if run.measurement is not None and run.number in sides
        }
        for pair in range(pairs):
            mine, other = measured.get((pair, "config")), measured.get((pair, "control"))
            if mine is not None and other is not None:
                yield mine, other


def _settings(model: str, arguments: Mapping[str, Json], environment: Mapping[str, str]) -> dict[str, Json]:
    variables: dict[str, Json] = {f"environment.{name}": value for name, value in environment.items()}
    return {"model": model, **dict(_dotted(arguments, "")), **variables}


def _dotted(values: Mapping[str, Json], above: str) -> Iterator[tuple[str, Json]]:
    for name, value in values.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict) and value:
            yield from _dotted(value, path)
        else:
            yield path, value


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"an object is missing, got {type(value).__name__}")
    return value


def _text(value: Json) -> str | None:
    return None if value is None else str(value)


def _estimate(raw: Mapping[str, Json]) -> Estimate:
    ends = {name: None if raw[name] is None else float(str(raw[name])) for name in ("low", "high")}
    return Estimate(value=float(str(raw["value"])), low=ends["low"], high=ends["high"])
