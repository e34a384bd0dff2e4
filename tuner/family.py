"""A run of MLflow with runs below it, as plain data: what an ablation leaves there. Shapes only."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tuner.entries import Entry

FAMILY_ID = "tuner.ablation_id"
MEMBER = "run"
"""Tags by which the ledger finds them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run below."""

    key: str
    """Tells it from its siblings; the same whenever it is written."""
    title: str
    entry: Entry
    folder: Path
    """What it left on disk; all of it becomes artifacts."""
    failed: bool
    started: datetime
    finished: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A run of its own, below a study's, and the runs below it."""

    id: str
    """Never given twice."""
    study_id: str
    space: str
    title: str
    entry: Entry
    artifacts: Mapping[str, str]
    """Texts by file name."""
    members: tuple[Member, ...]
    started: datetime
    finished: bool
    """Whether there is nothing left to do."""
