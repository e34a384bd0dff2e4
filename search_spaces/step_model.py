"""Where the time of one engine step goes, by the first-order model: what is in the batch in, seconds out.

`T = max((W + K + A) / BW, F / C) + overhead` for a forward pass; a step is the target's pass, the draft's
passes and the engine's own time. The constants (BW, C, overheads) are given, so that they can be fitted to
what was measured (`objectives.step_fit`). Bytes and FLOPs are counted by `search_spaces.roofline`; nothing
here runs or measures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.accelerators import Accelerator
from search_spaces.roofline import ForwardPass
from search_spaces.schemes import Scheme

Array = NDArray[np.float64]

LOOKUP_S = 20e-6
"""n-gram lookup of one sequence, where nothing was measured. Rough, as the simulated engine has it."""

_BISECTIONS = 60
_SETTLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What is in the batch of a step; of several steps, the mean of each."""

    sequences: float
    """That decode."""
    queries: float = 1.0
    """Tokens verified for each of these: 1, or 1 + its draft tokens."""
    context: float = 0.0
    """Tokens cached for these, summed. A prefix that was found in the cache is read like any other."""
    prompts: float = 0.0
    """Prompts whose prefill ends in the step."""
    prompt_tokens: float = 0.0
    """Prompt tokens computed in it: those found in the prefix cache are not."""
    prompt_read: float = 0.0
    """Tokens cached for these prompts, the computed ones included."""
    prompt_pairs: float = 0.0
    """Query-key pairs of the computed tokens (`roofline.chunk_pairs`)."""

    def without_prompts(self) -> "StepLoad":
        return StepLoad(sequences=self.sequences, queries=self.queries, context=self.context)

    def without_decoding(self) -> "StepLoad":
        return StepLoad(
            sequences=0.0,
            queries=self.queries,
            prompts=self.prompts,
            prompt_tokens=self.prompt_tokens,
            prompt_read=self.prompt_read,
            prompt_pairs=self.prompt_pairs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A config as a step of it is counted. One rank's share."""

    target: ForwardPass
    target_scheme: str
    """Key into `Constants.compute`."""
    draft: ForwardPass | None = None
    """None where there is no draft model."""
    draft_scheme: str = ""
    depth: int = 0
    """Draft tokens a step; 0 without speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Bytes moved and FLOPs of one forward pass, on one rank."""

    weights: float
    kv: float
    """Cached keys and values that are read."""
    activations: float
    """With the keys and values that are written."""
    flops: float
    scheme: str
    links_s: float
    """All-reduces, as the accelerator's table has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step has to do."""

    target: PassWork
    first_draft: PassWork | None = None
    """The draft's pass over all that the target computed."""
    later_draft: PassWork | None = None
    """Each further one, a token a sequence."""
    depth: int = 0
    """Draft passes; 0 without a draft model."""
    lookups: float = 0.0
    """Sequences for which n-gram lookup runs."""
    sequences: float = 0.0
    """Scheduled: those that decode and those whose prompt is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What hardware and engine sustain."""

    bandwidth: float
    """Bytes per second."""
    compute: Mapping[str, float]
    """FLOPs per second by the scheme of the weights."""
    step_s: float
    """The engine's own time of a step, whatever is in it."""
    sequence_s: float
    """The same, for each sequence in it."""
    draft_step_s: float
    """Launch of one pass of a draft model."""
    lookup_step_s: float = 0.0
    """The engine's own time for n-gram speculation, a step: proposing and rejecting, whatever the batch."""
    lookup_s: float = LOOKUP_S
    """The same, for each sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of a step, by what they are spent on. They add up to the step.

    Memory and compute overlap, so only the longer of the two is counted: where compute binds, weights, KV and
    activations are 0 here, and `hidden_s` is what they would have taken; else the other way round.
    """

    weights_s: float = 0.0
    kv_s: float = 0.0
    activations_s: float = 0.0
    compute_s: float = 0.0
    links_s: float = 0.0
    draft_s: float = 0.0
    """The draft model's passes with their launches, or n-gram lookup."""
    step_s: float = 0.0
    sequence_s: float = 0.0
    hidden_s: float = 0.0
    """Of the target's pass; no part of the step."""

    @property
    def total_s(self) -> float:
        return float(sum(getattr(self, name) for name in PARTS))

    @property
    def memory_s(self) -> float:
        return self.weights_s + self.kv_s + self.activations_s


PARTS = tuple(field.name for field in fields(StepParts) if field.name != "hidden_s")


def step_work(served: Served, load: StepLoad) -> StepWork:
    """Count a step.

    The draft's first pass takes in what the target just computed, prompts included; its others have one token
    a sequence.
    """
    verified = load.sequences * load.queries
    tokens, sampled = verified + load.prompt_tokens, verified + load.prompts
    read = load.context + load.prompt_read
    pairs = load.context * load.queries + load.prompt_pairs
    target = _pass_work(served.target, served.target_scheme, tokens, sampled, read, pairs)
    scheduled = load.sequences + load.prompts
    if served.draft is None:
        lookups = scheduled if served.depth else 0.0
        return StepWork(target=target, lookups=lookups, sequences=scheduled)
    return StepWork(
        target=target,
        first_draft=_pass_work(served.draft, served.draft_scheme, tokens, sampled, read, pairs),
        later_draft=_pass_work(
            served.draft, served.draft_scheme, scheduled, scheduled, load.context, load.context
        ),
        depth=served.depth,
        sequences=scheduled,
    )


def table_constants(accelerator: Accelerator, configs: Sequence[Served]) -> Constants:
    """What the accelerator's table says before anything was measured, for the schemes of these configs."""
    compute = {one.target_scheme: one.target.compute for one in configs}
    compute |= {one.draft_scheme: one.draft.compute for one in configs if one.draft is not None}
    return Constants(
        bandwidth=accelerator.bandwidth,
        compute=compute,
        step_s=accelerator.step_s,
        sequence_s=accelerator.sequence_s,
        draft_step_s=accelerator.draft_step_s,
        lookup_step_s=accelerator.draft_step_s,  # no figure of its own
    )


def sustained(passed: ForwardPass, scheme: Scheme, constants: Constants) -> ForwardPass:
    """A pass of weights in that scheme, as these constants time it; a scheme that they say nothing of keeps
    its compute."""
    compute = constants.compute.get(scheme.word, passed.compute)
    return replace(passed, bandwidth=constants.bandwidth, compute=compute)


def step_parts(work: StepWork, constants: Constants) -> StepParts:
    """Split a step's time."""
    memory = [amount / constants.bandwidth for amount in _bytes(work.target)]
    compute = work.target.flops / constants.compute[work.target.scheme]
    bound = sum(memory) >= compute
    weights, kv, activations = memory if bound else (0.0, 0.0, 0.0)
    draft = _lookup_s(work, constants)
    if work.first_draft is not None and work.later_draft is not None:
        draft += _pass_s(work.first_draft, constants) + work.depth * constants.draft_step_s
        draft += (work.depth - 1) * _pass_s(work.later_draft, constants)
    return StepParts(
        weights_s=weights,
        kv_s=kv,
        activations_s=activations,
        compute_s=0.0 if bound else compute,
        links_s=work.target.links_s,
        draft_s=draft,
        step_s=constants.step_s,
        sequence_s=work.sequences * constants.sequence_s,
        hidden_s=compute if bound else sum(memory),
    )


class WorkTable:
    """Many steps as arrays, so that a fit can time them all at once."""

    def __init__(self, works: Sequence[StepWork]) -> None:
        drafts = [work.first_draft or _NOTHING for work in works]
        later = [work.later_draft or _NOTHING for work in works]
        self._passes = (
            (_PassTable([work.target for work in works]), np.ones(len(works))),
            (_PassTable(drafts), np.array([float(work.depth > 0) for work in works])),
            (_PassTable(later), np.array([max(work.depth - 1.0, 0.0) for work in works])),
        )
        self._depth = np.array([float(work.depth) for work in works])
        self._lookups = np.array([work.lookups for work in works])
        self._sequences = np.array([work.sequences for work in works])

    @property
    def drafts(self) -> bool:
        """Whether any step has a draft model's pass."""
        return bool(self._depth.any())

    @property
    def looks_up(self) -> bool:
        """Whether any step has n-gram lookup."""
        return bool(self._lookups.any())

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of every pass, each once."""
        found = {scheme for table, times in self._passes if times.any() for scheme in table.schemes}
        return tuple(sorted(found - {""}))

    def seconds(self, constants: Constants) -> Array:
        """(n,) what `step_parts` adds up to, step by step."""
        took = constants.step_s + self._sequences * constants.sequence_s
        took = took + self._depth * constants.draft_step_s + self._lookups * constants.lookup_s
        took = took + (self._lookups > 0) * constants.lookup_step_s
        for table, times in self._passes:
            if times.any():
                took = took + times * table.seconds(constants)
        return took


def settled_batch(
    step_s: Callable[[StepLoad], float],
    one: StepLoad,
    *,
    rate: float,
    tokens: float,
    tokens_per_step: float,
    most: float,
) -> float:
    """Sequences that decode at once where requests come evenly: the fixed point of Little's law.

    The batch is the rate times how long a request decodes, that is its steps times a step's time; and a step
    takes longer the more sequences and prompts are in it.

    Args:
        step_s: time of a step with this load.
        one: a request: queries and context of one sequence while it decodes, and its prompt.
        rate: requests per second.
        tokens: output tokens of a request after the first.
        most: batch slots.

    Returns:
        At most `most`: so many where more would be wanted than there is room for.
    """

    def took_s(batch: float) -> float:
        alone_s = mean_s = step_s(_times(one, batch, 0.0))
        for _ in range(_SETTLINGS):  # the longer a step, the more prompts come during it
            coming = rate * mean_s
            mixed = min(coming, 1.0)  # prompts come whole: of few, most steps have none
            with_prompts_s = step_s(_times(one, batch, coming / mixed))
            mean_s = (1 - mixed) * alone_s + mixed * with_prompts_s
        return mean_s

    def wanted(batch: float) -> float:
        return rate * tokens / tokens_per_step * took_s(batch)

    if wanted(most) >= most:
        return most
    low, high = 0.0, most
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if wanted(middle) > middle else (low, middle)
    return high


def _times(one: StepLoad, sequences: float, prompts: float) -> StepLoad:
    return StepLoad(
        sequences=sequences,
        queries=one.queries,
        context=sequences * one.context,
        prompts=prompts,
        prompt_tokens=prompts * one.prompt_tokens,
        prompt_read=prompts * one.prompt_read,
        prompt_pairs=prompts * one.prompt_pairs,
    )


_NOTHING = PassWork(weights=0.0, kv=0.0, activations=0.0, flops=0.0, scheme="", links_s=0.0)


class _PassTable:
    def __init__(self, passes: Sequence[PassWork]) -> None:
        self._moved = np.array([sum(_bytes(one)) for one in passes])
        self._flops = np.array([one.flops for one in passes])
        self._links_s = np.array([one.links_s for one in passes])
        self.schemes = tuple(dict.fromkeys(one.scheme for one in passes))
        places = {scheme: place for place, scheme in enumerate(self.schemes)}
        self._scheme = np.array([places[one.scheme] for one in passes], dtype=np.intp)

    def seconds(self, constants: Constants) -> Array:
        rates = np.array([constants.compute.get(scheme, 1.0) for scheme in self.schemes])[self._scheme]
        took: Array = np.maximum(self._moved / constants.bandwidth, self._flops / rates) + self._links_s
        return took


def _pass_work(
    passed: ForwardPass, scheme: str, tokens: float, sampled: float, read: float, pairs: float
) -> PassWork:
    return PassWork(
        weights=passed.weights_read(tokens),
        kv=passed.kv_bytes * read,
        activations=passed.token_bytes * tokens,
        flops=passed.flops(tokens, sampled, pairs),
        scheme=scheme,
        links_s=passed.fixed_link_s + passed.token_link_s * tokens,
    )


def _lookup_s(work: StepWork, constants: Constants) -> float:
    return constants.lookup_step_s + work.lookups * constants.lookup_s if work.lookups else 0.0


def _bytes(work: PassWork) -> tuple[float, float, float]:
    return work.weights, work.kv, work.activations


def _pass_s(work: PassWork, constants: Constants) -> float:
    memory = sum(_bytes(work)) / constants.bandwidth
    return max(memory, work.flops / constants.compute[work.scheme]) + work.links_s
