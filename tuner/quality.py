"""What a study knows of its artefacts' quality: verdicts, in the folders of the trials that were asked.

    runs/<study>/trials/0007/quality.json     the verdict on the trial's artefact, or why there is none
                            /answers.json.gz  what was asked and answered

A verdict is of an artefact, not of a trial: every trial of that artefact has it. What was never checked has
none, which is no pass.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cluster.order import Probe
from objectives.answers import Answer, Answers, Scored, Tokens
from objectives.measurement import Estimate
from objectives.quality import QualityVerdict
from search_spaces.values import Json
from tuner.records import TRIALS, RecordError, StoredTrial

QUALITY = "quality.json"
ANSWERS = "answers.json.gz"

_Raw = dict[str, Any]  # what json.loads gives; typed on the way out of this module
_ESTIMATES = ("nll_increase", "kl", "agreement", "alike")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What was found of a study's artefacts, by fingerprint."""

    verdicts: Mapping[str, QualityVerdict] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """Why an artefact that was asked has no verdict."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Of the trial that was asked, where there is a verdict."""

    @property
    def reference(self) -> str | None:
        """The artefact that the others are compared with."""
        return next((name for name, verdict in self.verdicts.items() if verdict.is_reference), None)


def read_verdict(study_folder: Path, trial: StoredTrial) -> QualityVerdict | None:
    """The verdict on a trial's artefact; None where it was not checked, which is no pass.

    Raises RecordError where one cannot be read.
    """
    return read_checks(study_folder).verdicts.get(trial.artefact)


def read_checks(study_folder: Path) -> Checks:
    """All that was checked in a study; of two verdicts on one artefact the earlier trial's.

    Raises RecordError where one cannot be read.
    """
    verdicts: dict[str, QualityVerdict] = {}
    unchecked: dict[str, str] = {}
    folders: dict[str, Path] = {}
    for path in sorted((study_folder / TRIALS).glob(f"[0-9]*/{QUALITY}"), key=lambda p: int(p.parent.name)):
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            name = str(raw["artefact"])
            if "not_checked" in raw:
                unchecked[name] = str(raw["not_checked"])
            elif name not in verdicts:
                verdicts[name], folders[name] = _verdict(raw), path.parent
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    still = {name: why for name, why in unchecked.items() if name not in verdicts}
    return Checks(verdicts=verdicts, unchecked=still, folders=folders)


def verdict_json(verdict: QualityVerdict) -> dict[str, Json]:
    """A verdict as data; it reads back as it was."""
    raw: dict[str, Json] = asdict(verdict)
    return raw | {"reasons": list(verdict.reasons), "doubts": list(verdict.doubts)}


def verdict_file(verdict: QualityVerdict) -> dict[str, bytes]:
    """The file that holds a verdict, by name."""
    return {QUALITY: _to_json(verdict_json(verdict))}


def unchecked_file(artefact: str, why: str) -> dict[str, bytes]:
    """The file that says why there is no verdict, by name."""
    return {QUALITY: _to_json({"artefact": artefact, "not_checked": why})}


def answers_file(probe: Probe, answers: Answers) -> dict[str, bytes]:
    """The file that holds a probe and what was answered, by name."""
    raw = {
        "prompts": probe.prompts,
        "tokens": probe.tokens,
        "answers": [
            {
                "greedy": answer.greedy,
                "own": _scored_json(answer.own),
                "again": answer.again,
                "apart": answer.apart,
                "forced": _scored_json(answer.forced),
            }
            for answer in answers.answers
        ],
    }
    # No time in it, so that equal answers give equal files.
    return {ANSWERS: gzip.compress(json.dumps(raw, separators=(",", ":")).encode(), mtime=0)}


def read_answers(trial_folder: Path) -> tuple[Probe, Answers]:
    """What a trial was asked, and its answers. Raises RecordError where they cannot be read."""
    path = trial_folder / ANSWERS
    try:
        raw = json.loads(gzip.decompress(path.read_bytes()))
        probe = Probe(prompts=tuple(map(tuple, raw["prompts"])), tokens=raw["tokens"])
        answers = tuple(
            Answer(
                greedy=tuple(one["greedy"]),
                own=_scored(one["own"]),
                again=tuple(one["again"]),
                apart=None if one["apart"] is None else tuple(one["apart"]),
                forced=_scored(one["forced"]),
            )
            for one in raw["answers"]
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    return probe, Answers(answers=answers)


def continuations(answers: Answers) -> tuple[Tokens, ...]:
    """What a reference went on with, prompt by prompt."""
    return tuple(answer.greedy for answer in answers.answers)


def _scored_json(scored: tuple[Scored, ...]) -> list[object]:
    return [[one.token, one.logprob, *(x for pair in one.top for x in pair)] for one in scored]


def _scored(raw: list[list[Any]]) -> tuple[Scored, ...]:
    return tuple(
        Scored(token=token, logprob=logprob, top=tuple(zip(rest[::2], rest[1::2], strict=True)))
        for token, logprob, *rest in raw
    )


def _verdict(raw: _Raw) -> QualityVerdict:
    estimates = {name: Estimate(**raw[name]) for name in _ESTIMATES}
    texts = {name: tuple(raw[name]) for name in ("reasons", "doubts")}
    return QualityVerdict(**raw | estimates | texts)


def _to_json(raw: Mapping[str, Json]) -> bytes:
    return (json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
