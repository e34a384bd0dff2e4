"""The engine's steps, one after the other, as the clients of a replay can tell: when each ended, which
sequences decoded in it and which prompts were computed.

Chunks that reach clients together were made by one step. A request decodes in every step after the one that
gave its first token, up to the one that gave its last. Its prompt was computed in the step of its first
token, and in those before it that were full: an engine splits a prompt only where the token budget ends.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import Record
from search_spaces.roofline import chunk_pairs

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_TOGETHER = 0.3
"""Of a step's length: chunks of different requests that come within so much of it are of one step."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps in order of time, (k,) each; steps that gave no chunk are part of the next that did."""

    begin_s: Array
    end_s: Array
    passes: Array
    """Steps that this one stands for."""
    sequences: Array
    """That decode."""
    context: Array
    """Tokens cached for these, summed."""
    prompts: Array
    """Prompts that end in it."""
    prompt_tokens: Array
    """Computed."""
    prompt_read: Array
    prompt_pairs: Array
    step_of_chunk: tuple[Places, ...]
    """Of each request, which step gave each of its chunks."""
    first_prompt_step: Places
    """(r,) the step in which each request's prompt began to be computed."""


def timeline(
    streams: Sequence[Record], *, usual_s: float, reserved: float, budget: float, hit_rate: float
) -> Timeline:
    """Lay out the steps.

    Args:
        streams: requests that received something, at least one.
        usual_s: a usual step.
        reserved: tokens of the budget that a decoding sequence takes.
        budget: most tokens a step; infinite where it is unknown.
        hit_rate: share of prompt tokens found in the prefix cache, of records that do not say.
    """
    end_s, step_of_chunk = _clusters(streams, usual_s)
    sequences, context = _decoding(streams, step_of_chunk, len(end_s))
    prompts = _Prompts(streams, step_of_chunk, end_s, hit_rate)
    prompts.spread(budget - sequences * reserved)
    begin_s = np.concatenate([[-np.inf], end_s[:-1]])
    # An idle engine begins with the first prompt that comes.
    began = np.full(len(end_s), np.inf)
    np.minimum.at(began, prompts.first_step, prompts.start_s)
    begin_s = np.where(sequences > 0, begin_s, np.maximum(begin_s, np.minimum(began, end_s)))
    return Timeline(
        begin_s=begin_s,
        end_s=end_s,
        passes=prompts.passes,
        sequences=sequences,
        context=context,
        prompts=prompts.ended,
        prompt_tokens=prompts.tokens,
        prompt_read=prompts.read,
        prompt_pairs=prompts.pairs,
        step_of_chunk=step_of_chunk,
        first_prompt_step=prompts.first_step,
    )


def _clusters(streams: Sequence[Record], usual_s: float) -> tuple[Array, tuple[Places, ...]]:
    """When each step ended, and which one gave each chunk."""
    counts = [len(record.chunk_s) for record in streams]
    chunk_s = np.concatenate([np.array(record.chunk_s) for record in streams])
    slack = np.concatenate([_slack(record, usual_s) for record in streams])
    owner = np.repeat(np.arange(len(streams)), counts)
    leads = np.concatenate([np.arange(count) == 0 for count in counts])
    # Of chunks at one time those of decoding requests first: they know how long their steps take.
    order = np.lexsort((leads, chunk_s))
    place = np.empty(len(order), dtype=np.intp)
    latest = [-1] * len(streams)
    step, begun, end_s = -1, -math.inf, list[float]()
    events = zip(
        order.tolist(), chunk_s[order].tolist(), slack[order].tolist(), owner[order].tolist(), strict=True
    )
    for at, when, may_lag, request in events:
        if when - begun > may_lag or latest[request] == step:
            step, begun = step + 1, when
            end_s.append(when)
        end_s[step] = when
        latest[request] = step
        place[at] = step
    return np.array(end_s), tuple(np.split(place, np.cumsum(counts)[:-1]))


