"""A job's process: started in a session of its own, found again after a restart, asked to end.

Whether it lives is told by a lock and not by a pid. The service takes the lock and hands the open file to the
process, which holds it until it is gone, however that happens; there is no moment in which a process runs and
nobody can see it, so none is ever started twice. A signal goes to a pid whose start time is that on record.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.node.processes import is_running
from tuner.service.job_files import JobFiles, read_json
from tuner.service.jobs import State

LOCK_FD_VARIABLE = "TUNER_JOB_LOCK_FD"
_SECRETS_OF_THE_SERVICE = ("TUNER_TOKENS", "TUNER_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended by itself, as it wrote down."""

    state: State
    """Finished, failed, or paused: it was stopped by a signal and can go on."""
    reason: str | None


class Processes(Protocol):
    """Runs jobs; the tests' runs them without processes."""

    def start(self, files: JobFiles, environment: Mapping[str, str]) -> bool:
        """Start a job's process. False where one runs already."""

    def alive(self, files: JobFiles) -> bool: ...

    def ended(self, files: JobFiles) -> Ended | None:
        """How the last one ended; None where it died."""

    def stop(self, files: JobFiles, *, at_once: bool) -> bool:
        """Ask it to end, or end it and its group. False where it has not come to say which process it is."""


class OwnSessions:
    """Processes of this machine that outlive the service."""

    def start(self, files: JobFiles, environment: Mapping[str, str]) -> bool:
        lock = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _taken(lock):
                return False
            files.ended.unlink(missing_ok=True)
            files.process.unlink(missing_ok=True)
            with files.log.open("ab") as log:
                child = subprocess.Popen(
                    [sys.executable, "-m", "tuner.service.child", str(files.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock,),
                    start_new_session=True,
                    env={**_environment(), **environment, LOCK_FD_VARIABLE: str(lock)},
                )
        finally:
            os.close(lock)
        # Reaped as it ends, whenever that is.
        threading.Thread(target=child.wait, name=f"reaper of {child.pid}", daemon=True).start()
        return True

    def alive(self, files: JobFiles) -> bool:
        try:
            lock = os.open(files.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _taken(lock)
        finally:
            os.close(lock)

    def ended(self, files: JobFiles) -> Ended | None:
        raw = read_json(files.ended)
        if raw is None:
            return None
        reason = raw["reason"]
        return Ended(state=State(str(raw["state"])), reason=None if reason is None else str(reason))

    def stop(self, files: JobFiles, *, at_once: bool) -> bool:
        told = read_json(files.process)
        if told is None:
            return False
        pid, started = int(str(told["pid"])), int(str(told["started"]))
        if is_running(pid, started):
            with suppress(ProcessLookupError):
                if at_once:
                    os.killpg(pid, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGTERM)
        return True


def hold_alone(path: Path) -> int:
    """Hold a lock file for this process; the open file. Raises BlockingIOError where another does."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    return lock


def _taken(lock: int) -> bool:
    """Whether the lock was free and is held now; closing the file frees it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _environment() -> dict[str, str]:
    """This process's own, without what only the service may know."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS_OF_THE_SERVICE}
