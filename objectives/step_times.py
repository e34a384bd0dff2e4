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
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import Record
from search_spaces.roofline import chunk_pairs
from search_spaces.step_model import StepLoad

Array = NDArray[np.float64]

Kind = Literal["decode", "prefill"]

_WITH_PROMPT = 0.2
"""A step with at least so much of a prompt counts as one with prefill: a chunk that was late by a little puts
some of a prompt into the step beside its own."""
_JITTER = 0.2
"""Chunks of one step reach their clients within this share of a usual step."""
_LEAST_STEPS = 8
"""Of a mean that is worth having."""
_PER_BIN = 15
"""Steps for one more bin, so that a short replay has one and a long one tells small batches from large."""
_BATCH_BINS, _PROMPT_BINS = 3, 8
"""Many for prompts: where memory binds the short and compute the long, their mean is neither's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Steps that are alike, as means over them."""

    kind: Kind
    """"decode": steps as a decoding sequence sees them, each counted once for every sequence in it.
    "prefill": steps in which prompts are computed, each counted once for every prompt."""
    seconds: float
    """Of one step."""
    steps: float
    load: StepLoad


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
    gaps = _Gaps.of(streams, depth)
    verified = _queries(streams, gaps, depth, queries)
    batch = _Batch(streams)
    prompts = _Prompts(streams, batch, gaps.usual_s, budget or math.inf, verified, hit_rate or 0.0)
    observed = [*_decode(gaps, batch, prompts, verified), *_prefill(batch, prompts, verified)]
    known = prompts.known
    told = [record.cached_tokens for record in streams if record.cached_tokens is not None]
    return ReplaySteps(
        observed=tuple(observed),
        tokens_per_step=float(gaps.tokens.sum() / gaps.steps.sum()) if len(gaps.steps) else None,
        queries=verified,
        ttft_s=float(prompts.ttft_s[known].mean()) if known.any() else None,
        prefill_s=float(prompts.lasted_s[known].mean()) if known.any() else None,
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
    return (Observed(kind="decode", seconds=tpot_s * tokens, steps=steps, load=load),)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Every gap between two chunks of an answered request, (g,) each."""

    start_s: Array
    end_s: Array
    tokens: Array
    steps: Array

    @classmethod
    def of(cls, streams: Sequence[Record], depth: int) -> "_Gaps":
        answered = [record for record in streams if record.ok and len(record.chunk_s) > 1]
        if not answered:
            return cls(*(np.zeros(0) for _ in range(4)))
        start = np.concatenate([np.array(record.chunk_s[:-1]) for record in answered])
        end = np.concatenate([np.array(record.chunk_s[1:]) for record in answered])
        tokens = np.concatenate([np.diff(np.array(record.chunk_tokens)) for record in answered])
        # A server that is behind puts what several steps gave into one chunk.
        steps = np.maximum(np.ceil(tokens / (1 + depth)), 1.0)
        return cls(start, end, tokens.astype(np.float64), steps)

    @property
    def usual_s(self) -> float:
        """A usual step."""
        return float(np.median((self.end_s - self.start_s) / self.steps)) if len(self.steps) else 0.0


class _Batch:
    """Who decodes, and how much is cached for them, at any time."""

    def __init__(self, streams: Sequence[Record]) -> None:
        firsts = np.array([record.chunk_s[0] for record in streams])
        lasts = np.array([record.chunk_s[-1] for record in streams])
        self._starts, self._ends = np.sort(firsts), np.sort(lasts)
        times, changes = [], []
        for record in streams:
            held = record.tokens_in + np.array(record.chunk_tokens, dtype=np.float64)
            held[-1] = 0.0  # its cache is free once its last token is out
            times.append(np.array(record.chunk_s))
            changes.append(np.diff(held, prepend=0.0))
        self.chunk_s = np.concatenate(times)
        order = np.argsort(self.chunk_s, kind="stable")
        self.chunk_s = self.chunk_s[order]
        self._context = np.concatenate([[0.0], np.cumsum(np.concatenate(changes)[order])])

    def sequences(self, at_s: Array) -> Array:
        started = np.searchsorted(self._starts, at_s, side="right")
        ended = np.searchsorted(self._ends, at_s, side="right")
        return (started - ended).astype(np.float64)

    def context(self, at_s: Array) -> Array:
        """Summed over them."""
        cached: Array = self._context[np.searchsorted(self.chunk_s, at_s, side="right")]
        return cached

    def last_chunk_before(self, at_s: Array) -> Array:
        """-inf before the first."""
        place = np.searchsorted(self.chunk_s, at_s, side="left")
        before: Array = np.concatenate([[-np.inf], self.chunk_s])[place]
        return before


class _Prompts:
    """When each prompt was computed: from `start_s` to its first token."""

    def __init__(
        self,
        streams: Sequence[Record],
        batch: _Batch,
        usual_s: float,
        budget: float,
        queries: float,
        hit_rate: float,
    ) -> None:
        self.first_s = np.array([record.chunk_s[0] for record in streams])
        sent = np.array([record.due_s if record.sent_s is None else record.sent_s for record in streams])
        whole = np.array([max(record.tokens_in, 1) for record in streams], dtype=np.float64)
        cached = np.array(
            [
                whole[place] * hit_rate if record.cached_tokens is None else record.cached_tokens
                for place, record in enumerate(streams)
            ]
        )
        self.fresh = np.maximum(whole - cached, 1.0)
        told = np.array(
            [np.nan if r.server_ttft_s is None else r.server_ttft_s for r in streams], dtype=np.float64
        )
        # Since the engine's first step for it where that is said, else since it was sent; but a prompt that
        # fits into one step was not begun before the last step had ended, whatever the engine planned ahead.
        start = np.where(np.isnan(told), sent, np.maximum(self.first_s - told, sent))
        before = batch.last_chunk_before(self.first_s - _JITTER * usual_s)
        room = np.maximum(budget - batch.sequences(before) * queries, 1.0)
        at_once = self.fresh <= room
        start = np.where(at_once | np.isnan(told), np.maximum(start, before), start)
        self.start_s = np.minimum(start, self.first_s - 1e-6)
        self.lasted_s = self.first_s - self.start_s
        self.ttft_s = self.first_s - sent
        self.steps = np.where(at_once, 1.0, np.ceil(self.fresh / room))
        answered = np.array([record.ok for record in streams])
        self.known: NDArray[np.bool_] = answered & (at_once | ~np.isnan(told))
        pairs = np.array([chunk_pairs(int(w - f), int(f)) for w, f in zip(whole, self.fresh, strict=True)])
        self._amounts = (np.ones(len(whole)), self.fresh, whole, pairs)
        self._curves = [self._curve(amounts) for amounts in self._amounts]

    def _curve(self, amounts: Array) -> tuple[Array, Array]:
        """Times, and how much had been computed by then; each prompt evenly over its time."""
        slope = amounts / self.lasted_s
        times = np.concatenate([self.start_s, self.first_s])
        slopes = np.concatenate([slope, -slope])
        order = np.argsort(times, kind="stable")
        times, rising = times[order], np.cumsum(slopes[order])
        done = np.concatenate([[0.0], np.cumsum(rising[:-1] * np.diff(times))])
        return times, done

    def between(self, start_s: Array, end_s: Array) -> tuple[Array, Array, Array, Array]:
        """Prompts, their fresh tokens, all their tokens, and pairs computed between times."""
        prompts, fresh, whole, pairs = (
            np.maximum(np.interp(end_s, times, done) - np.interp(start_s, times, done), 0.0)
            for times, done in self._curves
        )
        return prompts, fresh, whole, pairs


def _decoding(streams: Sequence[Record], due_s: Sequence[float]) -> float | None:
    start, end = min(due_s), max(due_s)
    if end <= start:
        return None
    spans = (min(record.chunk_s[-1], end) - max(record.chunk_s[0], start) for record in streams)
    return sum(max(span, 0.0) for span in spans) / (end - start)


def _queries(streams: Sequence[Record], gaps: _Gaps, depth: int, given: float | None) -> float:
    if not depth:
        return 1.0
    answered = [record for record in streams if record.ok]
    drafted = [record.draft_tokens for record in answered if record.draft_tokens is not None]
    if len(drafted) == len(answered) and gaps.steps.sum() > 0:
        return 1.0 + min(sum(drafted) / float(gaps.steps.sum()), float(depth))
    return 1.0 + depth if given is None else given


def _decode(gaps: _Gaps, batch: _Batch, prompts: _Prompts, queries: float) -> list[Observed]:
    if not len(gaps.steps):
        return []
    middle = (gaps.start_s + gaps.end_s) / 2
    sequences, context = np.maximum(batch.sequences(middle), 1.0), batch.context(middle)
    rows = _Rows(
        gaps.end_s - gaps.start_s,
        gaps.steps,
        sequences,
        context,
        prompts.between(gaps.start_s, gaps.end_s),
    )
    with_prompt = rows.prompts[0] >= _WITH_PROMPT * gaps.steps
    return [
        *rows.binned("decode", ~with_prompt, by=sequences, bins=_BATCH_BINS, queries=queries),
        *rows.binned(
            "decode", with_prompt, by=rows.prompts[1] / gaps.steps, bins=_PROMPT_BINS, queries=queries
        ),
    ]


def _prefill(batch: _Batch, prompts: _Prompts, queries: float) -> list[Observed]:
    middle = (prompts.start_s + prompts.first_s) / 2
    rows = _Rows(
        prompts.lasted_s,
        prompts.steps,
        batch.sequences(middle),
        batch.context(middle),
        prompts.between(prompts.start_s, prompts.first_s),
    )
    return rows.binned("prefill", prompts.known, by=rows.prompts[1], bins=_PROMPT_BINS, queries=queries)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Stretches of steps, (n,) each."""

    lasted_s: Array
    steps: Array
    sequences: Array
    context: Array
    prompts: tuple[Array, Array, Array, Array]
    """As `_Prompts.between` gives it, over the whole stretch."""

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
            mine = chosen & (bin_of == place)
            if self.steps[mine].sum() >= _LEAST_STEPS:
                found.append(self._mean(kind, mine, queries))
        return found

    def _mean(self, kind: Kind, mine: NDArray[np.bool_], queries: float) -> Observed:
        steps = self.steps[mine]
        total = float(steps.sum())

        def mean(amounts: Array) -> float:
            return float((amounts[mine] * steps).sum()) / total

        prompts, fresh, whole, pairs = (float(amount[mine].sum()) / total for amount in self.prompts)
        return Observed(
            kind=kind,
            seconds=float(self.lasted_s[mine].sum()) / total,
            steps=total,
            load=StepLoad(
                sequences=mean(self.sequences),
                queries=queries,
                context=mean(self.context),
                prompts=prompts,
                prompt_tokens=fresh,
                prompt_read=whole,
                prompt_pairs=pairs,
            ),
        )
