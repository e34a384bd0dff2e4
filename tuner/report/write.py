"""What a user can ask of a report. What they got wrong leaves here as a `Mistake`; nothing here prints."""

import os
from pathlib import Path

from objectives.goal import GoalError
from search_spaces.faults import SpaceError
from search_spaces.values import Json
from tuner.ablation.report import report_json
from tuner.mistakes import Mistake
from tuner.report.gather import read_report
from tuner.report.page import report_html
from tuner.report.shapes import Report
from tuner.studies import study_folder


def report(study: str | None, runs: Path, out: Path | None) -> Report:
    """A study's report, the latest study's where none is named; its page is written to `out`, if given.

    Raises:
        Mistake: there is no such study, it cannot be read, or the page cannot be written.
    """
    try:
        found = read_report(study_folder(study, runs))
    except (GoalError, SpaceError) as error:
        raise Mistake(str(error)) from error
    if out is not None:
        _write(out, report_html(found))
    return found


def as_json(found: Report) -> dict[str, Json]:
    """What `tuner report --json` prints: what is not finite is null."""
    return report_json(found)


def _write(out: Path, page: str) -> None:
    """Whole or not at all: a page that is looked at while it is written again stays whole."""
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, out)
    except OSError as error:
        raise Mistake(f"{out} cannot be written: {error.strerror or error}") from error
