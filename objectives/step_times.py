"""How long the engine's steps took and what was in them, read off what a replay's clients received.

Nothing in an engine's counters says how long a step took. The client's records do: every sequence of a batch
gets its next tokens at a step's end, so the gap between two chunks of a request is one step, and the requests
that are between their first and their last chunk are the batch. A prompt is computed between its request's
first step and its first token.

So a decode token's time splits by itself into steps with decoding alone and steps that compute prompts as
well, which means over a replay (batch, TPOT) cannot tell apart. Pure; docs/explain.md says what is left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import Record
from objectives.step_timeline import Places, Timeline, timeline
from search_spaces.step_model import StepLoad

Array = NDArray[np.float64]

Kind = Literal["decode", "prefill"]

_LEAST_STEPS = 8
"""Of a mean that is worth having."""
_PER_BIN = 15
"""Steps for one more bin, so that a short replay has one and a long one tells small batches from large."""
_BATCH_BINS, _PROMPT_BINS = 3, 4
_SLICES = 8
"""Of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Some of a group's steps."""

    share: float
    """Of the group's."""
    load: StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A group of like steps, as means over them."""

    kind: Kind
    """"decode": steps as a decoding sequence sees them, each counted once for every sequence in it.
    "prefill": steps in which prompts are computed, each counted once for every prompt."""
    seconds: float
    """Of one step."""
    steps: float
    load: StepLoad
    slices: tuple[Slice, ...]
    """The same load in finer parts: where memory binds some of the steps and compute others, a mean step
    takes less than the mean of the steps. Only times are noisy, what was in a step is known: parts may be
    small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySteps:
    """One replay."""

    observed: tuple[Observed, ...]
    tokens_per_step: float | None
    """Output tokens a sequence gets in a step; None where nothing decoded."""
    queries: float
    """Tokens verified for a sequence in a step."""
    ttft_s: float | None
    """Mean time to first token, from sending, of the requests whose prefill is among the observed."""
    prefill_s: float | None
    """Mean of these requests' prefill; the rest of their time to first token they waited."""
    prompt_tokens: float | None
    """Mean tokens of a prompt."""
    cached_tokens: float | None
    """Of these found in the prefix cache; None where the engine does not say."""
    output_tokens: float | None
    """Mean tokens of an answer."""
    decoding: float | None
    """Sequences that decode, mean over time while requests came; None where all came at once."""


def replay_steps(
    records: Sequence[Record],
    *,
    depth: int,
    budget: int | None = None,
    hit_rate: float | None = None,
    queries: float | None = None,
) -> ReplaySteps:
    """Read the steps of a whole replay.

    Args:
        depth: draft tokens a step; 0 without speculation.
        budget: most tokens a step; None: unknown, prompts are taken to fit into one.
        hit_rate: share of prompt tokens found in the prefix cache, for records that do not say.
        queries: tokens verified a sequence and step, where records do not tell; None: 1 + depth.
    """
    streams = [record for record in records if record.chunk_s]
    if not streams:
        return ReplaySteps(
            observed=(),
            tokens_per_step=None,
            queries=1.0 + depth,
            ttft_s=None,
            prefill_s=None,
            prompt_tokens=None,
            cached_tokens=None,
            output_tokens=None,
            decoding=None,
        )
    verified = _queries(streams, depth, queries)
    steps = timeline(
        streams,
        usual_s=_usual_s(streams, depth),
        reserved=1.0 + depth,
        budget=budget or math.inf,
        hit_rate=hit_rate or 0.0,
    )
    gaps, prefills = _gaps(streams, steps, depth), _prefills(streams, steps)
    told = [record.cached_tokens for record in streams if record.cached_tokens is not None]
    answered = [record for record in streams if record.ok]
    return ReplaySteps(
        observed=(*_decode_groups(gaps, verified), *_prefill_groups(prefills, verified)),
        tokens_per_step=float(gaps.tokens.sum() / gaps.steps.sum()) if len(gaps.steps) else None,
        queries=verified,
        ttft_s=float(np.mean([_ttft_s(record) for record in answered])) if answered else None,
        prefill_s=float(prefills.lasted_s.mean()) if len(prefills.lasted_s) else None,
        prompt_tokens=float(np.mean([record.tokens_in for record in streams])),
        cached_tokens=float(np.mean(told)) if len(told) == len(streams) else None,
        output_tokens=float(np.mean([record.tokens_out for record in streams])),
        decoding=_decoding(streams, [record.due_s for record in records]),
    )


