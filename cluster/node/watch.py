"""What ends a replay before its last request does: a dead engine, a stuck one, a verdict that is certain.

It looks on while a replay plays, and knows nothing of requests but how many are under way and when the last
token came. What the client's own event loop does to arrivals is noted on the way.
"""

import asyncio
import enum
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

LAG_EVERY_S = 0.05
"""A look wakes the client where nothing else did, and costs it as much as a dozen chunks."""
COUNT_EVERY_S = 0.1
"""Misses are counted ten times a second: each look goes over every request in flight."""
_ALIVE_EVERY_S = 0.25
_GRACE_S = 1.0
"""How long a dying process may take to look dead after its connections broke."""


class Stopped(enum.StrEnum):
    """What ended a replay before its last request did."""

    DEAD = "dead"
    STUCK = "stuck"
    CUT = "cut"
    """More requests have missed the SLO than may: the verdict is certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why and when a replay was stopped."""

    kind: Stopped
    reason: str
    at_s: float


class Watcher(Protocol):
    """Looks after a replay under way."""

    @property
    def lags_s(self) -> Sequence[float]:
        """How late the loop woke it, each time: what an arrival waits to be seen."""
        ...

    async def run(self) -> Stop:
        """Returns when the replay has to stop."""
        ...

    async def last_look(self, broken_s: float) -> Stop | None:
        """Whether the engine died with the last requests, the last of whose connections broke then."""
        ...


class Flow(Protocol):
    """What a watch sees of requests under way: those of one client, or of several together."""

    @property
    def in_flight(self) -> int: ...
    @property
    def progress_s(self) -> float: ...
    def now(self) -> float: ...


class Missing(Protocol):
    """Counts the requests that have missed the SLO for certain."""

    @property
    def count(self) -> int: ...
    def too_many(self, now_s: float) -> bool: ...


class Watch:
    """Looks at the engine's life, at the tokens' flow and at the event loop's own lag."""

    def __init__(
        self,
        flow: Flow,
        *,
        stuck_s: float,
        alive: Callable[[], str | None],
        misses: Missing | None = None,
    ) -> None:
        self._flow = flow
        self._stuck_s = stuck_s
        self._alive = alive
        self._misses = misses
        self.lags_s = array("d")
        """How late the loop woke this watch, each time: what an arrival waits to be seen."""

    async def run(self) -> Stop:
        """Returns when the replay has to stop."""
        now = self._flow.now
        ask_s = count_s = -math.inf
        while True:
            wake_s = now() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            at_s = now()
            self.lags_s.append(max(0.0, at_s - wake_s))
            if at_s >= ask_s:
                ask_s = at_s + _ALIVE_EVERY_S
                if (reason := self._alive()) is not None:
                    return Stop(kind=Stopped.DEAD, reason=reason, at_s=at_s)
            if self._flow.in_flight and at_s - self._flow.progress_s > self._stuck_s:
                waiting = self._flow.in_flight
                reason = f"no token for any of {waiting} request(s) in flight for {self._stuck_s:g} s"
                return Stop(kind=Stopped.STUCK, reason=reason, at_s=at_s)
            if self._misses is not None and at_s >= count_s:
                count_s = at_s + COUNT_EVERY_S
                if self._misses.too_many(at_s):
                    reason = f"{self._misses.count} requests have missed the SLO"
                    return Stop(kind=Stopped.CUT, reason=reason, at_s=at_s)

    async def last_look(self, broken_s: float) -> Stop | None:
        """Whether the engine died with the last requests: one whose connections just broke may be dying."""
        while (reason := self._alive()) is None:
            if self._flow.now() >= broken_s + _GRACE_S:
                return None
            await asyncio.sleep(LAG_EVERY_S)
        return Stop(kind=Stopped.DEAD, reason=reason, at_s=self._flow.now())
