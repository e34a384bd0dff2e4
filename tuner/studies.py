"""Studies as they lie under the runs folder, found by name."""

from pathlib import Path

from tuner.mistakes import Mistake
from tuner.records import STUDY, StoredTrial, StudyFile, read_study, read_trials


def study_folder(study: str | None, runs: Path) -> Path:
    """Where a study lies. Raises Mistake, with the studies there are, where there is none of that name."""
    there = sorted(path.parent.name for path in runs.glob(f"*/{STUDY}"))
    if study is None:
        if not there:
            raise Mistake(f"no study under {runs}; tuner search --space … makes one")
        return max((runs / name for name in there), key=lambda folder: read_study(folder).created)
    if study not in there:
        known = f"there are {', '.join(there)}" if there else "there is none yet"
        raise Mistake(f"no study {study!r} under {runs}; {known}")
    return runs / study


def trial_of(folder: Path, number: int) -> tuple[StudyFile, StoredTrial]:
    """One finished trial. Raises Mistake where it has not finished or never was."""
    study, trials = read_study(folder), read_trials(folder)
    for trial in trials:
        if trial.number == number:
            return study, trial
    finished = ", ".join(str(trial.number) for trial in trials) or "none"
    raise Mistake(f"study {study.name} has no finished trial {number}; finished are {finished}")
