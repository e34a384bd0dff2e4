"""What a study knows of its artefacts' quality: verdicts, in the folders of the trials that were asked.

    runs/<study>/trials/0007/quality.json   the verdict on the trial's artefact, or why there is none
                            /answers.json   what the engine answered

A verdict is of an artefact, not of a trial: every trial of that artefact has it.
"""

from pathlib import Path

from objectives.quality import QualityVerdict
from tuner.records import StoredTrial


def read_verdict(study_folder: Path, trial: StoredTrial) -> QualityVerdict | None:
    """The verdict on a trial's artefact; None where it was not checked, which is no pass.

    Raises RecordError where one cannot be read.
    """
    return read_verdicts(study_folder).get(trial.artefact)


def read_verdicts(study_folder: Path) -> dict[str, QualityVerdict]:
    """Every verdict of a study by its artefact's fingerprint. Raises RecordError where one cannot be read."""
    return {}
