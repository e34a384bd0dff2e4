"""When a replay's verdict on the SLO is certain before its end. Pure.

Of n requests, n · (1 - attainment) may miss the SLO. Once more have missed it for certain, nothing that is
still to come can mend the verdict, and the rest of the replay tells no more than that.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from objectives.measurement import Record
from objectives.slo import Slo

CUT = "not played to its end: the replay was cut, its verdict being certain"
"""Error of a request that a cut left unfinished."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many misses of which SLO a replay may have."""

    slo: Slo
    misses: int

    @classmethod
    def of(cls, slo: Slo, requests: int) -> "Allowance":
        """For a replay of so many requests."""
        # 0.05 · 60 is a hair below 3 in floating point, and must not round down to 2.
        return cls(slo, math.floor((1 - slo.attainment) * requests + 1e-9))


def deadline_s(slo: Slo, *, due_s: float, first_s: float | None, first_tokens: int, asked: int) -> float:
    """When an unfinished request will have missed the SLO for certain, unless it is finished by then.

    Infinite where nothing can be missed any more. All times on the replay's clock.

    Args:
        due_s: when it was due.
        first_s: when its first tokens came; None: not yet.
        first_tokens: how many those were.
        asked: output tokens in all. The mean time per token after the first can be no less than the time
            since then over all the tokens that are to follow.
    """
    ends = [math.inf if slo.e2e_s is None else due_s + slo.e2e_s]
    if first_s is None:
        ends.append(math.inf if slo.ttft_s is None else due_s + slo.ttft_s)
    elif slo.ttft_s is not None and first_s - due_s > slo.ttft_s:
        ends.append(due_s + slo.ttft_s)
    if first_s is not None and slo.tpot_s is not None and asked > first_tokens:
        ends.append(first_s + slo.tpot_s * (asked - first_tokens))
    return min(ends)


def missed_at_s(record: Record, slo: Slo) -> float | None:
    """When it was certain that a finished or failed request misses the SLO; None if it meets it.

    A failed request is known to be one when its last token came, or when it was due.
    """
    if slo.met_by(record):
        return None
    certain = deadline_s(
        slo,
        due_s=record.due_s,
        first_s=record.chunk_s[0] if record.chunk_s else None,
        first_tokens=record.chunk_tokens[0] if record.chunk_s else 0,
        asked=record.tokens_asked,
    )
    over = record.chunk_s[-1] if record.chunk_s else record.due_s
    if record.ok:
        # Served with fewer tokens than asked for, it may end before that: then its end tells.
        return min(certain, over)
    return over


def cut_at_s(records: Iterable[Record], allowance: Allowance) -> float | None:
    """When a replay with these records could have been cut; None if its SLO holds."""
    missed = sorted(at_s for record in records if (at_s := missed_at_s(record, allowance.slo)) is not None)
    return missed[allowance.misses] if len(missed) > allowance.misses else None


def cut_records(records: Sequence[Record], at_s: float) -> tuple[Record, ...]:
    """What a client that cut the replay then would have of these records."""
    return tuple(record if _over(record, at_s) else _cut(record, at_s) for record in records)


def misses_known(records: Iterable[Record], slo: Slo, at_s: float | None) -> int:
    """Requests that have missed the SLO for certain, in a replay that was cut at this time, or whole."""
    return sum(_misses(record, slo, at_s) for record in records)


def _misses(record: Record, slo: Slo, at_s: float | None) -> bool:
    if at_s is None or record.error != CUT:
        return not slo.met_by(record)
    first_s = record.chunk_s[0] if record.chunk_s else None
    first_tokens = record.chunk_tokens[0] if record.chunk_s else 0
    return at_s >= deadline_s(
        slo, due_s=record.due_s, first_s=first_s, first_tokens=first_tokens, asked=record.tokens_asked
    )


def _over(record: Record, at_s: float) -> bool:
    if record.finished_s is not None:
        return record.finished_s <= at_s
    return record.error is not None and (record.chunk_s[-1] if record.chunk_s else record.due_s) <= at_s


def _cut(record: Record, at_s: float) -> Record:
    came = sum(chunk_s <= at_s for chunk_s in record.chunk_s)
    return replace(
        record,
        sent_s=record.sent_s if record.sent_s is not None and record.sent_s <= at_s else None,
        chunk_s=record.chunk_s[:came],
        chunk_tokens=record.chunk_tokens[:came],
        finished_s=None,
        tokens_out=record.chunk_tokens[came - 1] if came else 0,
        error=CUT,
    )
