"""One writer a study and a time: two that look for a run and find none would both make it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "mlflow.lock"
"""In the study's folder. It holds who wrote last; the lock itself goes with its process."""

_POLL_S = 0.2


class LedgerBusy(Exception):
    """Another process is writing this study to MLflow; the message names it."""


@contextmanager
def writing(study_folder: Path, writer: str, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Be the only one who writes the study to MLflow. Gives whether nobody else has since this writer did.

    Args:
        writer: an id of the caller's own.
        wait_s: how long another one is waited for.

    Raises:
        LedgerBusy: another one is at it.
        OSError: the folder cannot be written.
    """
    deadline = time.monotonic() + wait_s
    file = os.open(study_folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while not _taken(file):
            if time.monotonic() >= deadline:
                holder = _read(file).partition("\n")[0] or "another process"
                raise LedgerBusy(f"study {study_folder.name} is being written to MLflow by {holder}")
            time.sleep(_POLL_S)
        last = _read(file).rpartition("\n")[2]
        # Written over, never emptied first: who is refused reads it at any time.
        text = f"process {os.getpid()} on {os.uname().nodename}\n{writer}".encode()
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))
        yield last == writer
    finally:
        os.close(file)


def _read(file: int) -> str:
    return os.pread(file, 4096, 0).decode(errors="replace")


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
