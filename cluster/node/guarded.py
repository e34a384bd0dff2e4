"""The trial's end of a guard: start a command under it, ask whether it lives, end it and all below it."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.node.guard import HURRY, GuardRecord, read_record, sweep
from cluster.node.launcher_client import NoWarmStart, WarmGuard, start_warm
from cluster.node.launcher_wire import Start, surroundings
from cluster.node.processes import is_running, process

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
"""The folder that `cluster` is imported from: a checkout, site-packages, or what Ray unpacked."""

RECORD_NAME = "guard.json"
"""In the trial's folder for as long as something of the engine may be running."""

WARM, COLD = "warm", "cold"
"""From a launcher that had the engine imported; from its command."""

_GUARD_START_S = 60.0
_GUARD_SLACK_S = 30.0
"""On a loaded node: Python's own start, and the guard's last sweep after the grace."""


class GuardedProcess:
    """A command that cannot outlive this process, nor leave children behind.

    A context manager: it is started on entering and stopped on leaving, with nothing of it running after.

    Args:
        launcher: the socket of a launcher that has what the command runs imported already; None: there is
            none. Where it can't start this command, the command is started as it is, and the log says so.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        grace_s: float,
        launcher: Path | None = None,
    ) -> None:
        self._command = tuple(command)
        self._record_path = folder / RECORD_NAME
        self._log = log
        self._environment = dict(environment)
        self._grace_s = grace_s
        self._launcher = launcher
        self._why_cold: str | None = None
        self._guard: subprocess.Popen[bytes] | WarmGuard | None = None
        self._record: GuardRecord | None = None

    def __enter__(self) -> Self:
        self._record_path.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            try:
                self._guard = self._from_launcher(log.fileno()) or self._from_command(log.fileno())
            except NoWarmStart as problem:
                self._why_cold = str(problem)
                log.write(f"[tuner] a cold start: {problem}\n".encode())
                log.flush()
                self._guard = self._from_command(log.fileno())
        try:
            self._wait_for_record()
        except BaseException:
            self.stop(hurry=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whatever went wrong, the engine has nothing to end in order, and the trial or a person waits for it.
        self.stop(hurry=kind is not None)

    @property
    def alive(self) -> bool:
        """Whether the command itself still runs. Costs one read of /proc."""
        record = self._record
        return record is not None and is_running(record.command_pid, record.command_started)

    @property
    def pids(self) -> tuple[int, ...]:
        """Everything that runs under the guard, the guard too."""
        return () if self._record is None else tuple(one.pid for one in self._record.ours)

    @property
    def exit_status(self) -> int | None:
        """The command's, 128 + n where signal n ended it; None until everything below it has ended too."""
        return None if self._guard is None else self._guard.poll()

    def stop(self, *, hurry: bool = False) -> int | None:
        """End the command and everything below it; return its exit status. Twice does no harm.

        Args:
            hurry: hardly wait for it to end by itself.
        """
        if self._guard is None:
            return None
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                if hurry:
                    self._guard.stdin.write(HURRY)
                self._guard.stdin.close()
        try:
            self._guard.wait(self._grace_s + _GUARD_SLACK_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        # Normally nothing is left to sweep. A guard that was killed leaves its record and the engine core.
        if self._record is not None and sweep(self._record):
            self._record_path.unlink(missing_ok=True)
        return self._guard.returncode

    @property
    def launch(self) -> str:
        """How it was started: `WARM`, `COLD`, or that and why not from the launcher there is."""
        if self._why_cold is not None:
            return f"{COLD}: {self._why_cold}"
        return WARM if isinstance(self._guard, WarmGuard) else COLD

    def _from_command(self, log: int) -> "subprocess.Popen[bytes]":
        guard = [
            *(sys.executable, "-m", "cluster.node.guard"),
            *("--log", str(self._log.resolve())),
            *("--record", str(self._record_path.resolve())),
            *("--grace", str(self._grace_s)),
            *("--directory", os.getcwd()),
        ]
        return subprocess.Popen(
            [*guard, "--", *self._command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=PACKAGE_ROOT,
            env=self._environment,
        )

    def _from_launcher(self, log: int) -> WarmGuard | None:
        """None where there is no launcher. Raises NoWarmStart."""
        mine = process(os.getpid())
        if self._launcher is None or mine is None:
            return None
        start = Start(
            command=self._command,
            environment=self._environment,
            directory=os.getcwd(),
            log=str(self._log.resolve()),
            record=str(self._record_path.resolve()),
            grace_s=self._grace_s,
            owner=mine.pid,
            owner_started=mine.started,
            surroundings=surroundings(),
        )
        return start_warm(self._launcher, start, log)

    def _wait_for_record(self) -> None:
        assert self._guard is not None
        deadline = time.monotonic() + _GUARD_START_S
        while (record := read_record(self._record_path)) is None:
            # A command that ends at once may take its record with it.
            if self._guard.poll() is not None or time.monotonic() > deadline:
                return
            time.sleep(0.02)
        self._record = record
