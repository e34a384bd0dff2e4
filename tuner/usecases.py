"""What a user can ask for. Front ends turn words or HTTP into one of these calls and print what comes back.

Whatever a user got wrong leaves here as a `Mistake`; nothing here prints.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.dispatch.dispatch import DispatchError
from cluster.node.small_model import ModelUnavailable, prepare_small_model
from cluster.traffic.tokenizer import TokenizerError
from cluster.traffic.trace import TraceError
from objectives.goal import GoalError
from search_spaces import describe, load
from search_spaces.faults import SpaceError
from search_spaces.space import Space
from search_spaces.values import Json
from tuner.export.folder import ExportError, check_exportable, write_folder
from tuner.export.vllm import vllm_files
from tuner.front import FrontView
from tuner.mistakes import Mistake
from tuner.records import STUDY as STUDY_FILE
from tuner.records import RecordError, StoredTrial, StudyFile, read_study, read_trials
from tuner.ui import serve_ui


@contextmanager
def users_mistakes() -> Iterator[None]:
    """What the houses below raise for bad input, as a Mistake."""
    try:
        yield
    except (
        DispatchError,
        ExportError,
        GoalError,
        ModelUnavailable,
        RecordError,
        SpaceError,
        TokenizerError,
        TraceError,
    ) as error:
        raise Mistake(str(error)) from error


def load_space(reference: str) -> Space:
    """A space by file or shipped name."""
    with users_mistakes():
        return load.load_space(reference)


def space_json(space: Space) -> dict[str, Json]:
    """The space as data."""
    return describe.to_json(space)


def space_lines(space: Space) -> list[str]:
    """The space as a person reads it."""
    return list(describe.lines(space))


def front(study: str | None, runs: Path) -> FrontView:
    """A study's front; the latest study's where none is named."""
    folder = study_folder(study, runs)
    with users_mistakes():
        return FrontView.read(folder)


def study_folder(study: str | None, runs: Path) -> Path:
    """Where a study lies. Raises Mistake, with the studies there are, where there is none of that name."""
    there = sorted(path.parent.name for path in runs.glob(f"*/{STUDY_FILE}"))
    if study is None:
        if not there:
            raise Mistake(f"no study under {runs}; tuner search --space … makes one")
        with users_mistakes():
            return max((runs / name for name in there), key=lambda folder: read_study(folder).created)
    if study not in there:
        known = f"there are {', '.join(there)}" if there else "there is none yet"
        raise Mistake(f"no study {study!r} under {runs}; {known}")
    return runs / study


def trial_of(folder: Path, number: int) -> tuple[StudyFile, StoredTrial]:
    """One finished trial. Raises Mistake where it has not finished or never was."""
    with users_mistakes():
        study, trials = read_study(folder), read_trials(folder)
    for trial in trials:
        if trial.number == number:
            return study, trial
    finished = ", ".join(str(trial.number) for trial in trials) or "none"
    raise Mistake(f"study {study.name} has no finished trial {number}; finished are {finished}")


def export(
    study: str, number: int, target: str, out: Path, *, runs: Path, allow_simulated: bool = False
) -> None:
    """Write one trial as files that start in production.

    Args:
        target: "vllm", the only one so far.
    """
    said, trial = trial_of(study_folder(study, runs), number)
    files = {"vllm": vllm_files}
    with users_mistakes():
        check_exportable(trial, allow_simulated=allow_simulated)
        try:
            write_folder(out, files[target](said, trial))
        except OSError as error:
            raise Mistake(f"cannot write {out}: {error.strerror or error}") from error


def prepare(runs: Path, say: Callable[[str], None]) -> None:
    """Make the small model and its draft under the runs folder."""
    with users_mistakes():
        prepare_small_model(runs / "models", say)


def ui(runs: Path, tracking_uri: str | None, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve MLflow's pages on the studies until interrupted."""
    serve_ui(tracking_uri or default_tracking_uri(runs), host=host, port=port, say=say)


def default_tracking_uri(runs: Path) -> str:
    """SQLite under the runs folder."""
    return f"sqlite:///{runs / 'mlflow.db'}"