def steps_of_means(
    metrics: Mapping[str, float], *, input_tokens: float, output_tokens: float, queries: float
) -> tuple[Observed, ...]:
    """The one observation that a replay's means give where its records are not there; empty where they lack.

    A step as a decoding sequence sees it takes TPOT times the tokens it gives; batch and tokens a step are
    means over the replay, its beginning and end included. This is rougher than `replay_steps`.
    """
    names = ("tpot_mean_s", "accepted_tokens_per_target_step", "batch_mean", "tokens_per_target_step")
    tpot_s, tokens, sequences, processed = (metrics.get(name) for name in names)
    if tpot_s is None or tokens is None or sequences is None or processed is None:
        return ()
    fresh = max(input_tokens * (1 - metrics.get("prefix_hit_rate", 0.0)), 1.0)
    computed = max(processed - sequences * tokens, 0.0)
    prompts = computed / fresh
    load = StepLoad(
        sequences=sequences,
        queries=queries,
        context=sequences * (input_tokens + output_tokens / 2),
        prompts=prompts,
        prompt_tokens=computed,
        prompt_read=prompts * input_tokens,
        prompt_pairs=prompts * (fresh * (input_tokens - fresh) + fresh * (fresh + 1) / 2),
    )
    steps = metrics.get("target_steps", 1.0)
    alike = (Slice(share=1.0, load=load),)
    return (Observed(kind="decode", seconds=tpot_s * tokens, steps=steps, load=load, slices=alike),)


def _chunk_steps(record: Record, depth: int) -> Array:
    """Steps behind each chunk after the first: a server that is behind puts what several gave into one."""
    tokens = np.diff(np.array(record.chunk_tokens))
    steps: Array = np.maximum(np.ceil(tokens / (1 + depth)), 1.0)
    return steps


def _usual_s(streams: Sequence[Record], depth: int) -> float:
    """A usual step."""
    each = [np.diff(np.array(record.chunk_s)) / _chunk_steps(record, depth) for record in streams]
    found = np.concatenate(each)
    return float(np.median(found)) if len(found) else 0.0


def _ttft_s(record: Record) -> float:
    return record.chunk_s[0] - (record.due_s if record.sent_s is None else record.sent_s)


def _queries(streams: Sequence[Record], depth: int, given: float | None) -> float:
    if not depth:
        return 1.0
    answered = [record for record in streams if record.ok]
    drafted = [record.draft_tokens for record in answered if record.draft_tokens is not None]
    steps = sum(float(_chunk_steps(record, depth).sum()) for record in answered)
    if len(drafted) == len(answered) and steps > 0:
        return 1.0 + min(sum(drafted) / steps, float(depth))
    return 1.0 + depth if given is None else given


