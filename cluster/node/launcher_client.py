"""The two who deal with a launcher: whoever keeps it on a node, and a trial that asks it for an engine."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.node.excerpt import excerpt
from cluster.node.failure import error_lines, shortened
from cluster.node.launcher import LOG_NAME, READY
from cluster.node.launcher_wire import Answer, Start, receive_answer, send
from cluster.node.owner import mark
from cluster.node.processes import is_running, process

ENGINE_MODULE = "vllm.entrypoints.openai.api_server"
"""What `python -m` runs to serve."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_BOOT_S = 300.0
"""Importing vLLM takes ten seconds on a fast machine, a minute on a small loaded one."""
_BOOT_POLL_S = 0.05
_ANSWER_S = 30.0
"""A fork of a large process takes milliseconds; on a machine without memory to spare, longer."""
_END_S = 10.0


class NoWarmStart(Exception):
    """The launcher starts nothing for this trial; the message says why, in half a sentence."""


class Launcher:
    """A launcher of this node, ready on entering and gone on leaving.

    A context manager. Where it does not come up, `path` is None and `problem` says why: the trials then start
    their engines from the command, and nothing else changes.

    Args:
        environment: of the engines to come, without the few variables that may differ between them.
        module: what `python -m` runs to serve.
    """

    def __init__(self, environment: Mapping[str, str], *, module: str = ENGINE_MODULE) -> None:
        self._environment = dict(environment)
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self.path: Path | None = None
        self.problem: str | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="tuner-launcher-"))
        mark(self._folder)
        log, path = self._folder / LOG_NAME, self._folder / "socket"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cluster.node.launcher", str(path), self._module],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=_PACKAGE_ROOT,
                env=self._environment,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(log, path)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End it. Engines that it started run on. Twice does no harm."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.path = None

    def _wait_until_ready(self, log: Path, path: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _BOOT_S
        while READY not in (said := excerpt(log, 100_000)).splitlines():
            if self._process.poll() is not None:
                last = (list(error_lines(said)) or said.splitlines() or ["it said nothing"])[-1]
                self.problem = f"the launcher ended: {shortened(last)}"
                return
            if time.monotonic() > deadline:
                self.problem = f"the launcher was not ready within {_BOOT_S:g} s"
                self.close()
                return
            time.sleep(_BOOT_POLL_S)
        self.path = path


class WarmGuard:
    """A guard that the launcher forked, with what its trial asks of a Popen.

    Args:
        pid: the guard's.
        held: write end of the pipe that is its standard input.
        told: read end of the pipe that its exit status comes through.
    """

    def __init__(self, pid: int, held: int, told: int) -> None:
        found = process(pid)
        self.pid = pid
        self.stdin = open(held, "wb", buffering=0)  # noqa: SIM115  # closed by whoever stops the guard
        self.returncode: int | None = None
        self._started = None if found is None else found.started
        self._told = told
        self._said = b""

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired, as a Popen does."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("cluster.node.guard", timeout or 0)
        return status

    def kill(self) -> None:
        if self._started is not None and is_running(self.pid, self._started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, timeout_s: float | None) -> int | None:
        """The status, once the guard has told it and let go of the pipe; it does both as it ends."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.returncode is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._told], [], [], left_s)[0]:
                return None
            if more := os.read(self._told, 16):
                self._said += more
                continue
            os.close(self._told)
            self.stdin.close()
            # Nothing said: it was killed.
            self.returncode = int(self._said) if self._said else -signal.SIGKILL
        return self.returncode


def start_warm(path: Path, start: Start, log: int) -> WarmGuard:
    """Have the launcher there start an engine under a guard.

    Args:
        path: the launcher's socket.
        start: what to start, for whom.
        log: descriptor of the engine's log, open for appending.

    Raises:
        NoWarmStart: there is no launcher, or it refuses.
    """
    held_read, held_write = os.pipe2(os.O_CLOEXEC)
    told_read, told_write = os.pipe2(os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(path))
            send(connection, start, (held_read, log, told_write))
            answer = receive_answer(connection)
    except (OSError, ValueError) as error:
        answer = Answer(refused=f"it does not answer: {error}")
    finally:
        os.close(held_read)
        os.close(told_write)
    if answer.guard is None:
        # Closing the pipe ends a guard that was started all the same.
        os.close(held_write)
        os.close(told_read)
        raise NoWarmStart(f"not from the launcher: {answer.refused}")
    return WarmGuard(answer.guard, held_write, told_read)
