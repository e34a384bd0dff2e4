"""The configs that finished studies of a real engine measured, pooled where their traffic is one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.order import Order
from cluster.traffic.workload import Workload
from objectives.measurement import Mode, Record, Sample
from objectives.slo import Slo
from search_spaces.accelerators import Accelerator, accelerator
from search_spaces.space import Space
from search_spaces.values import Json, Scalar
from tuner.ablation.traffic import same_traffic
from tuner.loads import mode
from tuner.mistakes import Mistake
from tuner.records import (
    COUNTERS,
    REQUESTS,
    StoredTrial,
    StudyFile,
    read_study,
    read_trials,
    trial_folder,
)
from tuner.series import read_records, read_samples
from tuner.step_readings import READ_BACK, TrialSteps, read_steps

LEAST_CONFIGS = 7
"""Five to calibrate on, and two to be wrong about."""

_READ_BACK = (*READ_BACK, "enable_chunked_prefill", "block_size")
"""Settings that are played as the engine reported them, its defaults among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured trial."""

    study: str
    trial: StoredTrial
    steps: TrialSteps
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    """Like the records, of the replay that its metrics are of."""

    @property
    def metrics(self) -> dict[str, float]:
        measurement = self.trial.measurement
        assert measurement is not None  # only measured trials have steps
        return {name: estimate.value for name, estimate in measurement.metrics.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConfig:
    """One config, and every trial that measured it."""

    name: str
    """Number of its first trial; behind its study's name where there are several."""
    is_control: bool
    choices: Mapping[str, Scalar]
    """Its parameters; empty for a control that is no point of the space."""
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    def measured(self, metric: str) -> float | None:
        """Mean over the trials that have it."""
        found = [value for run in self.runs if (value := run.metrics.get(metric)) is not None]
        return sum(found) / len(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Configs measured on the same machine with the same traffic."""

    studies: tuple[str, ...]
    hardware: str
    device: Accelerator
    gpus: int
    workload: Workload
    slo: Slo
    configs: tuple[MeasuredConfig, ...]
    """In the order of the studies and their trials, the control first."""
    left_out: Mapping[str, tuple[str, ...]]
    """Trials that say nothing, by the reason."""

    def order(self, config: MeasuredConfig) -> Order:
        """The config as its first trial ran it, with the settings that were in effect."""
        trial = config.first.trial
        effective = trial.ran.effective
        read_back = {name: value for name in _READ_BACK if (value := effective.get(name)) is not None}
        return Order(
            study="calibration",
            number=0,
            model=trial.model,
            arguments={**trial.arguments, **read_back},
            environment=trial.environment,
            workload=self.workload,
            slo=self.slo,
            gpus=self.gpus,
            accelerator=self.device.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    folder: Path
    file: StudyFile
    space: Space
    workload: Workload


def read_pool(folders: Sequence[Path]) -> Pool:
    """Every measured config of these studies.

    Raises:
        Mistake: a study is of the simulated engine or measured a closed loop, two differ in traffic, SLO or
            hardware, or they have too few configs.
        RecordError, SpaceError, TraceError: one cannot be read.
    """
    studies = [_read(folder) for folder in folders]
    _check_alike(studies)
    first = studies[0]
    resources = first.space.resources
    device = _device(first, resources.accelerator or ("cpu" if resources.gpus == 0 else "H100-80G"))
    runs: list[Run] = []
    left_out: dict[str, list[str]] = {}
    for study in studies:
        steps, silent = read_steps(study.folder, study.file, read_trials(study.folder), device)
        runs += [run for one in steps if (run := _run(study, one)) is not None]
        unread = [(one.trial.number, "its requests are not there") for one in steps if one.of_means]
        for number, reason in (*((one.number, one.reason) for one in silent), *unread):
            left_out.setdefault(reason, []).append(f"{study.file.name}:{number}")
    hardware = sorted({run.trial.ran.hardware or "unknown hardware" for run in runs})
    if len(hardware) > 1:
        raise Mistake(f"these studies ran on {' and '.join(hardware)}; give those of one machine")
    configs = tuple(_configs(runs))
    if len(configs) < LEAST_CONFIGS:
        silent_for = "".join(f"; {len(trials)} left out, {why}" for why, trials in left_out.items())
        raise Mistake(
            f"{_names(studies)}: {len(configs)} measured config(s), where {LEAST_CONFIGS} are the least"
            f"{silent_for}; give more studies of the same space and trace"
        )
    return Pool(
        studies=tuple(study.file.name for study in studies),
        hardware=hardware[0],
        device=device,
        gpus=resources.gpus,
        workload=first.workload,
        slo=first.file.slo,
        configs=configs,
        left_out={reason: tuple(trials) for reason, trials in left_out.items()},
    )


def _read(folder: Path) -> _Study:
    file = read_study(folder)
    if file.engine == "simulated":
        raise Mistake(f"study {file.name} is one of the simulated engine, which is not held against itself")
    if mode(file) is Mode.CLOSED:
        raise Mistake(f"study {file.name} measured a closed loop; give one with requests at their own times")
    space, workload = same_traffic(file)
    return _Study(folder=folder, file=file, space=space, workload=workload)


def _check_alike(studies: Sequence[_Study]) -> None:
    names = [study.file.name for study in studies]
    if len({study.file.id for study in studies}) < len(studies):
        raise Mistake(f"a study is named twice among {', '.join(names)}")
    first = studies[0]
    for other in studies[1:]:
        for what, of in (
            ("trace", lambda study: study.file.trace_digest),
            ("speed", lambda study: study.workload.speed),
            ("sessions", lambda study: study.workload.sessions),
            ("seed of the traffic", lambda study: study.workload.seed),
            ("SLO", lambda study: study.file.slo),
            ("resources", lambda study: study.space.resources),
        ):
            if of(first) != of(other):
                raise Mistake(
                    f"studies {first.file.name} and {other.file.name} differ in {what}; give each by itself"
                )


def _device(study: _Study, name: str) -> Accelerator:
    try:
        return accelerator(name)
    except ValueError as error:
        raise Mistake(f"study {study.file.name}: {error}") from error


def _run(study: _Study, steps: TrialSteps) -> Run | None:
    """None where its requests are not there."""
    if steps.of_means:
        return None
    folder = trial_folder(study.folder, steps.trial.number)
    samples = folder / COUNTERS
    return Run(
        study=study.file.name,
        trial=steps.trial,
        steps=steps,
        records=read_records(folder / REQUESTS),
        samples=read_samples(samples) if samples.is_file() else (),
    )


def _configs(runs: Sequence[Run]) -> Iterator[MeasuredConfig]:
    """Runs of one config together, in the order of the first of each; the control's before all others."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(_key(run.trial), []).append(run)
    several = len({run.study for run in runs}) > 1
    for mine in sorted(together.values(), key=lambda found: not found[0].trial.is_control):
        trial = mine[0].trial
        where = f"{mine[0].study}:" if several else ""
        yield MeasuredConfig(
            name=f"{where}{trial.number}",
            is_control=trial.is_control,
            choices=trial.config or {},
            runs=tuple(mine),
        )


def _key(trial: StoredTrial) -> str:
    ran: dict[str, Json] = {
        "model": trial.model,
        "arguments": dict(trial.arguments),
        "environment": dict(trial.environment),
    }
    return json.dumps(ran, sort_keys=True)


def _names(studies: Sequence[_Study]) -> str:
    return ", ".join(study.file.name for study in studies)
