"""The node's processes as Linux tells them: who descends from whom, and who listens on a port.

Nothing here goes by a process's name. Standard library only: the guard imports it and must start fast.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One row of /proc, as it was read."""

    pid: int
    parent: int
    group: int
    session: int
    zombie: bool
    started: int
    """Clock ticks after boot. With the pid it names a process for good: pids are used again."""


def process(pid: int) -> Process | None:
    """The process with this pid, or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses; what
    # follows the last one is state, ppid, pgrp, session, … with starttime as field 22 (man 5 proc).
    fields = text[text.rindex(")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        zombie=fields[0] in ("Z", "X"),
        started=int(fields[19]),
    )


def every_process() -> Iterator[Process]:
    """All processes that this one may see, zombies too."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := process(int(name))) is not None:
            yield found


def is_running(pid: int, started: int) -> bool:
    """Whether the process that had this pid and start time still runs; a zombie does not."""
    found = process(pid)
    return found is not None and found.started == started and not found.zombie


def ignores(pid: int, signal: int) -> bool:
    """Whether the process has said that it does not mind this signal. False where there is none."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = [row.split()[1] for row in text.splitlines() if row.startswith("SigIgn:")]
    return any(int(mask, 16) >> (signal - 1) & 1 for mask in masks)


def descendants(pid: int) -> tuple[Process, ...]:
    """Children, their children and so on, zombies too, without the process itself."""
    children: dict[int, list[Process]] = {}
    for one in every_process():
        children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [one.pid for one in below]
    return tuple(found)


def session_members(session: int) -> tuple[Process, ...]:
    """Running processes of a session, wherever their parents went."""
    return tuple(one for one in every_process() if one.session == session and not one.zombie)


def listening_inodes(port: int) -> frozenset[str]:
    """Socket inodes that listen on this TCP port, on any address."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6 has no tcp6
            continue
        for row in rows:
            _, local, _, state, *rest = row.split()
            if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
                inodes.add(rest[5])
    return frozenset(inodes)


def open_inodes(pid: int) -> frozenset[str]:
    """Inodes of the sockets that a process holds open; empty where we may not look."""
    inodes = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return frozenset()
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return frozenset(inodes)


def listens_alone(port: int, pids: Collection[int]) -> bool:
    """Whether something listens on the port and every listener is held by one of these processes.

    Every one: vLLM binds with SO_REUSEPORT, so two servers can share a port without either being told,
    and the kernel deals the requests out between them.
    """
    listening = listening_inodes(port)
    held = frozenset[str]().union(*(open_inodes(pid) for pid in pids))
    return bool(listening) and listening <= held
