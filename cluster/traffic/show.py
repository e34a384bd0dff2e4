"""What a trace is like, in figures. Pure: a trace in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of lengths, in tokens. Percentiles are lengths that occur."""

    mean: float
    cv: float
    """Standard deviation over mean."""
    p50: int
    p90: int
    p99: int
    longest: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many lengths fall into each of equally wide bins, from 0 tokens up."""

    width: int
    """Tokens: bin k holds lengths from k · width up to (k + 1) · width, the upper end left out."""
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A trace's figures at its recorded speed."""

    requests: int
    duration_s: float
    """First arrival to last."""
    rate: float | None
    """Requests per second: gaps over duration. None where all requests arrive at once."""
    gap_cv: float | None
    """Coefficient of variation of the gaps between arrivals: 1 for Poisson, above 1 for bursts."""
    input_length: Lengths
    output_length: Lengths
    block_tokens: int
    prefix_share: float
    """Share of all prompt tokens that stand at the beginning of an earlier prompt as well, 0 to 1;
    `hit_share` says what an engine makes of it. Requests without blocks count as sharing nothing."""
    sessions: int
    """Different session ids; requests without one are not counted."""
    turns: float | None
    """Requests per session, over those that have one; None where there are no sessions."""
    literal: int
    """Requests whose text is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFigures:
    """What sessions are like. Gaps run from one turn's arrival to the next one's, answers included."""

    sessions: int
    requests: int
    """Those that belong to a session."""
    turns_mean: float
    turns_longest: int
    single: int
    """Sessions of one request."""
    gap_p50_s: float | None
    """None where no session has a second turn."""
    gap_p90_s: float | None


def figures(trace: Trace) -> Figures:
    """The trace's figures.

    Raises:
        ValueError: for a trace without requests.
    """
    if not trace.requests:
        raise ValueError("a trace without requests has no figures")
    arrivals = np.array([request.arrival_s for request in trace.requests])
    gaps = np.diff(arrivals)
    duration = float(arrivals[-1])
    in_session = [r.session_id for r in trace.requests if r.session_id is not None]
    sessions = len(set(in_session))
    input_length = _lengths([request.input_length for request in trace.requests])
    return Figures(
        requests=len(trace.requests),
        duration_s=duration,
        rate=len(gaps) / duration if duration else None,
        gap_cv=float(gaps.std() / gaps.mean()) if duration else None,
        input_length=input_length,
        output_length=_lengths([request.output_length for request in trace.requests]),
        block_tokens=trace.block_tokens,
        prefix_share=sum(shared_tokens(trace)) / input_length.total,
        sessions=sessions,
        turns=len(in_session) / sessions if sessions else None,
        literal=sum(r.prompt is not None or r.messages is not None for r in trace.requests),
    )


def session_figures(trace: Trace) -> SessionFigures | None:
    """What the trace's sessions are like; None where it has none."""
    arrivals: dict[str, list[float]] = {}
    for request in trace.requests:
        if request.session_id is not None:
            arrivals.setdefault(request.session_id, []).append(request.arrival_s)
    if not arrivals:
        return None
    turns = np.array([len(at) for at in arrivals.values()])
    gaps = [later - earlier for at in arrivals.values() for earlier, later in pairwise(at)]
    p50, p90 = (float(np.percentile(gaps, p, method="higher")) for p in (50, 90)) if gaps else (None, None)
    return SessionFigures(
        sessions=len(turns),
        requests=int(turns.sum()),
        turns_mean=float(turns.mean()),
        turns_longest=int(turns.max()),
        single=int((turns == 1).sum()),
        gap_p50_s=p50,
        gap_p90_s=p90,
    )


def hit_share(trace: Trace, *, engine_block: int) -> float:
    """Share of prompt tokens that an engine's prefix cache hits if it never forgets, 0 to 1.

    At most `Figures.prefix_share`: an engine hits whole blocks of its own size only, and never a whole
    prompt, since the last token must be computed to get the next one.

    Args:
        engine_block: tokens in one block of the engine's cache.
    """
    hits = sum(
        min(shared, request.input_length - 1) // engine_block * engine_block
        for request, shared in zip(trace.requests, shared_tokens(trace), strict=True)
    )
    return hits / sum(request.input_length for request in trace.requests)


def histogram(lengths: Sequence[int], *, bins: int = 50) -> Histogram:
    """Lengths in at most so many bins, the last one that of the longest."""
    width = max(lengths) // bins + 1
    counts = np.bincount(np.array(lengths) // width)
    return Histogram(width=width, counts=tuple(counts.tolist()))


def _lengths(values: Sequence[int]) -> Lengths:
    numbers = np.array(values)
    mean = float(numbers.mean())
    p50, p90, p99 = (int(np.percentile(numbers, p, method="higher")) for p in (50, 90, 99))
    return Lengths(
        mean=mean,
        cv=float(numbers.std() / mean),
        p50=p50,
        p90=p90,
        p99=p99,
        longest=int(numbers.max()),
        total=sum(values),
    )
