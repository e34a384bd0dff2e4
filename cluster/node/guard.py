"""A small process between a trial and its engine, that outlives both for as long as it takes to clean up.

    python -m cluster.node.guard --log LOG --record RECORD --grace SECONDS --directory DIR -- COMMAND…

vLLM is a tree: the API server starts an engine core, which starts workers. Killing the API server leaves
the rest running with the GPU's memory. So the guard leads a new session, makes itself the reaper of
every orphan below it, starts the command in a process group of its own, and ends the whole tree when

- the command exits (its exit status becomes the guard's; 128 + n where signal n killed it),
- its standard input closes or its parent changes: the trial's process is gone, kill -9 included,
- it gets SIGTERM, SIGINT or SIGHUP.

It exits only when nothing below it is left, and takes along what the tree left in its temporary folder and
in shared memory: vLLM leaves sockets and files there for its workers to meet at. If the guard itself is
killed, the kernel kills the command (PR_SET_PDEATHSIG), and the session's id in the record finds the rest.

Standard library only: it must start in a blink and take no memory worth counting.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from cluster.node.owner import mark
from cluster.node.processes import Process, descendants, ignores, process, session_members
from cluster.node.secrecy import without_secrets
from cluster.node.shared_memory import mapped, remove_unmapped

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Both from linux/prctl.h."""

PARENT_POLL_S = 1.0
"""How often the parent's pid is checked. A closed pipe is seen at once; this catches the rare case of
another process holding its write end (a fork of the trial's process without exec)."""
SWEEP_POLL_S = 0.05
ORPHAN_GRACE_S = 5.0
"""The most grace for what outlives the command or the trial: it has nobody left to work for."""
HURRY = b"!"
"""Written into the guard's standard input before it closes: somebody waits for the end."""
HURRY_GRACE_S = 1.0
TRACKER_GRACE_S = 1.0
"""Left to those who ignore SIGTERM, once the others are killed. Python's resource trackers do: they remove
the shared memory of the dead, and end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRecord:
    """What the guard writes down as soon as the command runs, and removes when nothing is left."""

    pid: int
    """The guard's own, which is also the id of the session that everything below it belongs to."""
    started: int
    """The guard's start, in clock ticks after boot."""
    command_pid: int
    command_started: int
    command: tuple[str, ...]
    """Secrets left out."""
    scratch: str
    """The tree's own temporary folder."""

    @property
    def ours(self) -> tuple[Process, ...]:
        """Running processes of this session: the guard, the engine and whatever it started."""
        leader = process(self.pid)
        if leader is not None and leader.started != self.started:
            return ()  # the pid was used again, so every process of the session had gone
        return tuple(one for one in session_members(self.pid) if one.started >= self.started)


