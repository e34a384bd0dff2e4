"""What a play looked like from outside: one Record a request, one Sample a virtual second.

Counters mean what vLLM's mean: a prompt is counted in the step that gives its first token, times in the
step that ends the request, gauges are those of the last step that ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.node.simulation.latency_histograms import Timed, with_histograms
from cluster.node.simulation.served import Log, Served
from cluster.node.simulation.settings import Settings
from cluster.node.simulation.speculation import Plan
from cluster.node.simulation.step_time import StepTime
from objectives.measurement import Record, Sample


@dataclass(frozen=True, slots=True)
class Chunks:
    """All chunks of all requests, one after the other, in the order of `served`."""

    step: NDArray[np.int64]
    """Step each came from."""
    end: list[int]
    """Index after each request's last chunk."""
    accepted: NDArray[np.int64]
    """Draft tokens accepted in each; no entries without speculation."""
    drafted: NDArray[np.bool_]
    """Whether there was a draft; likewise."""


def chunks_of(settings: Settings, served: Sequence[Served], plan: Plan) -> Chunks:
    pieces = [piece for one in served for piece in one.steps]
    first = np.array([start for start, _ in pieces], dtype=np.int64)
    count = np.array([length for _, length in pieces], dtype=np.int64)
    before = np.cumsum(count) - count
    step = np.repeat(first - before, count) + np.arange(int(count.sum()))
    end, total = [], 0
    for one in served:
        total += one.chunks
        end.append(total)
    if settings.drafting is None or not served:
        return Chunks(step, end, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
    return Chunks(step, end, *_accepted(served, plan))


def records_of(settings: Settings, served: Sequence[Served], chunks: Chunks, log: Log) -> list[Record]:
    """Records of the requests that were served, in the order of `served`."""
    emitted_s = log.step_end_s[chunks.step]
    arrival_s = (emitted_s + settings.api_s).tolist()
    counts = tuple(range(1, 1 + max((one.job.output for one in served), default=0)))
    drafts = _drafts_told(settings, chunks)
    records, start = [], 0
    for one, end, (drafted, proposed, accepted) in zip(served, chunks.end, drafts, strict=True):
        job = one.job
        plain = end - start == job.output
        generation_s = arrival_s[end - 1] - arrival_s[start]
        records.append(
            Record(
                request=job.request,
                due_s=job.due_s,
                sent_s=job.due_s,
                chunk_s=tuple(arrival_s[start:end]),
                chunk_tokens=counts[: job.output] if plain else tuple(one.plan.tolist()),
                finished_s=arrival_s[end - 1],
                tokens_in=job.prompt,
                tokens_out=job.output,
                tokens_asked=job.output,
                cached_tokens=one.cached_tokens if settings.tells_cached else None,
                server_queue_s=one.first_scheduled_s - job.due_s,
                server_ttft_s=float(emitted_s[start]) - one.first_scheduled_s,
                server_generation_s=generation_s,
                server_itl_mean_s=generation_s / (job.output - 1) if job.output > 1 else None,
                drafts=drafted,
                draft_tokens=proposed,
                accepted_tokens=accepted,
            )
        )
        start = end
    return records


def _drafts_told(settings: Settings, chunks: Chunks) -> Sequence[tuple[int | None, int | None, int | None]]:
    """Drafts, their tokens, and those accepted, of each request; without speculation nothing is told."""
    if settings.drafting is None or not chunks.end:
        return [(None, None, None)] * len(chunks.end)
    starts = [0, *chunks.end[:-1]]
    drafts = np.add.reduceat(chunks.drafted.astype(np.int64), starts)
    columns = (drafts, drafts * settings.drafting.depth, np.add.reduceat(chunks.accepted, starts))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def samples_of(settings: Settings, served: Sequence[Served], chunks: Chunks, log: Log) -> list[Sample]:
    """Samples at 0, 1, 2, … seconds and at the end of the play; histograms in the first and the last."""
    ends = log.step_end_s
    if not len(ends):
        return [_idle(settings)]
    at = np.append(np.arange(0.0, ends[-1], 1.0), ends[-1])
    step = np.searchsorted(ends, at, side="right") - 1  # last that ended; -1: none yet
    counted = _Counted(ends, step)
    columns = _gauges(settings, served, log, step) | _totals(served, chunks, log, counted)
    if settings.counts_work:
        columns |= _work(settings, chunks, log, counted)
    positions: Sequence[tuple[float, ...] | None] = [None] * len(at)
    if settings.drafting is not None:
        columns |= _drafts(settings.drafting.depth, chunks, counted)
        positions = _positions(settings.drafting.depth, chunks, counted)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    samples = [
        Sample(at_s=moment, accepted_per_position_total=accepted, **dict(zip(columns, row, strict=True)))
        for moment, accepted, row in zip(at.tolist(), positions, rows, strict=True)
    ]
    timed = Timed(
        due_s=np.array([one.job.due_s for one in served]),
        tokens=np.array([one.job.output for one in served]),
        chunk_s=ends[chunks.step],
        ends=chunks.end,
    )
    return with_histograms(samples, timed)


def _gauges(
    settings: Settings, served: Sequence[Served], log: Log, step: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    keys, running, admitted, held = (np.array(column) for column in zip(*log.state, strict=True))
    entry = np.searchsorted(keys, step, side="right") - 1
    begun = (step >= 0) & (entry >= 0)
    arrived = np.searchsorted([one.job.due_s for one in served], log.step_end_s[step], side="right")
    used = held[entry] + log.decode_blocks[step]
    return {
        "running": np.where(begun, running[entry], 0.0),
        "waiting": np.where(begun, arrived - admitted[entry], 0.0),
        "kv_usage": np.where(begun, used / (settings.kv_blocks - 1), 0.0),
    }


def _totals(
    served: Sequence[Served], chunks: Chunks, log: Log, counted: "_Counted"
) -> dict[str, NDArray[np.float64]]:
    tokens = np.diff(np.concatenate([one.plan for one in served]), prepend=0)
    tokens[[0, *chunks.end[:-1]]] = 1  # a prefill gives one token
    generated = counted.at(chunks.step, tokens)
    prefilled = np.array(log.prefilled, dtype=np.int64).reshape(-1, 3)
    looked_up = np.array(log.lookups, dtype=np.int64).reshape(-1, 3)
    finished = np.array([one.finished_step for one in served])
    scheduled_s = np.array([one.first_scheduled_s for one in served])
    queued_s = scheduled_s - np.array([one.job.due_s for one in served])
    return {
        "preemptions_total": counted.at(np.array(log.preempted, dtype=np.int64), None),
        "prompt_tokens_total": counted.at(prefilled[:, 0], prefilled[:, 1]),
        "generation_tokens_total": generated,
        "target_steps_total": counted.steps,
        "step_tokens_total": counted.at(prefilled[:, 0], prefilled[:, 2]) + generated,
        "prefix_queries_total": counted.at(looked_up[:, 0], looked_up[:, 1]),
        "prefix_hits_total": counted.at(looked_up[:, 0], looked_up[:, 2]),
        "finished_total": counted.at(finished, None),
        "queue_time_s_total": counted.at(finished, queued_s),
        "inference_time_s_total": counted.at(finished, log.step_end_s[finished] - scheduled_s),
    }


def _work(
    settings: Settings, chunks: Chunks, log: Log, counted: "_Counted"
) -> dict[str, NDArray[np.float64]]:
    steps = len(log.step_end_s)
    prefills = np.zeros((4, steps))
    for step, *amounts in log.prefills:
        prefills[:, step] = amounts
    decoding = np.bincount(chunks.step, minlength=steps) - prefills[1]
    flops, read, written = StepTime(settings).work(decoding, log.contexts, prefills)
    return {
        "flops_total": counted.by_step(flops),
        "read_bytes_total": counted.by_step(read),
        "write_bytes_total": counted.by_step(written),
    }


_Numbers = NDArray[np.float64] | NDArray[np.int64]


class _Counted:
    """Running sums of what happened by step, as read at the samples."""

    def __init__(self, ends: NDArray[np.float64], step: NDArray[np.int64]) -> None:
        self._length = len(ends)
        self._step = step
        self.steps = (step + 1).astype(np.float64)

    def by_step(self, amounts: _Numbers) -> NDArray[np.float64]:
        """`amounts`: (steps,)."""
        return np.concatenate([[0.0], np.cumsum(amounts)])[self._step + 1]

    def at(self, steps: NDArray[np.int64], amounts: _Numbers | None) -> NDArray[np.float64]:
        """`amounts` (None: 1 each) booked at `steps`."""
        if not len(steps):
            return np.zeros(len(self._step))
        return self.by_step(np.bincount(steps, weights=amounts, minlength=self._length))


def _accepted(served: Sequence[Served], plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Accepted draft tokens, and whether there was a draft, of every chunk."""
    accepted, drafted = [], []
    for one in served:
        kept, tried = plan.accepted[one.place], plan.drafted[one.place]
        # The first chunk is the prefill's: no draft was in it.
        mine, with_draft = np.concatenate([[0], kept]), np.concatenate([[False], tried])
        for place in one.undrafted:
            mine, with_draft = np.insert(mine, place, 0), np.insert(with_draft, place, False)
        accepted.append(mine[: one.chunks])
        drafted.append(with_draft[: one.chunks])
    return np.concatenate(accepted), np.concatenate(drafted)


def _drafts(depth: int, chunks: Chunks, counted: _Counted) -> dict[str, NDArray[np.float64]]:
    drafts = counted.at(chunks.step, chunks.drafted.astype(np.int64))
    return {
        "drafts_total": drafts,
        "draft_tokens_total": drafts * depth,
        "accepted_tokens_total": counted.at(chunks.step, chunks.accepted),
    }


def _positions(depth: int, chunks: Chunks, counted: _Counted) -> Sequence[tuple[float, ...] | None]:
    columns = [counted.at(chunks.step, (chunks.accepted > place).astype(np.int64)) for place in range(depth)]
    if not columns:
        return [()] * len(counted.steps)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _idle(settings: Settings) -> Sample:
    """Of an engine that nobody asked for anything."""
    depth = None if settings.drafting is None else settings.drafting.depth
    off = None if depth is None else 0.0
    work = 0.0 if settings.counts_work else None
    return Sample(
        at_s=0.0,
        running=0.0,
        waiting=0.0,
        kv_usage=0.0,
        preemptions_total=0.0,
        prompt_tokens_total=0.0,
        generation_tokens_total=0.0,
        target_steps_total=0.0,
        step_tokens_total=0.0,
        prefix_queries_total=0.0,
        prefix_hits_total=0.0,
        drafts_total=off,
        draft_tokens_total=off,
        accepted_tokens_total=off,
        accepted_per_position_total=None if depth is None else (0.0,) * depth,
        finished_total=0.0,
        queue_time_s_total=0.0,
        inference_time_s_total=0.0,
        flops_total=work,
        read_bytes_total=work,
        write_bytes_total=work,
    )
