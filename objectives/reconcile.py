"""Whether the client's numbers and the engine's own are of one replay: every difference that is too large.

Tokens and finished requests are counted by both sides and must agree to the last one. A request that failed
at the client leaves them room: the engine went on with it for an unknown time, and leaves those that a
client dropped out of its finished ones. Latencies are timed by both, the engine's from the request's
arrival at its API server, so here the client's count from the *sending*; docs/measurement.md says by how
much they may differ and why.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.allowance import CUT
from objectives.bootstrap import Array
from objectives.counters import growth
from objectives.histogram import between, bracket
from objectives.measurement import Histogram, Record, Sample
from objectives.metrics import PERCENTILES, STRICT_ABOVE
from objectives.statistics import requests_needed

OVERHEAD_S = 0.010
OVERHEAD_SHARE = 0.05
"""The way between client and engine may add the larger of 10 ms and 5 % to a request.

On two cores that the engine fills it adds 3 to 9 ms (HTTP, parsing, waiting for a core: docs/replay.md); 5 %
is less than two runs of one config differ by. Beyond that, what is printed says as much of the way as of the
engine.
"""

CLOCK_S = 0.001
"""How much longer than the client saw it a request may have taken in the engine: nothing but rounding."""


def disagreements(records: Sequence[Record], samples: Sequence[Sample]) -> tuple[str, ...]:
    """Where the two sides differ by more than they may, one sentence each; empty where they agree.

    What one side does not know is not compared. Nothing is compared of a replay that was cut, since the
    engine was left with requests that it dropped, nor where the counters were not read right before the
    first request and right after the last.

    Args:
        records: one a request, failed ones included.
        samples: the engine's counters in time order; the first and the last hold the histograms.
    """
    if not records or any(record.error == CUT for record in records):
        return ()
    found = list(_longer_inside(records))
    if _around(records, samples):
        found += [*_counts(records, samples), *_latencies(records, samples)]
    return tuple(found)


def _around(records: Sequence[Record], samples: Sequence[Sample]) -> bool:
    """Whether the first and the last reading enclose everything that the client saw."""
    if len(samples) < 2:
        return False
    sent = [record.sent_s for record in records if record.sent_s is not None]
    seen = [at for record in records for at in (record.finished_s, *record.chunk_s[-1:]) if at is not None]
    return samples[0].at_s <= min(sent, default=math.inf) and samples[-1].at_s >= max(seen, default=0.0)


def _longer_inside(records: Sequence[Record]) -> Iterator[str]:
    """A request's time in the engine is a part of what its client saw, and both are of one clock.

    There is no such bound from above: the engine counts from where its core took the request up, which
    it does between two steps only, so up to a whole step of waiting is in neither of its times.
    """
    for name, inside, outside in (("TTFT", _server_ttft_s, _ttft_s), ("E2E", _server_e2e_s, _e2e_s)):
        longer = [
            (engine - client, engine, client, record.request)
            for record in records
            if (engine := inside(record)) is not None
            and (client := outside(record)) is not None
            and engine > client + CLOCK_S
        ]
        if longer:
            _, engine_s, client_s, request = max(longer)
            yield (
                f"{len(longer)} of {len(records)} requests had a longer {name} in the engine than the client "
                f"saw; request {request}: {_ms(engine_s)} by the engine, {_ms(client_s)} by the client"
            )


def _counts(records: Sequence[Record], samples: Sequence[Sample]) -> Iterator[str]:
    lost = [record for record in records if not record.ok and record.sent_s is not None]
    yield from _counted(
        "output tokens",
        growth(samples, lambda sample: sample.generation_tokens_total),
        sum(record.tokens_out for record in records),
        sum(max(record.tokens_asked - record.tokens_out, 0) for record in lost),
    )
    # The engine counts a prompt when its first token comes.
    yield from _counted(
        "prompt tokens",
        growth(samples, lambda sample: sample.prompt_tokens_total),
        sum(record.tokens_in for record in records if record.chunk_s),
        sum(record.tokens_in for record in lost if not record.chunk_s),
    )
    yield from _counted(
        "finished requests",
        growth(samples, lambda sample: sample.finished_total),
        sum(record.ok for record in records),
        len(lost),
    )


def _counted(what: str, engine: float | None, client: int, room: int) -> Iterator[str]:
    """`room`: by how much the engine may have counted more, failed requests being what they are."""
    if engine is None or client <= engine <= client + room:
        return
    besides = f", and failed requests explain at most {room} more" if room else ""
    yield f"{what}: {engine:.0f} by the engine's counters, {client} by the client{besides}"


@dataclass(frozen=True, slots=True)
class _Latency:
    """One latency as both sides timed it."""

    name: str
    engine: Histogram | None
    client_s: Array
    """(requests,)."""
    allowed_s: Array
    """(requests,) by how much the two may differ on each."""


def _latencies(records: Sequence[Record], samples: Sequence[Sample]) -> Iterator[str]:
    def observed(histogram: Callable[[Sample], Histogram | None]) -> Histogram | None:
        return between(histogram(samples[0]), histogram(samples[-1]))

    done = [record for record in records if record.ok]
    ttft = _array([_ttft_s(record) for record in records])
    e2e = _array([_e2e_s(record) for record in done])
    decode = e2e - _array([_ttft_s(record) for record in done])
    after_first = _array([record.tokens_out - 1 for record in done])
    per_token = np.maximum(after_first, 1.0)
    tpot = observed(lambda sample: sample.tpot_histogram)
    yield from _timed(
        _Latency("TTFT from sending", observed(lambda sample: sample.ttft_histogram), ttft, _allowed(ttft))
    )
    yield from _timed(
        _Latency("E2E from sending", observed(lambda sample: sample.e2e_histogram), e2e, _allowed(e2e))
    )
    # First and last token may each have come late, so the time between is as sure as the last one is.
    # vLLM has 0 for a request with one token.
    yield from _timed(
        _Latency("TPOT", tpot, np.where(after_first > 0, decode, 0.0) / per_token, _allowed(e2e) / per_token)
    )
    steps = observed(lambda sample: sample.itl_histogram)
    if tpot is None and steps is not None and done and len(done) == len(records):
        # Before 0.11.0 there are only the gaps between outputs: those of all requests, and what they sum to.
        yield from _means(
            "time from first token to last", steps.sum / len(done), float(decode.mean()), _allowed(e2e)
        )


def _timed(latency: _Latency) -> Iterator[str]:
    """The mean, else the lowest percentile that differs: one sentence is enough to doubt a latency.

    All that the client timed were timed by the engine too, so where they are as many, they are the same.
    """
    engine, n = latency.engine, len(latency.client_s)
    if engine is None or n == 0 or engine.counts[-1] != n:
        return
    client = float(latency.client_s.mean())
    if told := [*_means(latency.name, engine.sum / n, client, latency.allowed_s)]:
        yield from told
        return
    # If no request differs by more than it may, no rank does: the r-th smallest of lower ends is at most
    # the r-th smallest of what lies above them, and likewise at the upper ends.
    lowest = np.sort(latency.client_s - latency.allowed_s)
    highest = np.sort(latency.client_s + latency.allowed_s)
    ranked = np.sort(latency.client_s)
    for point in PERCENTILES:
        if point > STRICT_ABOVE and n < requests_needed(point / 100):
            continue
        at = math.ceil(point / 100 * (n - 1))  # the order statistic that is printed: NumPy's "higher"
        above, up_to = bracket(engine, at + 1)
        if lowest[at] > up_to or highest[at] <= above:
            yield (
                f"p{point} of {latency.name}: {_bucket(above, up_to)} by the engine, "
                f"{_ms(float(ranked[at]))} by the client"
            )
            return


def _means(name: str, engine_s: float, client_s: float, allowed_s: Array) -> Iterator[str]:
    allowed = float(allowed_s.mean())
    if abs(client_s - engine_s) > allowed:
        yield (
            f"mean {name}: {_ms(engine_s)} by the engine, {_ms(client_s)} by the client, "
            f"where {_ms(allowed)} of difference are allowed"
        )


def _allowed(client_s: Array) -> Array:
    allowed: Array = np.maximum(OVERHEAD_S, OVERHEAD_SHARE * client_s)
    return allowed


def _array(values: Sequence[float | None]) -> Array:
    return np.array([value for value in values if value is not None], dtype=np.float64)


def _bucket(above: float, up_to: float) -> str:
    if math.isinf(up_to):
        return f"above {_ms(above)}"
    return f"at most {_ms(up_to)}" if math.isinf(above) else f"{_ms(above)} to {_ms(up_to)}"


def _ttft_s(record: Record) -> float | None:
    return None if record.sent_s is None or not record.chunk_s else record.chunk_s[0] - record.sent_s


def _e2e_s(record: Record) -> float | None:
    return None if record.sent_s is None or not record.chunk_s else record.chunk_s[-1] - record.sent_s


def _server_ttft_s(record: Record) -> float | None:
    queued, first = record.server_queue_s, record.server_ttft_s
    return None if queued is None or first is None else queued + first


def _server_e2e_s(record: Record) -> float | None:
    first, rest = _server_ttft_s(record), record.server_generation_s
    return None if first is None or rest is None else first + rest


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
