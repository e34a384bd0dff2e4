"""Whose a temporary folder is, written into it, so that what a crash left can be told from what is in use.

A process is known by its number and its start, on one boot of one machine, in one namespace of numbers:
what was started elsewhere is never judged. Standard library only: the guard imports it.
"""

import contextlib
import enum
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.node.processes import is_running, process

OWNER = ".owner.json"

TRIAL_PREFIX = "tuner-trial-"
"""How the folder of a trial under way begins, in the machine's temporary folder."""


class Life(enum.Enum):
    """What is known of an owner."""

    ALIVE = enum.auto()
    DEAD = enum.auto()
    ELSEWHERE = enum.auto()
    """Of another machine or container: its numbers mean nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, named for good."""

    pid: int
    started: int
    """Clock ticks after boot."""
    boot: str
    """The kernel's id of the boot."""
    node: str
    namespace: int
    """Of process numbers: containers on one machine have their own."""

    @property
    def life(self) -> Life:
        here = _self()
        if (self.node, self.namespace) != (here.node, here.namespace):
            return Life.ELSEWHERE
        alive = self.boot == here.boot and is_running(self.pid, self.started)
        return Life.ALIVE if alive else Life.DEAD


def mark(folder: Path) -> None:
    """Write down that the folder is this process's."""
    (folder / OWNER).write_text(json.dumps(asdict(_self())))


def owner_of(folder: Path) -> Owner | None:
    """Whose it is; None where nothing readable says so."""
    try:
        return Owner(**json.loads((folder / OWNER).read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def trial_folder() -> Iterator[Path]:
    """A folder for one trial, marked as this process's and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=TRIAL_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with contextlib.suppress(OSError):  # a full disk is told by whoever needs the room
            mark(folder)
        yield folder


def _self() -> Owner:
    found = process(os.getpid())
    assert found is not None
    return Owner(
        pid=found.pid,
        started=found.started,
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        node=os.uname().nodename,
        namespace=os.stat("/proc/self/ns/pid").st_ino,
    )
