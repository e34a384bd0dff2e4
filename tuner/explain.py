"""Why a trial is as fast as it is: where the time of its decode tokens and prompt tokens goes.

The first-order model is fitted on all trials of the study and held against each; where it is further off in a
trial than it is in the others, it explains nothing there, and nothing is shown.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from objectives.measurement import Mode
from objectives.step_fit import LEAST_TRIALS, StepFit, fit_steps
from objectives.step_times import Kind, Observed
from search_spaces.accelerators import Accelerator, accelerator
from search_spaces.step_model import (
    PARTS,
    Constants,
    Served,
    StepLoad,
    StepParts,
    settled_batch,
    step_parts,
    step_work,
    table_constants,
)
from tuner.loads import mode
from tuner.mistakes import Mistake
from tuner.records import StoredTrial, StudyFile, read_study, read_trials
from tuner.step_readings import LeftOut, TrialSteps, read_steps
from tuner.titles import space_of

BESIDE = "beside"
"""Name of the part that is not the token's own: prompts of others in a decode token's time, decoding of
others in a prompt token's."""

_ENDS = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a token's time."""

    name: str
    """Of `StepParts`, or `BESIDE`."""
    seconds: float
    low: float
    """Ends of the 95 % interval, as far as the constants are known."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A token's time by part, as the fitted model has it."""

    parts: tuple[Part, ...]
    """They add up to the model's time."""
    binds: str
    """What the forward passes are limited by: "memory bandwidth" or "compute"."""
    bound_share: float
    """Share of the forward passes' time in which that binds."""
    hidden_s: float
    """What the other of the two would take by itself, a token."""

    @property
    def total_s(self) -> float:
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTime:
    """A decode token's time, or a computed prompt token's, in the replay that the trial's metrics are of."""

    kind: Kind
    measured_s: float
    model_s: float
    step_s: float
    """The mean step measured, as the token meets it."""
    tokens_per_step: float
    """Output tokens a sequence and step, or prompt tokens a step."""
    load: StepLoad
    """Mean of the steps."""
    left_out: float | None
    """log(model / measured) with constants fitted without this trial; None where no error can be stated."""
    allowed: float | None
    """The size up to which it is like the other trials'."""
    split: Split | None
    """None where the model does not explain the trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt's way to its first token. Means."""

    ttft_s: float
    """From when the request was sent."""
    prefill_s: float
    """Of this, the steps that computed it; before them it waited."""
    tokens: float
    cached_tokens: float | None
    """Of these found in the prefix cache."""
    spared_s: float | None
    """What the model says it would take to compute those as well; None where it explains no prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One trial, explained as far as the model goes."""

    study: StudyFile
    trial: StoredTrial
    hardware: str
    fit: StepFit
    used: tuple[TrialSteps, ...]
    left_out: tuple[LeftOut, ...]
    decode: TokenTime
    prefill: TokenTime | None
    """None where no prefill was seen."""
    prompt: Prompt | None
    settled: float | None
    """Sequences that would decode at once where requests come evenly at the offered rate, by the fitted
    model; None in a closed loop, and where the model does not explain the trial."""
    decoding: float | None
    """Sequences that did decode, mean over time while requests came."""
    max_num_seqs: int
    of_means: tuple[int, ...]
    """Trials whose requests were not there."""


def explain(folder: Path, number: int) -> Explanation:
    """Explain one trial of the study that lies there.

    Raises:
        Mistake: no such trial, it says nothing of its steps, or too few trials do to state an error.
        RecordError: the study cannot be read.
    """
    study, trials = read_study(folder), read_trials(folder)
    trial = _finished(study, trials, number)
    device = _accelerator(study)
    used, left_out = read_steps(folder, study, trials, device)
    _check_told(study, number, left_out)
    used, elsewhere = _same_hardware(used, trial)
    left_out = tuple(sorted((*left_out, *elsewhere), key=lambda one: one.number))
    if len(used) < LEAST_TRIALS:
        raise Mistake(
            f"study {study.name} has {len(used)} trial(s) whose steps can be read, and an error can be "
            f"stated from {LEAST_TRIALS} on; search it further (tuner search --resume --study {study.name})"
        )
    table = table_constants(device, [one.served for one in used])
    fit = fit_steps([o for one in used for o in one.observations()], table)
    mine = next(one for one in used if one.trial.number == number)
    decode = _token_time("decode", mine, fit)
    if decode is None:
        raise Mistake(f"trial {number} of study {study.name} has too few decode steps to time any")
    prefill = _token_time("prefill", mine, fit)
    return Explanation(
        study=study,
        trial=trial,
        hardware=trial.ran.hardware or "unknown hardware",
        fit=fit,
        used=used,
        left_out=left_out,
        decode=decode,
        prefill=prefill,
        prompt=_prompt(mine, prefill),
        settled=_settled(study, mine, fit) if decode.split is not None else None,
        decoding=mine.reference.decoding,
        max_num_seqs=mine.max_num_seqs,
        of_means=tuple(one.trial.number for one in used if one.of_means),
    )


