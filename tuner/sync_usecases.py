"""What MLflow lacks of studies, written from disk: after an outage, a killed driver, or to another MLflow."""

from dataclasses import dataclass
from pathlib import Path

from search_spaces.load import parse_space
from search_spaces.values import Json
from tuner.front import FrontView, read_view
from tuner.ledger import Ledger, Standing
from tuner.mistakes import Mistake
from tuner.records import STUDY
from tuner.redaction import without_passwords
from tuner.session import DEFAULT_TRIALS
from tuner.studies import study_folder
from tuner.study_lock import searched_by
from tuner.usecases import tracking_uri_of, users_mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """One study, and whether MLflow has all of it now."""

    study: str
    trials: int
    """Finished ones."""
    tracking_uri: str | None
    """Without its password; None where it is not known."""
    why_not: str | None
    """Why MLflow has not all of it, one line; None where it has."""


def sync(study: str | None, runs: Path, tracking_uri: str | None) -> tuple[Synced, ...]:
    """Write what MLflow lacks of a study, or of every study under the runs folder.

    It may be called at any time and as often as wanted, during a search too: nothing is written twice.

    Args:
        tracking_uri: where to; None: where each study is logged.

    Raises:
        Mistake: there is no such study.
    """
    folders = (
        [study_folder(study, runs)] if study else sorted(file.parent for file in runs.glob(f"*/{STUDY}"))
    )
    if not folders:
        raise Mistake(f"no study under {runs}; tuner search --space … makes one")
    return tuple(_sync_or_say(folder, runs, tracking_uri) for folder in folders)


def _sync_or_say(folder: Path, runs: Path, tracking_uri: str | None) -> Synced:
    """One study that cannot be read keeps no other from being written."""
    try:
        with users_mistakes():
            return _sync(folder, runs, tracking_uri)
    except Mistake as mistake:
        return Synced(study=folder.name, trials=0, tracking_uri=None, why_not=str(mistake))


def _sync(folder: Path, runs: Path, tracking_uri: str | None) -> Synced:
    view = read_view(folder)
    uri = tracking_uri or tracking_uri_of(view.study, runs)
    said: list[str] = []
    ledger = Ledger(uri, artifacts=runs / "mlartifacts", say=said.append, runs=str(runs))
    standing = _standing(folder, view)
    logged = False
    while not logged and not said:  # of a study under way one call writes a part
        logged = ledger.sync(folder, view, standing)
    return Synced(
        study=view.study.name,
        trials=len(view.trials),
        tracking_uri=without_passwords(uri),
        why_not=None if logged else said[0],
    )


def _standing(folder: Path, view: FrontView) -> Standing:
    if searched_by(folder):
        return "RUNNING"
    study = view.study
    asked = study.options.get("trials") or parse_space(study.space_text, study.space_name).budget.trials
    total = asked if isinstance(asked, int) else DEFAULT_TRIALS
    return "FINISHED" if len(view.trials) >= total else "KILLED"


def sync_lines(synced: tuple[Synced, ...]) -> list[str]:
    """What came of it, as a person reads it."""
    return [
        f"{one.study}: MLflow at {one.tracking_uri} has all of it, {one.trials} "
        f"trial{'' if one.trials == 1 else 's'}"
        if one.why_not is None
        else f"{one.study}: {one.why_not}"
        for one in synced
    ]


def sync_json(synced: tuple[Synced, ...]) -> list[Json]:
    return [
        {
            "study": one.study,
            "trials": one.trials,
            "logged": one.why_not is None,
            "tracking_uri": one.tracking_uri,
            "why_not": one.why_not,
        }
        for one in synced
    ]
