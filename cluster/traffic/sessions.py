"""When a conversation's next turn leaves: at its recorded time, or once the turn before it was answered.

Replayed as recorded, a turn may leave before the answer that it goes on from is there. Replayed causally it
leaves when that answer has ended and its writer has thought as long as when it was recorded: sessions come
open loop, the turns within one wait for each other. That is a partly open system (B. Schroeder, A. Wierman,
M. Harchol-Balter, "Open Versus Closed: A Cautionary Tale", NSDI 2006).

Pure: which request goes on from which, and after how long. Engines make due times of it.
"""

import enum
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.traffic.trace import Trace
from objectives.measurement import Record

ASSUMED_S_PER_TOKEN = 0.027
"""How long a request is taken to have lasted where its trace does not say, per output token.

The median of recorded time over output tokens in both public traces that tell: 98 requests of Weka's agents
and 23 of BurstGPT's.
"""

ROUNDED_S = 1.0
"""A request may have ended so long after the next one came, and be its predecessor: recorders round times,
to a second at worst (BurstGPT, vLLM's log)."""


class Sessions(enum.StrEnum):
    """How turns of one session are replayed."""

    RECORDED = "recorded"
    """At their recorded times, scaled, whatever became of the turns before."""
    CAUSAL = "causal"
    """A turn leaves its recorded think time after its predecessor has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a request of a trace waits for."""

    after: int | None = None
    """Index of its predecessor, which came before it; None: it waits for none."""
    think_s: float = 0.0
    """From its predecessor's end to its leaving. People's time: no speed scales it."""
    estimated: bool = False
    """Whether that rests on `ASSUMED_S_PER_TOKEN`, the predecessor's end not being recorded."""


FIRST = Turn()
"""A request that waits for none."""


def turns(trace: Trace) -> tuple[Turn, ...]:
    """What each request waits for, in the trace's order.

    A request's predecessor is the one of its session that had ended last when it came. One that came while
    all earlier ones were still under way, a call made in parallel, waits for none. Where a trace does not
    say how long a request took, it is taken to have ended after so much a token, and before the session's
    next request came.
    """
    sessions: dict[str, _Session] = {}
    found: list[Turn] = []
    for index, request in enumerate(trace.requests):
        if request.session_id is None:
            found.append(FIRST)
            continue
        session = sessions.setdefault(request.session_id, _Session())
        found.append(session.turn(request.arrival_s))
        known = request.duration_s is not None
        lasted_s = request.duration_s if known else ASSUMED_S_PER_TOKEN * request.output_length
        session.begin(_End(request.arrival_s + (lasted_s or 0.0), index, known))
    return tuple(found)


def remarks(trace: Trace, sessions: Sessions, records: Sequence[Record]) -> tuple[str, ...]:
    """What a reader of a replay's records must know of its sessions, one sentence each.

    Args:
        records: one a request, in any order.
    """
    later = [(index, turn) for index, turn in enumerate(turns(trace)) if turn.after is not None]
    if not later:
        return ()
    if sessions is Sessions.CAUSAL:
        estimated = sum(turn.estimated for _, turn in later)
        if not estimated:
            return ()
        return (
            f"Think times of {estimated} of {len(later)} turns are estimated: the trace does not say when "
            f"their predecessors ended, which is taken to be {ASSUMED_S_PER_TOKEN * 1e3:g} ms a token after "
            "they came.",
        )
    by_request = {record.request: record for record in records}
    early = sum(
        _left_early(by_request.get(index), by_request.get(turn.after))
        for index, turn in later
        if turn.after is not None
    )
    if not early:
        return ()
    return (
        f"{early} of {len(later)} turns left before the answer that they go on from was complete, since "
        "sessions were replayed as recorded (sessions causal has them wait).",
    )


def _left_early(record: Record | None, before: Record | None) -> bool:
    if record is None or before is None or record.sent_s is None or before.finished_s is None:
        return False
    return record.sent_s < before.finished_s


@dataclass(frozen=True, slots=True, order=True)
class _End:
    """When a request ended; sorted by that."""

    at_s: float
    index: int
    known: bool


class _Session:
    """Requests of one session so far, by their ends."""

    __slots__ = ("_ends", "_last")

    def __init__(self) -> None:
        self._ends: list[_End] = []
        self._last: _End | None = None
        """The latest to come, if its end is not recorded: it ended before the next one comes."""

    def turn(self, arrival_s: float) -> Turn:
        """Of a request that comes now."""
        if self._last is not None:
            insort(self._ends, _End(min(self._last.at_s, arrival_s), self._last.index, False))
            self._last = None
        ended = bisect_right(self._ends, arrival_s + ROUNDED_S, key=lambda end: end.at_s)
        if not ended:
            return FIRST
        end = self._ends[ended - 1]
        return Turn(after=end.index, think_s=max(0.0, arrival_s - end.at_s), estimated=not end.known)

    def begin(self, end: _End) -> None:
        """It has come, and will end so."""
        if end.known:
            insort(self._ends, end)
        else:
            self._last = end
