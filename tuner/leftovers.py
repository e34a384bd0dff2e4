"""What crashes left on this machine and in the runs folder, found by what was written down when it began.

Nothing goes by the name of a process: a folder says whose it is, an engine's guard what runs below it, and
both with the start of the process, since numbers are used again. What cannot be told to be dead is left
alone, and so is a study that is being searched.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cluster.node.guard import read_record, sweep
from cluster.node.guarded import RECORD_NAME
from cluster.node.owner import Life, owner_of
from cluster.node.processes import process
from search_spaces.values import Json
from tuner.mistakes import Mistake
from tuner.records import OUTCOME, STUDY, TRIALS, RecordError, TornRecord, read_outcome
from tuner.study_lock import searched_by


class Kind(StrEnum):
    """What is left."""

    PROCESSES = "processes"
    FOLDER = "temporary folder"
    HALF_WRITTEN = "half-written"
    TORN = "torn record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that a crash left."""

    kind: Kind
    path: Path
    """What is removed; of processes, the record that names them."""
    why: str
    """How it is known that nobody needs it."""
    pids: tuple[int, ...] = ()


_HALF_A_DATABASE = re.compile(r"\.mlflow\.db\.(\d+)\.part")


def find_leftovers(runs: Path, temporary: Path | None = None) -> tuple[Leftover, ...]:
    """Everything of that kind, processes first.

    Args:
        temporary: where trials have their folders; None: this machine's own place for them.
    """
    place = temporary or Path(tempfile.gettempdir())
    folders = tuple(_dead_folders(place))
    return (
        *(left for left in folders if left.kind is Kind.PROCESSES),
        *(left for left in folders if left.kind is not Kind.PROCESSES),
        *_of_studies(runs),
        *_half_databases(runs),
    )


def remove(left: Leftover) -> None:
    """Remove it, and nothing else. Raises Mistake where that fails."""
    if left.kind is Kind.PROCESSES:
        record = read_record(left.path)
        if record is not None and not sweep(record):
            raise Mistake(f"processes {', '.join(map(str, left.pids))} do not end")
        left.path.unlink(missing_ok=True)
        return
    try:
        if left.path.is_dir():
            shutil.rmtree(left.path)
        else:
            left.path.unlink(missing_ok=True)
    except OSError as error:
        raise Mistake(f"cannot remove {left.path}: {error.strerror or error}") from error


def _dead_folders(place: Path) -> Iterator[Leftover]:
    """Folders that a process marked as its own and did not live to remove, and engines recorded in them."""
    for folder in sorted(path for path in place.iterdir() if _is_our_folder(path)):
        owner = owner_of(folder)
        if owner is None or owner.life is not Life.DEAD:
            continue
        why = f"made by process {owner.pid}, which is gone"
        record = read_record(folder / RECORD_NAME)
        if record is not None and (running := record.ours):
            pids = tuple(one.pid for one in running)
            yield Leftover(
                kind=Kind.PROCESSES, path=folder / RECORD_NAME, why=f"engine of a trial {why}", pids=pids
            )
        yield Leftover(kind=Kind.FOLDER, path=folder, why=why)


def _is_our_folder(path: Path) -> bool:
    """Whether it is a folder of this user's: what others wrote there says nothing of our processes."""
    try:
        found = path.lstat()
    except OSError:  # gone meanwhile
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _of_studies(runs: Path) -> Iterator[Leftover]:
    """Trials and studies that were being written when their driver died, and records that cannot be read."""
    for study in sorted(path for path in runs.glob("*") if path.is_dir()):
        # Whatever has trials: the study, its ablations and verifications, each with its own lock.
        for trials in sorted(found for depth in ("", "*/", "*/*/") for found in study.glob(depth + TRIALS)):
            if trials.is_dir() and searched_by(study) is None and searched_by(trials.parent) is None:
                yield from _of_trials(trials)
        part = study / f".{STUDY}.part"
        if part.is_file() and searched_by(study) is None:
            yield Leftover(kind=Kind.HALF_WRITTEN, path=part, why="nobody searches this study")


def _of_trials(trials: Path) -> Iterator[Leftover]:
    for part in sorted(trials.glob(".*.part")):
        yield Leftover(kind=Kind.HALF_WRITTEN, path=part, why="nobody is writing this trial")
    for folder in sorted(path for path in trials.glob("*") if path.name.isdecimal()):
        try:
            read_outcome(folder)
        except TornRecord:
            yield Leftover(
                kind=Kind.TORN,
                path=folder,
                why=f"its {OUTCOME} is missing or no whole JSON, so it is no trial",
            )
        except RecordError:  # of another version: whole, and somebody's
            continue


def _half_databases(runs: Path) -> Iterator[Leftover]:
    for path in sorted(runs.glob(".mlflow.db.*.part*")):
        named = _HALF_A_DATABASE.match(path.name)
        if named and process(int(named[1])) is None and path.stat().st_uid == os.getuid():
            yield Leftover(
                kind=Kind.HALF_WRITTEN, path=path, why=f"made by process {named[1]}, which is gone"
            )


def leftover_line(left: Leftover) -> str:
    """As a person reads it."""
    what = f"{', '.join(map(str, left.pids))} ({left.path})" if left.pids else str(left.path)
    return f"{left.kind.value} {what}: {left.why}"


def leftovers_json(left: tuple[Leftover, ...], *, removed: bool) -> dict[str, Json]:
    """As a program reads it."""
    return {
        "removed": removed,
        "leftovers": [
            {"kind": one.kind.value, "path": str(one.path), "pids": list(one.pids), "why": one.why}
            for one in left
        ],
    }