def _slack(record: Record, usual_s: float) -> Array:
    """(c,) by how much each chunk may come after the first of its step, by the shorter gap beside it."""
    gaps = np.diff(np.array(record.chunk_s))
    if not len(gaps):
        return np.full(1, _TOGETHER * usual_s)
    shorter: Array = np.minimum(np.append(gaps, gaps[-1]), np.insert(gaps, 0, gaps[0]))
    return _TOGETHER * shorter


def _decoding(streams: Sequence[Record], step_of_chunk: Sequence[Places], steps: int) -> tuple[Array, Array]:
    """Sequences that decode in each step, and what is cached for them."""
    entering, cached = np.zeros(steps + 1), np.zeros(steps + 1)
    for record, places in zip(streams, step_of_chunk, strict=True):
        entering[places[0] + 1] += 1
        entering[places[-1] + 1] -= 1
        held = record.tokens_in + np.array(record.chunk_tokens, dtype=np.float64)
        held[-1] = 0.0  # its cache is free once its last token is out
        np.add.at(cached, places + 1, np.diff(held, prepend=0.0))
    return np.cumsum(entering)[:-1], np.cumsum(cached)[:-1]


class _Prompts:
    """Which part of each prompt was computed in which step."""

    def __init__(
        self, streams: Sequence[Record], step_of_chunk: Sequence[Places], end_s: Array, hit_rate: float
    ) -> None:
        self._whole = np.array([max(record.tokens_in, 1) for record in streams])
        cached = [
            whole * hit_rate if record.cached_tokens is None else record.cached_tokens
            for record, whole in zip(streams, self._whole, strict=True)
        ]
        self._fresh = np.maximum(self._whole - np.array(cached).astype(np.intp), 1)
        self._ends = np.array([places[0] for places in step_of_chunk], dtype=np.intp)
        self.start_s = np.array([_begun_s(record) for record in streams])
        slack = 1e-9 + 1e-3 * float(np.median(np.diff(end_s))) if len(end_s) > 1 else 0.0
        begun = np.searchsorted(end_s, self.start_s + slack, side="right")
        self.first_step: Places = np.minimum(begun, self._ends)
        steps = len(end_s)
        self.passes = np.ones(steps)
        self.ended, self.tokens, self.read, self.pairs = (np.zeros(steps) for _ in range(4))

    def spread(self, room: Array) -> None:
        """Put the prompts into the steps as the engine does: in their order, each as far as room is left.

        A prompt that ended in a later step although there was room for all of it cannot have begun yet.

        Args:
            room: (k,) what decoding leaves of the token budget.
        """
        order = np.lexsort((self.start_s, self.first_step))
        left, done = self._fresh.astype(np.float64), np.zeros(len(order))
        waiting, under_way, step = deque(int(at) for at in order), list[int](), -1
        while waiting or under_way:
            step = step + 1 if under_way else int(self.first_step[waiting[0]])
            while waiting and self.first_step[waiting[0]] <= step:
                under_way.append(waiting.popleft())
            ending = [at for at in under_way if self._ends[at] == step]
            under_way = [at for at in under_way if self._ends[at] > step]
            free = max(float(room[step]), 1.0)
            total = sum(float(left[at]) for at in ending)
            self.passes[step] = max(math.ceil(total / free), 1) if math.isfinite(free) else 1
            for at in ending:
                self._book(at, step, float(left[at]), float(done[at]))
                self.ended[step] += 1
            free = max(free - total, 0.0)
            for at in under_way:
                if free >= left[at]:
                    self.first_step[at] = step + 1
                elif free >= 1:
                    self._book(at, step, free, float(done[at]))
                    left[at] -= free
                    done[at] += free
                    free = 0.0

    def _book(self, at: int, step: int, chunk: float, done: float) -> None:
        before = int(self._whole[at] - self._fresh[at] + done)
        self.tokens[step] += chunk
        self.read[step] += before + chunk
        self.pairs[step] += chunk_pairs(before, int(chunk))


def _begun_s(record: Record) -> float:
    """When the engine began with a prompt: at its first step where it says so, else once it was sent."""
    sent = record.due_s if record.sent_s is None else record.sent_s
    if record.server_ttft_s is None:
        return min(sent, record.chunk_s[0])
    return min(max(record.chunk_s[0] - record.server_ttft_s, sent), record.chunk_s[0])