def _finished(study: StudyFile, trials: Sequence[StoredTrial], number: int) -> StoredTrial:
    for trial in trials:
        if trial.number == number:
            return trial
    finished = ", ".join(str(trial.number) for trial in trials) or "none"
    raise Mistake(f"study {study.name} has no finished trial {number}; finished are {finished}")


def _accelerator(study: StudyFile) -> Accelerator:
    space = space_of(study)
    if space is None:
        raise Mistake(
            f"this version cannot read the space of study {study.name}, so it has no figures for it"
        )
    named = space.resources.accelerator or ("cpu" if space.resources.gpus == 0 else "H100-80G")
    try:
        return accelerator(named)
    except ValueError as error:
        raise Mistake(f"study {study.name}: {error}") from error


def _check_told(study: StudyFile, number: int, left_out: Sequence[LeftOut]) -> None:
    for one in left_out:
        if one.number == number:
            raise Mistake(f"trial {number} of study {study.name} has nothing to explain: {one.reason}")


def _same_hardware(
    used: Sequence[TrialSteps], trial: StoredTrial
) -> tuple[tuple[TrialSteps, ...], tuple[LeftOut, ...]]:
    here = tuple(one for one in used if one.trial.ran.hardware == trial.ran.hardware)
    elsewhere = tuple(
        LeftOut(number=one.trial.number, reason=f"on other hardware: {one.trial.ran.hardware}")
        for one in used
        if one.trial.ran.hardware != trial.ran.hardware
    )
    return here, elsewhere


def _token_time(kind: Kind, mine: TrialSteps, fit: StepFit) -> TokenTime | None:
    observed = [one for one in mine.reference.observed if one.kind == kind]
    if not observed:
        return None
    weights = np.array([one.steps for one in observed])
    weights = weights / weights.sum()
    step_s = float(weights @ [one.seconds for one in observed])
    load = _mean_load(observed, weights)
    tokens = load.prompt_tokens if kind == "prefill" else (mine.reference.tokens_per_step or 1.0)
    slices = [
        (weight * part.share, part.load)
        for weight, one in zip(weights.tolist(), observed, strict=True)
        for part in one.slices
    ]
    model_s = sum(w * step_parts(step_work(mine.served, part), fit.constants).total_s for w, part in slices)
    errors = fit.errors.get(kind)
    number = mine.trial.number
    error = None if errors is None else errors.of(number)
    split = None
    if errors is not None and errors.explains(number):
        split = _split(kind, mine.served, [(weight / tokens, part) for weight, part in slices], fit)
    return TokenTime(
        kind=kind,
        measured_s=step_s / tokens,
        model_s=model_s / tokens,
        step_s=step_s,
        tokens_per_step=tokens,
        load=load,
        left_out=None if error is None else error.left_out,
        allowed=None if errors is None else errors.allowed(number),
        split=split,
    )


def _mean_load(observed: Sequence[Observed], weights: np.ndarray) -> StepLoad:
    def mean(amount: Callable[[StepLoad], float]) -> float:
        return float(weights @ [amount(one.load) for one in observed])

    return StepLoad(
        sequences=mean(lambda load: load.sequences),
        queries=mean(lambda load: load.queries),
        context=mean(lambda load: load.context),
        prompts=mean(lambda load: load.prompts),
        prompt_tokens=mean(lambda load: load.prompt_tokens),
        prompt_read=mean(lambda load: load.prompt_read),
        prompt_pairs=mean(lambda load: load.prompt_pairs),
    )


