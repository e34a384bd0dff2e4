"""A trial told in Markdown: its capacity, the load its other numbers are of, and what to beware of.

MLflow shows it under the run's name.
"""

from objectives.measurement import Mode
from tuner.bracket import capacity_text, replays, resolution_text
from tuner.front import held
from tuner.loads import load_text
from tuner.quality import Checks
from tuner.quality_words import quality_text
from tuner.records import StoredTrial, StudyFile


def trial_note(trial: StoredTrial, study: StudyFile, checks: Checks | None = None) -> str:
    """The note on a trial's run.

    Args:
        checks: what is known of quality; None where it is not asked for.
    """
    simulated = (trial.ran.engine or study.engine) == "simulated"
    parts = [
        *(["**SIMULATED, not measured.**"] if simulated else []),
        *([f"**{trial.cause or 'no score'}:** {_plain(trial.reason)}"] if trial.reason else []),
        *_again(trial),
        *_capacity(trial),
        *_load(trial, study),
        *_quality(trial, study, checks),
        *_listed("Client and engine disagree", trial.measurement.disagreements if trial.measurement else ()),
        *_listed("Beware", trial.measurement.warnings if trial.measurement else ()),
    ]
    return "\n\n".join(parts)


def _again(trial: StoredTrial) -> list[str]:
    if trial.repeats is None:
        return []
    return [f"**Measured again:** the config of trial {trial.repeats}, which its fresh measurements judge."]


def _capacity(trial: StoredTrial) -> list[str]:
    text = capacity_text(trial.measurement)
    if text is None:
        return []
    resolution = resolution_text([trial.measurement])
    known = "" if resolution is None else f", known to {resolution}"
    return [f"**Capacity:** {text}{known}; {replays([trial.measurement]).text}."]


def _load(trial: StoredTrial, study: StudyFile) -> list[str]:
    """What the metrics are of, and whether the SLO held there."""
    if trial.measurement is None:
        return []
    load = load_text(study) or "not known"
    verdict = {True: "the SLO held", False: "the SLO did not hold", None: "nobody was served"}
    others = "; all metrics but the capacity are of it" if trial.measurement.mode is Mode.CAPACITY else ""
    return [f"**Load:** {load}{others}. At this load {verdict[held(study, trial)]}."]


def _quality(trial: StoredTrial, study: StudyFile, checks: Checks | None) -> list[str]:
    text = None if checks is None else quality_text(study, trial, checks)
    return [] if text is None else [f"**Quality:** {_plain(text.removeprefix('quality').lstrip(': '))}."]


def _listed(head: str, sentences: tuple[str, ...]) -> list[str]:
    if not sentences:
        return []
    return ["\n".join([f"**{head}:**", "", *(f"- {_plain(sentence)}" for sentence in sentences)])]


def _plain(text: str) -> str:
    """One line that cannot start a tag."""
    return " ".join(text.split()).replace("<", "&lt;")