def _decoding(streams: Sequence[Record], due_s: Sequence[float]) -> float | None:
    start, end = min(due_s), max(due_s)
    if end <= start:
        return None
    spans = (min(record.chunk_s[-1], end) - max(record.chunk_s[0], start) for record in streams)
    return sum(max(span, 0.0) for span in spans) / (end - start)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Stretches of one step or a few, (n,) each."""

    lasted_s: Array
    steps: Array
    tokens: Array
    """Output tokens that they gave the sequence whose stretch it is."""
    sequences: Array
    """Mean of the steps, like the context."""
    context: Array
    prompts: tuple[Array, Array, Array, Array]
    """Prompts that ended, tokens computed, read, and pairs: over the whole stretch."""

    @classmethod
    def of(cls, timeline: Timeline, after: Places, upto: Places, lasted_s: Array, tokens: Array) -> "_Rows":
        """The steps from the one behind `after` to `upto`; that one alone where nothing lies between."""
        sums = [
            np.concatenate([[0.0], np.cumsum(amount)])
            for amount in (
                timeline.prompts,
                timeline.prompt_tokens,
                timeline.prompt_read,
                timeline.prompt_pairs,
            )
        ]
        first = np.minimum(after + 1, upto)
        count = upto - first + 1.0
        held = [
            np.concatenate([[0.0], np.cumsum(amount)]) for amount in (timeline.sequences, timeline.context)
        ]
        sequences, context = ((total[upto + 1] - total[first]) / count for total in held)
        none = after >= upto  # two chunks of one step: its prompts count in the gap before
        prompts, fresh, read, pairs = (np.where(none, 0.0, total[upto + 1] - total[first]) for total in sums)
        return cls(lasted_s, count, tokens, sequences, context, (prompts, fresh, read, pairs))

    def binned(
        self, kind: Kind, chosen: NDArray[np.bool_], *, by: Array, bins: int, queries: float
    ) -> list[Observed]:
        """Means of like steps: of the chosen, in up to so many bins of equal numbers."""
        steps = float(self.steps[chosen].sum())
        if steps < _LEAST_STEPS:
            return []
        many = max(min(bins, int(steps // _PER_BIN)), 1)
        edges = np.quantile(by[chosen], [place / many for place in range(1, many)])
        bin_of = np.searchsorted(edges, by, side="left")
        found = []
        for place in range(many):
            mine = np.flatnonzero(chosen & (bin_of == place))
            if self.steps[mine].sum() >= _LEAST_STEPS:
                found.append(self._group(kind, mine[np.argsort(by[mine], kind="stable")], queries))
        return found

    def _group(self, kind: Kind, mine: NDArray[np.intp], queries: float) -> Observed:
        """The mean of these rows, which are in the order that their slices are cut in."""
        steps = float(self.steps[mine].sum())
        slices = [rows for rows in np.array_split(mine, _SLICES) if len(rows)]
        return Observed(
            kind=kind,
            seconds=float(self.lasted_s[mine].sum()) / steps,
            steps=steps,
            load=self._load(mine, queries),
            slices=tuple(
                Slice(share=float(self.steps[rows].sum()) / steps, load=self._load(rows, queries))
                for rows in slices
            ),
        )

    def _load(self, mine: NDArray[np.intp], queries: float) -> StepLoad:
        steps = self.steps[mine]
        total = float(steps.sum())
        prompts, fresh, whole, pairs = (float(amount[mine].sum()) / total for amount in self.prompts)
        return StepLoad(
            sequences=float((self.sequences[mine] * steps).sum()) / total,
            queries=queries,
            context=float((self.context[mine] * steps).sum()) / total,
            prompts=prompts,
            prompt_tokens=fresh,
            prompt_read=whole,
            prompt_pairs=pairs,
        )


def _gaps(streams: Sequence[Record], steps: Timeline, depth: int) -> _Rows:
    """Every gap between two chunks of an answered request."""
    answered = [
        (record, places)
        for record, places in zip(streams, steps.step_of_chunk, strict=True)
        if record.ok and len(places) > 1
    ]
    if not answered:
        return _NO_ROWS
    rows = _Rows.of(
        steps,
        np.concatenate([places[:-1] for _, places in answered]),
        np.concatenate([places[1:] for _, places in answered]),
        np.concatenate([np.diff(np.array(record.chunk_s)) for record, _ in answered]),
        np.concatenate([np.diff(np.array(record.chunk_tokens)) for record, _ in answered]).astype(np.float64),
    )
    return replace(rows, steps=np.concatenate([_chunk_steps(record, depth) for record, _ in answered]))


def _prefills(streams: Sequence[Record], steps: Timeline) -> _Rows:
    """Of each answered request the steps that computed its prompt."""
    answered = np.array([record.ok for record in streams])
    if not answered.any():
        return _NO_ROWS
    upto = np.array([places[0] for places in steps.step_of_chunk])[answered]
    first = steps.first_prompt_step[answered]
    ended_s = np.array([record.chunk_s[0] for record in streams])[answered]
    lasted = np.maximum(ended_s - steps.begin_s[first], 1e-9)
    rows = _Rows.of(steps, first - 1, upto, lasted, np.ones(len(upto)))
    passes = np.concatenate([[0.0], np.cumsum(steps.passes)])
    return replace(rows, steps=passes[upto + 1] - passes[first])


_NOTHING = np.zeros(0)
_NO_ROWS = _Rows(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, (_NOTHING, _NOTHING, _NOTHING, _NOTHING))


def _decode_groups(gaps: _Rows, queries: float) -> list[Observed]:
    if not len(gaps.steps):
        return []
    tokens = gaps.prompts[1] / gaps.steps
    plain, mixed = tokens == 0, tokens > 0
    return [
        *gaps.binned("decode", plain, by=gaps.sequences, bins=_BATCH_BINS, queries=queries),
        *gaps.binned("decode", mixed, by=tokens, bins=_PROMPT_BINS, queries=queries),
    ]


def _prefill_groups(prefills: _Rows, queries: float) -> list[Observed]:
    if not len(prefills.steps):
        return []
    every = np.ones(len(prefills.steps), dtype=np.bool_)
    tokens = prefills.prompts[1] / prefills.steps
    return prefills.binned("prefill", every, by=tokens, bins=_PROMPT_BINS, queries=queries)
