"""A study's events as server-sent events, from the file that its process writes.

Specification: WHATWG HTML, section 9.2, "Server-sent events".
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from search_spaces.values import Json
from tuner.service import event_log
from tuner.service.event_log import LoggedEvent
from tuner.service.outside import Outside

LOOK_S = 0.25
"""Between looks at the file: it may be written on another machine's behalf, so nothing tells when."""

BREATH_S = 15.0
"""After so long without an event a comment is sent, so that what lies between does not close the line."""


async def stream(
    path: Path, after: int, going_on: Callable[[], bool], outside: Outside, over: asyncio.Event
) -> AsyncIterator[bytes]:
    """Events after the one with this id, as they happen, until no more can come or the service ends."""
    quiet_s = 0.0
    while True:
        # Asked before reading: what was written before the end is read after it was seen.
        more = await run_in_threadpool(going_on)
        for event in await run_in_threadpool(read_all, path, after):
            after = event.id
            quiet_s = 0.0
            yield sent(event, outside)
        if not more or over.is_set():
            return
        if quiet_s >= BREATH_S:
            quiet_s = 0.0
            yield b": waiting\n\n"
        try:
            await asyncio.wait_for(over.wait(), LOOK_S)
        except TimeoutError:
            quiet_s += LOOK_S


def read_all(path: Path, after: int) -> list[LoggedEvent]:
    """Whole events after the one with this id, as they lie there now."""
    return list(event_log.read(path, after))


def sent(event: LoggedEvent, outside: Outside) -> bytes:
    """One event on the wire. JSON has no line break of its own, so one data line holds it."""
    data: Json = outside.json(dict(event.data))
    return f"id: {event.id}\nevent: {event.name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()
