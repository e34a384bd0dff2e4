"""What a study's trials say of the engine's steps: each trial's config as its steps are counted, and the
steps of its replays as they were seen.

Trials that say nothing are left out with a reason; nothing is judged here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from cluster.node.engine import EngineFailure
from cluster.node.simulation.settings import describe
from objectives.measurement import LoadPoint, Measurement
from objectives.step_fit import StepObservation
from objectives.step_times import ReplaySteps, replay_steps, steps_of_means
from search_spaces.accelerators import Accelerator
from search_spaces.deployment import Deployment, Misfit, Reader
from search_spaces.model_shape import ModelShape, UnknownShape
from search_spaces.schemes import UNQUANTISED, Scheme, served_scheme
from search_spaces.settings import Settings, at
from search_spaces.step_model import Served, step_work
from search_spaces.values import Json
from tuner.records import REQUESTS, RecordError, State, StoredTrial, StudyFile, step_files, trial_folder
from tuner.series import read_records

READ_BACK = (
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "tensor_parallel_size",
)
"""Settings that count as the engine reported them, not as they were asked for."""

_BOUNDLESS = 1e18
"""Memory, in bytes, of an accelerator on which a trial that ran is never said not to fit."""

_SAME_SPEED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSteps:
    """One trial that says something."""

    trial: StoredTrial
    served: Served
    max_num_seqs: int
    reference: ReplaySteps
    """Of the replay that the trial's metrics are of."""
    others: tuple[ReplaySteps, ...]
    of_means: bool
    """Whether its requests were not there, so that only means were read."""

    def observations(self) -> tuple[StepObservation, ...]:
        """For the fit."""
        return tuple(
            StepObservation(
                trial=self.trial.number,
                replay=place,
                kind=one.kind,
                seconds=one.seconds,
                steps=one.steps,
                works=tuple((part.share, step_work(self.served, part.load)) for part in one.slices),
            )
            for place, replay in enumerate((self.reference, *self.others))
            for one in replay.observed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A trial that says nothing of its steps."""

    number: int
    reason: str


def read_steps(
    folder: Path, study: StudyFile, trials: Iterable[StoredTrial], accelerator: Accelerator
) -> tuple[tuple[TrialSteps, ...], tuple[LeftOut, ...]]:
    """The steps of every measured trial, and the trials left out.

    Raises RecordError where a trial's requests are there and cannot be read.
    """
    reader = Reader(replace(accelerator, memory=_BOUNDLESS), _described)
    found, left_out = [], []
    for trial in trials:
        try:
            found.append(_steps_of(folder, study, trial, reader))
        except _SaysNothing as silence:
            left_out.append(LeftOut(number=trial.number, reason=str(silence)))
    return tuple(found), tuple(left_out)


class _SaysNothing(Exception):
    """The trial is of no use here; the message says why."""


def _steps_of(folder: Path, study: StudyFile, trial: StoredTrial, reader: Reader) -> TrialSteps:
    if trial.state is not State.MEASURED or trial.measurement is None:
        raise _SaysNothing(str(trial.state))
    settings = _settings(trial)
    try:
        deployment = reader.read(settings)
        served = _served(deployment, settings)
    except Misfit as error:
        raise _SaysNothing(f"no figures: {error}") from error
    except (KeyError, UnknownShape) as error:
        raise _SaysNothing(f"no figures: {error}") from error
    measurement = trial.measurement
    metrics = {name: estimate.value for name, estimate in measurement.metrics.items()}
    files = _files(folder, trial)
    reference = _read(files[0], deployment, settings, metrics)
    of_means = reference is None
    if reference is None:
        reference = _of_means(study, deployment, metrics)
    others = [
        steps
        for path, point in _whole(trial, measurement, files[1:])
        if (steps := _read(path, deployment, settings, _values(point))) is not None
    ]
    if not reference.observed:
        raise _SaysNothing("too few steps were seen to time any")
    return TrialSteps(
        trial=trial,
        served=served,
        max_num_seqs=deployment.max_num_seqs,
        reference=reference,
        others=tuple(others),
        of_means=of_means,
    )


def _settings(trial: StoredTrial) -> Settings:
    read_back = {name: value for name in READ_BACK if (value := trial.ran.effective.get(name)) is not None}
    return Settings(
        model=trial.model, arguments={**trial.arguments, **read_back}, environment=trial.environment
    )


def _served(deployment: Deployment, settings: Settings) -> Served:
    quantization = settings.arguments.get("quantization")
    checkpoint = _described(settings.model)[1]
    scheme = served_scheme(quantization if isinstance(quantization, str) else None, checkpoint)
    return Served(
        target=deployment.target,
        target_scheme=scheme.word,
        draft=deployment.draft,
        draft_scheme=_draft_scheme(settings) if deployment.draft is not None else "",
        depth=deployment.depth,
    )


def _draft_scheme(settings: Settings) -> str:
    """A draft model's own; heads of other methods count as unquantised, as in `search_spaces.deployment`."""
    method, model = (at(settings.arguments, f"speculative_config.{name}") for name in ("method", "model"))
    whole = method in (None, "draft_model") and isinstance(model, str)
    return (_described(str(model))[1] if whole else UNQUANTISED).word


def _files(folder: Path, trial: StoredTrial) -> list[Path]:
    """Requests of every replay, the reference first."""
    mine = trial_folder(folder, trial.number)
    steps = range(1, len(trial.step_speeds) + 1)
    return [mine / REQUESTS, *(step_files(mine, number)[0] for number in steps)]


def _whole(trial: StoredTrial, measurement: Measurement, files: list[Path]) -> list[tuple[Path, LoadPoint]]:
    """Two further replays that were played to their ends: the slowest and the fastest."""
    found = []
    for path, speed in zip(files, trial.step_speeds, strict=True):
        points = [p for p in measurement.curve if math.isclose(p.speed, speed, rel_tol=_SAME_SPEED)]
        if points and all(point.cut_s is None for point in points):
            found.append((path, points[0]))
    found.sort(key=lambda pair: pair[1].speed)
    return found if len(found) <= 2 else [found[0], found[-1]]


def _read(
    path: Path, deployment: Deployment, settings: Settings, metrics: Mapping[str, float]
) -> ReplaySteps | None:
    """None where the requests are not there."""
    try:
        records = read_records(path)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowInvalid, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    caching = settings.arguments.get("enable_prefix_caching") is not False
    return replay_steps(
        records,
        depth=deployment.depth,
        budget=deployment.max_num_batched_tokens,
        hit_rate=metrics.get("prefix_hit_rate") if caching else None,
        queries=_queries(deployment, metrics),
    )


def _of_means(study: StudyFile, deployment: Deployment, metrics: Mapping[str, float]) -> ReplaySteps:
    tokens_in, tokens_out = (_figure(study, name) for name in ("input_mean", "output_mean"))
    if tokens_in is None or tokens_out is None:
        raise _SaysNothing("its requests are not there, and the study does not say how long they are")
    queries = _queries(deployment, metrics)
    observed = steps_of_means(metrics, input_tokens=tokens_in, output_tokens=tokens_out, queries=queries)
    return ReplaySteps(
        observed=observed,
        tokens_per_step=metrics.get("accepted_tokens_per_target_step"),
        queries=queries,
        ttft_s=None,
        prefill_s=None,
        prompt_tokens=tokens_in,
        cached_tokens=tokens_in * metrics["prefix_hit_rate"] if "prefix_hit_rate" in metrics else None,
        output_tokens=tokens_out,
        decoding=metrics.get("batch_mean"),
    )


def _figure(study: StudyFile, name: str) -> float | None:
    value: Json = study.trace_figures.get(name)
    return float(value) if isinstance(value, int | float) else None


def _queries(deployment: Deployment, metrics: Mapping[str, float]) -> float:
    """Tokens verified a sequence and step, from means: accepted tokens over the share accepted are those
    proposed. A draft model proposes in every step, n-gram lookup only where it finds something."""
    tokens, share = metrics.get("accepted_tokens_per_target_step"), metrics.get("draft_acceptance")
    if deployment.draft is not None or not deployment.depth or tokens is None or not share:
        return 1.0 + deployment.depth
    return 1.0 + min((tokens - 1.0) / share, float(deployment.depth))


def _values(point: LoadPoint) -> dict[str, float]:
    return {name: estimate.value for name, estimate in point.metrics.items()}


def _described(model: str) -> tuple[ModelShape, Scheme]:
    try:
        return describe(model)
    except EngineFailure as error:
        raise UnknownShape(str(error)) from error
