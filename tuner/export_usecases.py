"""What a user can ask for of exports. Nothing here prints; what the user got wrong is a `Mistake`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from search_spaces.load import parse_space
from tuner.export.folder import write_folder
from tuner.export.refusals import Mark, check_marks, check_measured, marks_of
from tuner.export.subject import Subject
from tuner.export.targets import TARGETS
from tuner.front import read_view
from tuner.mistakes import Mistake
from tuner.quality import read_verdict
from tuner.registry import Registered, check_alias, register
from tuner.studies import study_folder, trial_of
from tuner.usecases import tracking_uri_of, users_mistakes
from tuner.verify.promised import promised_of
from tuner.verify.stored import latest_verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export that was written."""

    folder: Path
    study: str
    trial: int
    """Number of the config's first trial."""
    target: str
    files: tuple[str, ...]
    marks: tuple[Mark, ...]
    line: str | None
    """The shell line that starts it; None where it takes several, which its README has."""
    registered: Registered | None
    """Where it is in MLflow's registry; None where that was not asked."""


def export(
    study: str,
    number: int,
    target: str,
    out: Path,
    *,
    runs: Path,
    allowed: Collection[Mark] = (),
    alias: str | None = None,
    tracking_uri: str | None = None,
) -> Exported:
    """Write one trial as files that start in production.

    What is promised there is what the trial's config is judged by, fresh measurements where there are any.

    Args:
        target: one of `tuner.export.targets.TARGETS`.
        allowed: what is let pass, and marked.
        alias: under which it is registered in MLflow; None: it is not.
        tracking_uri: MLflow's; None: where the study was logged.
    """
    with users_mistakes():
        if alias is not None:
            check_alias(alias)
        subject = read_subject(study_folder(study, runs), number, allowed)
        chosen = TARGETS[target]
        files = chosen.files(subject)
        try:
            write_folder(out, files)
        except OSError as error:
            raise Mistake(f"cannot write {out}: {error.strerror or error}") from error
        registered = None
        if alias is not None:
            uri = tracking_uri or tracking_uri_of(subject.study, runs)
            registered = register(out, subject.study, tracking_uri=uri, alias=alias)
    return Exported(
        folder=out,
        study=subject.study.name,
        trial=subject.trial.number,
        target=target,
        files=tuple(sorted(files)),
        marks=subject.marks,
        line=None if chosen.line is None else chosen.line(subject, out),
        registered=registered,
    )


def read_subject(folder: Path, number: int, allowed: Collection[Mark]) -> Subject:
    """What there is to export of a trial. Raises ExportError where it is refused."""
    said, trial = trial_of(folder, number)
    seen = read_view(folder)
    promise = seen.promise(number if trial.repeats is None else trial.repeats)
    standing = promise.standing
    check_measured(standing)
    quality, verification = (
        read_verdict(folder, standing),
        latest_verification(folder, promise.first.number),
    )
    marks = marks_of(standing, quality, verification)
    check_marks(standing, marks, allowed, quality=quality, verification=verification)
    space = parse_space(said.space_text, str(said.options.get("space", "space.yaml")))
    return Subject(
        study=said,
        trial=standing,
        promised=promised_of(said, space, standing, next(iter(seen.control), None)),
        again=len(promise.fresh),
        quality=quality,
        verification=verification,
        marks=marks,
    )
