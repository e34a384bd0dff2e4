"""What a trial asks of its node's launcher, and how that crosses a Unix socket. Standard library only."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MOST_DESCRIPTORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An engine to be started under a guard, from an interpreter that has it imported already.

    Three descriptors go with it: the read end of a pipe that the trial's process holds open for as long as
    the engine is wanted, the engine's log, and the write end of a pipe for the guard's exit status.
    """

    command: tuple[str, ...]
    """`python -m MODULE ARGUMENT…`, as it would be run by hand."""
    environment: Mapping[str, str]
    directory: str
    log: str
    record: str
    grace_s: float
    owner: int
    """Pid of the trial's process, and its start in clock ticks after boot."""
    owner_started: int
    surroundings: Mapping[str, str]
    """What the engine would inherit of the trial's process; see `surroundings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The guard's pid, or why the launcher starts nothing."""

    guard: int | None = None
    refused: str | None = None


def surroundings() -> dict[str, str]:
    """What a child inherits of this process beside its environment, as far as it can change a measurement."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip()
    except OSError:
        group = ""
    return {
        "CPUs": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "priority": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "control group": group,
    }


def send(connection: socket.socket, message: Start | Answer, descriptors: Sequence[int] = ()) -> None:
    """One message a line. Raises OSError where nobody reads."""
    line = json.dumps(asdict(message)).encode() + b"\n"
    # Descriptors go with the first bytes; a line may be longer than what one call takes.
    sent = socket.send_fds(connection, [line], list(descriptors)) if descriptors else 0
    if sent < len(line):
        connection.sendall(line[sent:])


def receive_start(connection: socket.socket) -> tuple[Start, tuple[int, ...]]:
    """A request and its descriptors. Raises OSError or ValueError for anything else; none stays open then."""
    descriptors: list[int] = []
    try:
        found = _line(connection, descriptors)
        start = Start(**found | {"command": tuple(found["command"])})
        if len(descriptors) != _MOST_DESCRIPTORS:
            raise ValueError(f"{_MOST_DESCRIPTORS} descriptors go with a start, got {len(descriptors)}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise
        raise ValueError(f"not a request to start an engine: {error}") from None
    return start, tuple(descriptors)


def receive_answer(connection: socket.socket) -> Answer:
    """Raises OSError or ValueError where the launcher gives none."""
    try:
        return Answer(**_line(connection, []))
    except TypeError as error:
        raise ValueError(f"not a launcher's answer: {error}") from None


def _line(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
    text = b""
    while not text.endswith(b"\n"):
        more, came, _, _ = socket.recv_fds(connection, 65536, _MOST_DESCRIPTORS)
        descriptors += came
        if not more:
            raise ValueError("the other end hung up")
        text += more
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
