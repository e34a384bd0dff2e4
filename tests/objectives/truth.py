"""Replays whose truth is known: what happened in the engine, and how client and engine each saw it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from objectives.measurement import Histogram, Record, Sample

BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, math.inf)
"""Those of vLLM are about as wide."""

BEFORE = (0.004, 0.2, 0.2, 3.0)
"""Latencies that the engine had observed before the replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One request in the engine, by the engine's clocks."""

    arrived_s: float
    queued_s: float = 0.0
    """For how long."""
    prefill_s: float = 0.1
    step_s: float = 0.02
    """From each token to the next."""
    tokens: int = 5
    prompt: int = 100
    way_in_s: float = 0.0
    """From the client's sending to the arrival."""
    first_late_s: float = 0.0
    """From the first token to the client's having it."""
    last_late_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.queued_s + self.prefill_s

    @property
    def decode_s(self) -> float:
        return self.step_s * (self.tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.ttft_s + self.decode_s


def seen(happened: Sequence[Happened]) -> list[Record]:
    """By the client."""
    records = []
    for request, one in enumerate(happened):
        first = one.arrived_s + one.ttft_s
        last = first + one.decode_s + (one.last_late_s if one.tokens > 1 else one.first_late_s)
        between = (first + one.step_s * i for i in range(1, one.tokens - 1))
        first += one.first_late_s
        inner = (min(max(at, first), last) for at in between)
        chunks = (first, *inner, last) if one.tokens > 1 else (first,)
        sent = one.arrived_s - one.way_in_s
        records.append(
            Record(
                request=request,
                due_s=sent - 0.001,
                sent_s=sent,
                chunk_s=chunks,
                chunk_tokens=tuple(range(1, one.tokens + 1)),
                finished_s=chunks[-1],
                tokens_in=one.prompt,
                tokens_out=one.tokens,
                tokens_asked=one.tokens,
                server_queue_s=one.queued_s,
                server_ttft_s=one.prefill_s,
                server_generation_s=one.decode_s,
            )
        )
    return records


def broken(record: Record, *, received: int) -> Record:
    """The same request, its connection lost after so many tokens."""
    return replace(
        record,
        chunk_s=record.chunk_s[:received],
        chunk_tokens=record.chunk_tokens[:received],
        finished_s=None,
        tokens_out=received,
        server_queue_s=None,
        server_ttft_s=None,
        server_generation_s=None,
        error="connection failed: reset",
    )


def histogram(observed: Sequence[float]) -> Histogram:
    return Histogram(
        bounds=BOUNDS,
        counts=tuple(float(sum(one <= bound for one in observed)) for bound in BOUNDS),
        sum=math.fsum(observed),
    )


def counted(
    finished: Sequence[Happened],
    *,
    tokens: int | None = None,
    prompt: int | None = None,
    begun: Sequence[Happened] | None = None,
) -> tuple[Sample, Sample]:
    """By the engine, right before the replay and right after it.

    Args:
        finished: requests that it finished.
        tokens, prompt: tokens that it counted, if not those of the finished requests.
        begun: requests that it gave a first token, if not those that it finished.
    """
    begun = finished if begun is None else begun
    before = Sample(
        at_s=-1e6,
        generation_tokens_total=1000,
        prompt_tokens_total=5000,
        finished_total=4,
        ttft_histogram=histogram(BEFORE),
        itl_histogram=histogram(BEFORE),
        tpot_histogram=histogram(BEFORE),
        e2e_histogram=histogram(BEFORE),
    )
    after = Sample(
        at_s=1e6,
        generation_tokens_total=1000 + (sum(one.tokens for one in finished) if tokens is None else tokens),
        prompt_tokens_total=5000 + (sum(one.prompt for one in finished) if prompt is None else prompt),
        finished_total=4 + len(finished),
        ttft_histogram=observed(one.ttft_s for one in begun),
        itl_histogram=observed(one.step_s for one in begun for _ in range(one.tokens - 1)),
        tpot_histogram=observed(one.step_s if one.tokens > 1 else 0.0 for one in finished),
        e2e_histogram=observed(one.e2e_s for one in finished),
    )
    return before, after


def observed(latencies: Iterable[float]) -> Histogram:
    """After the replay."""
    return histogram([*BEFORE, *latencies])