def _split(kind: Kind, served: Served, slices: Sequence[tuple[float, StepLoad]], fit: StepFit) -> Split:
    """The mean step by part, a token; what others put into it is one part."""
    weights = np.array([weight for weight, _ in slices])
    pairs = [(step_work(served, _own(kind, load)), step_work(served, load)) for _, load in slices]

    def amounts(constants: Constants) -> np.ndarray:
        rows = []
        for alone, whole in pairs:
            parts = step_parts(alone, constants)
            beside = step_parts(whole, constants).total_s - parts.total_s
            rows.append([*(getattr(parts, name) for name in PARTS), beside])
        summed: np.ndarray = weights @ np.array(rows)
        return summed

    best = amounts(fit.constants)
    spread = np.quantile([amounts(constants) for constants in fit.draws], _ENDS, axis=0)
    parts = (
        Part(name=name, seconds=float(best[at]), low=float(spread[0, at]), high=float(spread[1, at]))
        for at, name in enumerate((*PARTS, BESIDE))
    )
    each = [step_parts(alone, fit.constants) for alone, _ in pairs]
    memory = float(weights @ [one.memory_s for one in each])
    compute = float(weights @ [one.compute_s for one in each])
    return Split(
        parts=tuple(part for part in parts if part.seconds > 0),
        binds="memory bandwidth" if memory >= compute else "compute",
        bound_share=max(memory, compute) / (memory + compute) if memory + compute > 0 else 1.0,
        hidden_s=_hidden(each, weights, memory >= compute),
    )


def _own(kind: Kind, load: StepLoad) -> StepLoad:
    return load.without_prompts() if kind == "decode" else load.without_decoding()


def _hidden(each: Sequence[StepParts], weights: np.ndarray, memory_binds: bool) -> float:
    """The other limit's time over all steps, those in which it binds included."""
    return float(
        weights
        @ [
            (one.compute_s or one.hidden_s) if memory_binds else (one.memory_s or one.hidden_s)
            for one in each
        ]
    )


def _prompt(mine: TrialSteps, prefill: TokenTime | None) -> Prompt | None:
    steps = mine.reference
    if steps.ttft_s is None or steps.prefill_s is None or steps.prompt_tokens is None:
        return None
    spared = None
    if prefill is not None and prefill.split is not None and steps.cached_tokens:
        # Only what grows with the tokens is spared: a step was there anyway.
        grows = sum(p.seconds for p in prefill.split.parts if p.name in ("compute_s", "activations_s"))
        spared = steps.cached_tokens * grows
    return Prompt(
        ttft_s=steps.ttft_s,
        prefill_s=steps.prefill_s,
        tokens=steps.prompt_tokens,
        cached_tokens=steps.cached_tokens,
        spared_s=spared,
    )


def _settled(study: StudyFile, mine: TrialSteps, fit: StepFit) -> float | None:
    """The batch by Little's law at the offered rate; None where there is no rate."""
    measurement = mine.trial.measurement
    rate = None if measurement is None else measurement.value("offered_rps")
    steps = mine.reference
    prompts = [one for one in steps.observed if one.kind == "prefill" and one.load.prompts > 0]
    decode = [one for one in steps.observed if one.kind == "decode"]
    tokens = steps.output_tokens
    if mode(study) is Mode.CLOSED or rate is None or tokens is None or not prompts or not decode:
        return None
    weights = np.array([one.steps for one in prompts])
    load = _mean_load(prompts, weights / weights.sum())
    shares = np.array([one.steps for one in decode])
    beside = _mean_load(decode, shares / shares.sum())
    one = StepLoad(
        sequences=1.0,
        queries=steps.queries,
        context=beside.context / beside.sequences,
        prompts=1.0,
        prompt_tokens=load.prompt_tokens / load.prompts,
        prompt_read=load.prompt_read / load.prompts,
        prompt_pairs=load.prompt_pairs / load.prompts,
    )
    return settled_batch(
        lambda load: step_parts(step_work(mine.served, load), fit.constants).total_s,
        one,
        rate=rate,
        tokens=tokens - 1,
        tokens_per_step=steps.tokens_per_step or 1.0,
        most=float(mine.max_num_seqs),
    )


def percent(logarithm: float) -> float:
    """log(model / measured) as a share: 0.1 where the model is 10 % above."""
    return math.expm1(logarithm)
