"""Reads an engine's counters around and during a replay: exactly at its edges, about once a second between.

The two readings at the edges hold the latency histograms as well; in between nobody needs them.

A scrape costs the API server 5 to 11 ms of the loop that streams its tokens, so no oftener than that.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

import aiohttp

from cluster.node.counters import read_sample
from objectives.measurement import Sample


class Scraper:
    """An asynchronous context: one scrape on entering, one every so often, one on leaving.

    A scrape that fails is a gap in the series, not an error: an engine that died is for others to notice.

    Args:
        base_url: the server's root, without `/metrics`.
        every_s: between scrapes.
        timeout_s: the longest that one may take, so that a frozen server cannot hold up the end of a replay.
        version: vLLM's, where known, for counters whose meaning changed.
        each: given every sample as it was read, its time on `perf_counter`'s own clock.
    """

    def __init__(
        self,
        base_url: str,
        *,
        every_s: float = 1.0,
        timeout_s: float = 5.0,
        version: str | None = None,
        each: Callable[[Sample], None] = lambda sample: None,
    ) -> None:
        self._url = base_url.rstrip("/") + "/metrics"
        self._every_s = every_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._version = version
        self._each = each
        self._samples: list[Sample] = []  # on perf_counter's own clock
        self._session: aiohttp.ClientSession | None = None
        self._repeating: asyncio.Task[None] | None = None
        self.gaps = 0
        """Scrapes that failed."""

    async def __aenter__(self) -> Self:
        session = aiohttp.ClientSession(timeout=self._timeout)
        self._session = session
        await self._scrape(session, edge=True)
        self._repeating = asyncio.create_task(self._repeat(session))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None or self._repeating is None:
            return
        try:
            self._repeating.cancel()
            await asyncio.wait({self._repeating})
            if kind is None:
                await self._scrape(self._session, edge=True)
        finally:
            await self._session.close()

    def samples(self, zero_s: float) -> tuple[Sample, ...]:
        """What was read so far, in time order, on the clock whose zero is at this time of `perf_counter`.

        The first is from before the replay, so at a negative time.
        """
        return tuple(replace(sample, at_s=sample.at_s - zero_s) for sample in self._samples)

    async def _repeat(self, session: aiohttp.ClientSession) -> None:
        due_s = time.perf_counter()
        while True:
            due_s += self._every_s
            late_s = time.perf_counter() - due_s
            if late_s > 0:  # after a slow scrape go on with the rhythm, without catching up
                due_s += (late_s // self._every_s + 1) * self._every_s
            await asyncio.sleep(due_s - time.perf_counter())
            await self._scrape(session)

    async def _scrape(self, session: aiohttp.ClientSession, *, edge: bool = False) -> None:
        asked_s = time.perf_counter()
        try:
            async with session.get(self._url, allow_redirects=False) as response:
                if response.status != 200:
                    self.gaps += 1
                    return
                text = await response.text()
        except (aiohttp.ClientError, OSError, UnicodeDecodeError):
            self.gaps += 1
            return
        # The server read its counters somewhere between question and answer.
        at_s = (asked_s + time.perf_counter()) / 2
        sample = read_sample(text, at_s, self._version, histograms=edge)
        self._samples.append(sample)
        self._each(sample)
