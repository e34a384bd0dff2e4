"""Replays made by hand for the tests of this house."""

from collections.abc import Sequence

import numpy as np

from objectives.measurement import Estimate, Measurement, Record


def answered(
    request: int,
    *,
    due_s: float,
    ttft_s: float = 0.1,
    gap_s: float = 0.02,
    tokens: int = 5,
    chunk_tokens: Sequence[int] | None = None,
    tokens_in: int = 100,
    cached_tokens: int | None = None,
    drafts: int | None = None,
    draft_tokens: int | None = None,
    accepted_tokens: int | None = None,
) -> Record:
    """A request whose chunks come evenly, one token each unless said otherwise."""
    cumulative = tuple(chunk_tokens) if chunk_tokens is not None else tuple(range(1, tokens + 1))
    chunks = tuple(due_s + ttft_s + gap_s * i for i in range(len(cumulative)))
    return Record(
        request=request,
        due_s=due_s,
        sent_s=due_s + 0.001,
        chunk_s=chunks,
        chunk_tokens=cumulative,
        finished_s=chunks[-1],
        tokens_in=tokens_in,
        tokens_out=cumulative[-1],
        tokens_asked=cumulative[-1],
        cached_tokens=cached_tokens,
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted_tokens,
    )


def failed(request: int, *, due_s: float, tokens: int = 5, error: str = "connection reset") -> Record:
    return Record(request=request, due_s=due_s, sent_s=due_s, tokens_in=100, tokens_asked=tokens, error=error)


def steady(n: int, *, every_s: float = 0.1, seed: int = 1) -> list[Record]:
    """Answered requests with independent log-normal latencies."""
    rng = np.random.default_rng(seed)
    ttft, gap = 0.1 * rng.lognormal(0, 0.5, n), 0.02 * rng.lognormal(0, 0.2, n)
    return [
        answered(i, due_s=every_s * i, ttft_s=float(ttft[i]), gap_s=float(gap[i]), tokens=20)
        for i in range(n)
    ]


def measurement(*, requests: int = 500, failed_requests: int = 0, **metrics: float | Estimate) -> Measurement:
    """A measurement that holds only these metrics."""
    return Measurement(
        metrics={
            name: value if isinstance(value, Estimate) else Estimate(value=value)
            for name, value in metrics.items()
        },
        requests=requests,
        failed_requests=failed_requests,
        duration_s=10.0,
    )
