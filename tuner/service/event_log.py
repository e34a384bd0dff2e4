"""A job's events on disk: one JSON object a line, appended by whoever has something to tell.

An event's id is the byte at which the next one begins. So a reader who was cut off says which it saw last
and is given what follows, by seeking there: after a restart of the service too, and without a count to keep.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from search_spaces.values import Json

_TAIL = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One line."""

    id: int
    """The offset after it: where to read on."""
    name: str
    data: Mapping[str, Json]


class NoSuchEvent(ValueError):
    """No event of this file has that id."""


def append(path: Path, name: str, data: Mapping[str, Json], *, wait: bool = True) -> None:
    """Add an event, stamped with the time now. Several processes may do so at once.

    What a writer that was killed left of a line is cut off first, so that no line is ever damaged.

    Args:
        wait: for the disk, so that it outlives the machine's crash; one that follows brings all before it.
    """
    line = json.dumps(
        {"event": name, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **data}, allow_nan=False
    )
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = _whole(file)
        file.truncate(whole)
        file.write(line.encode() + b"\n")
        file.flush()
        if wait:
            os.fsync(file.fileno())


def read(path: Path, after: int = 0) -> Iterator[LoggedEvent]:
    """Whole events after the one with this id; 0: from the first.

    Raises NoSuchEvent where no event ends there.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if after:
            raise NoSuchEvent(f"no event has id {after}") from None
        return
    with file:
        if after:
            # One byte before it ends the line before; beyond the file nothing is read.
            file.seek(after - 1)
            if file.read(1) != b"\n":
                raise NoSuchEvent(f"no event has id {after}")
        at = after
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            at += len(raw)
            data = json.loads(raw)
            yield LoggedEvent(id=at, name=data.pop("event"), data=data)


def _whole(file: BinaryIO) -> int:
    """Bytes of whole lines."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
