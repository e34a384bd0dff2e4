"""What one export folder is of: a config, what is promised of it, and what is known against it."""

from dataclasses import dataclass

from objectives.quality import QualityVerdict
from tuner.export.refusals import Mark
from tuner.records import StoredTrial, StudyFile
from tuner.verify.promised import Promised
from tuner.verify.verification import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One config to export."""

    study: StudyFile
    trial: StoredTrial
    """With the measurement that is promised; it goes by the number of the config's first trial."""
    promised: Promised
    """The same for a program that holds it to that (`tuner verify DIR`)."""
    again: int = 0
    """Of how many fresh measurements that is; 0: of the one that the config was chosen by."""
    quality: QualityVerdict | None = None
    verification: Verification | None = None
    marks: tuple[Mark, ...] = ()
    """What was let pass."""