def read_record(path: Path) -> GuardRecord | None:
    """What a guard wrote, or None where nothing readable is there."""
    try:
        found = json.loads(path.read_text())
        return GuardRecord(**{**found, "command": tuple(found["command"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sweep(record: GuardRecord, wait_s: float = 10.0) -> bool:
    """SIGKILL all that is left of a guarded tree, its guard too, and say whether nothing is left.

    What it left in its temporary folder goes as well.
    """
    began = time.monotonic()
    segments: frozenset[Path] = frozenset()
    while left := record.ours:
        if time.monotonic() > began + wait_s:
            return False
        segments |= mapped(one.pid for one in left)
        _kill(left, trackers=time.monotonic() > began + TRACKER_GRACE_S)
        time.sleep(SWEEP_POLL_S)
    remove_unmapped(segments)
    shutil.rmtree(record.scratch, ignore_errors=True)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cluster.node.guard")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(arguments)
    return guard(asked.command, asked.log, asked.record, asked.grace, asked.directory)


class Child(Protocol):
    """The command while it runs; what the guard asks of a Popen."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


def guard(
    command: Sequence[str],
    log: Path,
    record: Path,
    grace_s: float,
    directory: Path,
    *,
    start: Callable[[str], Child] | None = None,
    owned: Callable[[], bool] | None = None,
) -> int:
    """Run the command until it ends or must end; return its exit status with nothing left running.

    Args:
        start: starts the command, given the tree's temporary folder; None: runs it.
        owned: whether the trial's process is there still; None: whether it is this one's parent.
    """
    parent = os.getppid()
    owned = owned or (lambda: os.getppid() == parent)
    with contextlib.suppress(PermissionError):  # started from a shell, we lead a group already
        os.setsid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = signals_as_bytes()
    with tempfile.TemporaryDirectory(prefix="tuner-", ignore_cleanup_errors=True) as scratch:
        with contextlib.suppress(OSError):
            mark(Path(scratch))
        try:
            child = start(scratch) if start else _start(command, log, directory, scratch)
        except OSError as error:
            print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        try:
            _write_record(record, child, command, scratch)
            if _wait(child, owned, wake):
                grace_s = min(grace_s, HURRY_GRACE_S)
        finally:
            if child.poll() is not None or not owned():
                grace_s = min(grace_s, ORPHAN_GRACE_S)
            _end_all(child, grace_s)
            record.unlink(missing_ok=True)
    status = child.wait()
    return status if status >= 0 else 128 - status


def die_with_parent(pid: int) -> None:
    """Have the kernel kill this process when its parent ends, which has this pid."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:  # it died before the line above
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def signals_as_bytes() -> int:
    """A descriptor that becomes readable with a signal's number when it arrives, so none is missed."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return read


def _start(command: Sequence[str], log: Path, directory: Path, scratch: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, "TMPDIR": scratch},
            process_group=0,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )


def _write_record(path: Path, child: Child, command: Sequence[str], scratch: str) -> None:
    guard_itself, started = process(os.getpid()), process(child.pid)
    assert guard_itself is not None
    assert started is not None  # not reaped yet, so /proc has it, if only as a zombie
    record = GuardRecord(
        pid=os.getpid(),
        started=guard_itself.started,
        command_pid=child.pid,
        command_started=started.started,
        command=without_secrets(command),
        scratch=scratch,
    )
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record)))
    partial.replace(path)


def _wait(child: Child, owned: Callable[[], bool], wake: int) -> bool:
    """Return when the command has exited, the trial's process is gone, or somebody says stop; in a hurry?"""
    while child.poll() is None and owned():
        ready, _, _ = select.select([wake, sys.stdin], [], [], PARENT_POLL_S)
        if sys.stdin in ready:
            return os.read(sys.stdin.fileno(), 1) == HURRY
        if wake in ready and set(os.read(wake, 1024)) - {signal.SIGCHLD}:
            return False
        _reap_orphans(child)
    return False


def _end_all(child: Child, grace_s: float) -> None:
    """SIGTERM to everything below, SIGKILL once the grace is over, until nothing is left."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    segments: frozenset[Path] = frozenset()
    while left := _left(child):
        segments |= mapped(one.pid for one in left if one.pid not in asked)
        if time.monotonic() > deadline:
            _kill(left, trackers=time.monotonic() > deadline + TRACKER_GRACE_S)
        for one in left:
            if one.pid not in asked:
                _send(one.pid, signal.SIGTERM)
        asked |= {one.pid for one in left}
        time.sleep(SWEEP_POLL_S)
    child.wait()
    remove_unmapped(segments)


def _kill(left: Sequence[Process], *, trackers: bool) -> None:
    """SIGKILL, to those who ignore SIGTERM only where `trackers` says so."""
    for one in left:
        if trackers or not ignores(one.pid, signal.SIGTERM):
            _send(one.pid, signal.SIGKILL)


def _left(child: Child) -> tuple[Process, ...]:
    _reap_orphans(child)
    return tuple(one for one in descendants(os.getpid()) if not one.zombie)


def _reap_orphans(child: Child) -> None:
    """Collect exited processes that were re-parented to us; the command itself is Popen's to collect."""
    child.poll()
    while (exited := _next_exited()) is not None and exited != child.pid:
        os.waitpid(exited, 0)


def _next_exited() -> int | None:
    """Pid of an exited child that nobody has collected, or None. It is left uncollected."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    raise SystemExit(main())
