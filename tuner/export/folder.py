"""What every export folder holds beside its launch files: what is promised, and where that comes from.

Deterministic: the same trial gives the same bytes.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from objectives.goal import Goal
from objectives.measurement import Estimate
from objectives.metrics import METRICS, published
from objectives.slo import Slo
from search_spaces.values import Json
from tuner.export.digest import PROVENANCE, sealed
from tuner.export.launch import launch_of
from tuner.export.refusals import ExportError
from tuner.export.subject import Subject
from tuner.remeasure import times_text
from tuner.verify.promised import promised_json
from tuner.verify.stored import verification_json

README = "README.md"

_BESIDE = (
    "goodput_rps",
    "goodput_tokens_per_s",
    "slo_attainment",
    "ttft_p95_ms",
    "tpot_p95_ms",
    "e2e_p95_ms",
)
"""Shown after the objectives."""


def folder_files(subject: Subject, target: str, files: Mapping[str, str], start: str) -> dict[str, str]:
    """All files of an export: these, the README and the provenance.

    Args:
        start: how it is started, as Markdown.
    """
    whole = {**files, README: _readme(subject, target, files, start)}
    said = sealed(_provenance(subject, target), whole)
    return {**whole, PROVENANCE: json.dumps(said, indent=2, sort_keys=True, allow_nan=False) + "\n"}


def write_folder(out: Path, files: Mapping[str, str]) -> None:
    """Write all files or none. Raises ExportError where `out` holds something that is no export, or is the
    folder that the user stands in, which would be replaced under their feet."""
    if Path.cwd().is_relative_to(out.absolute()):
        raise ExportError(f"{out} is no folder of its own; choose another --out")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / PROVENANCE).is_file())):
        raise ExportError(f"{out} exists and is no export of this tool; choose another --out")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, text in files.items():
        (part / name).write_text(text, encoding="utf-8")
    if out.exists():
        # What the user put beside an export in hidden files is not ours to lose.
        for mine in out.glob(".*"):
            shutil.move(mine, part / mine.name)
        shutil.rmtree(out)
    os.rename(part, out)


def comment(subject: Subject) -> list[str]:
    """What every launch file says of itself, line by line: whose config it is, and what was let pass."""
    return [
        f"{subject.trial.model}, as trial {subject.trial.number} of study {subject.study.name}; "
        f"{PROVENANCE} has everything",
        *(mark.sentence for mark in subject.marks),
    ]


def secrets_text(subject: Subject, how: str) -> str:
    """What has to be set before the start, as a paragraph that ends in `how`; empty without secrets."""
    secrets = launch_of(subject).secrets
    if not secrets:
        return ""
    named = ", ".join(
        f"`{secret.variable}`" + ("" if secret.was == secret.variable else f" (was `{secret.was}`)")
        for secret in secrets
    )
    return (
        f"\nSecrets are not stored. These were set when this was measured, and are yours to set: {named}. "
        f"{how}\n"
    )


def _provenance(subject: Subject, target: str) -> dict[str, Json]:
    """Where the config came from and what it did there."""
    study, trial, launch = subject.study, subject.trial, launch_of(subject)
    assert trial.measurement is not None
    revision = trial.arguments.get("revision")
    return {
        "study": study.name,
        "study_id": study.id,
        "trial": trial.number,
        "target": target,
        "simulated": trial.ran.engine == "simulated",
        "marks": [mark.value for mark in subject.marks],
        "config": None if trial.config is None else dict(trial.config),
        "model": trial.model,
        "revision": revision if isinstance(revision, str) else None,
        "trust_remote_code": trial.trust_remote_code,
        "arguments": dict(trial.arguments),
        "environment": dict(trial.environment),
        "effective": dict(trial.ran.effective),
        "launch": {
            "model": launch.model,
            "arguments": dict(launch.arguments),
            "environment": dict(launch.environment),
            "secrets": [secret.variable for secret in launch.secrets],
        },
        "gpus": trial.gpus,
        "engine": trial.ran.engine,
        "engine_version": trial.ran.version,
        "hardware": trial.ran.hardware,
        "trace": study.trace,
        "trace_digest": study.trace_digest,
        "objectives": list(study.objectives),
        "slo": asdict(study.slo),
        "promised": promised_json(subject.promised),
        "measured": {
            name: {"value": _finite(one.value), "low": _finite(one.low), "high": _finite(one.high)}
            for name, one in sorted(published(trial.measurement).items())
        },
        "measured_again": subject.again,
        "measured_at": trial.finished.isoformat(),
        "tuner_version": trial.tuner_version,
        "quality": None if subject.quality is None else _plain(asdict(subject.quality)),
        "verification": None if subject.verification is None else verification_json(subject.verification),
    }


def _readme(subject: Subject, target: str, files: Mapping[str, str], start: str) -> str:
    study, trial = subject.study, subject.trial
    marks = "".join(f"\n**{mark.sentence}**\n" for mark in subject.marks)
    kept = (
        ", ".join(f"{name} = {value}" for name, value in (trial.config or {}).items())
        or "the engine's defaults"
    )
    listed = ", ".join(f"`{name}`" for name in files)
    return f"""# {trial.model}, as trial {trial.number} of study {study.name}
{marks}
Config: {kept}.

## Start

{start.strip()}

## What it promises

{_promises(subject)}

{_slo(study.slo)} {_held(subject.again)}

Measured with {trial.ran.engine} {trial.ran.version or ""} on {trial.ran.hardware or "unknown hardware"}, \
traffic {study.trace_digest[:12]} ({study.trace}). On other hardware or traffic nothing of this is known.

## Verification

{_verification(subject)}

## Quality

{_quality(subject)}

## Files

{listed}: exported for `{target}`. `{PROVENANCE}` has everything that was in effect when this was measured, \
and the digest of each file: change one by hand, and `tuner verify` says so.
"""


def _promises(subject: Subject) -> str:
    """The objectives and what explains them, as a Markdown table with intervals."""
    assert subject.trial.measurement is not None
    shown = published(subject.trial.measurement)
    aims = [METRICS[one.metric].shown for one in Goal.of(subject.study.objectives).objectives]
    rows = ["| metric | value | 95 % interval |", "| --- | --- | --- |"]
    for name in dict.fromkeys((*aims, *_BESIDE)):
        if name in shown:
            one = shown[name]
            ends = "not known" if one.low is None and one.high is None else _interval(one)
            rows.append(f"| {name} ({_unit(name)}) | {_number(one.value)} | {ends} |")
    return "\n".join(rows)


def _slo(slo: Slo) -> str:
    limits = [
        f"{name} {limit * 1000:g} ms"
        for name, limit in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
        if limit is not None
    ]
    if not limits:
        return "SLO: none, every answered request meets it."
    return f"SLO: {100 * slo.attainment:.4g}% of the requests within {' and '.join(limits)}."


def _held(again: int) -> str:
    """Whether the numbers are those that it was chosen by."""
    if not again:
        return "These numbers are the search's own: the best of several noisy measurements is a little lucky."
    return f"Measured again {times_text(again)} after it was chosen; these are the fresh numbers."


def _verification(subject: Subject) -> str:
    found = subject.verification
    if found is None:
        return (
            f"None. `tuner verify {subject.study.name} --trial {subject.trial.number}` measures it on "
            "traffic that the search did not see."
        )
    rows = ["| promise | promised | verified | 95 % interval | held |", "| --- | --- | --- | --- | --- |"]
    for kept in found.promises:
        promised = "?" if kept.promised is None else _number(kept.promised.value)
        verified = "?" if kept.verified is None else _number(kept.verified.value)
        ends = "?" if kept.verified is None else _interval(kept.verified)
        told = "yes" if kept.held else "**no**"
        rows.append(f"| {kept.name} ({kept.unit}) | {promised} | {verified} | {ends} | {told} |")
    verdict = "Held" if found.held else "**Not held**"
    table = "\n".join(rows) + "\n\n" if found.promises else ""
    return (
        f"{verdict}: {found.why}\n\n{table}Played {found.traffic.words}; {found.pairs} runs, on "
        f"{found.hardware or 'unknown hardware'} with {found.engine} {found.version or ''}, "
        f"{found.finished:%Y-%m-%d}."
    )


def _quality(subject: Subject) -> str:
    found = subject.quality
    if found is None:
        return "Not checked: nobody has compared its answers with the reference's, and that is no pass."
    if found.is_reference:
        return "This is the reference: its own answers are what others are compared with."
    rows = [
        "| measure | value | 95 % interval |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {_number(one.value)} | {_interval(one)} |"
            for name, one in (
                ("increase in NLL (nats a token)", found.nll_increase),
                ("KL divergence (nats a token)", found.kl),
                ("greedy agreement (share)", found.agreement),
            )
        ),
    ]
    said = [*found.reasons, *found.doubts, *([] if found.defect is None else [found.defect])]
    verdict = "Passed" if found.passed else "**Failed**"
    remarks = "" if not said else "\n\n" + "\n".join(f"- {one}" for one in said)
    return f"{verdict}, beside the reference on held-out prompts:\n\n" + "\n".join(rows) + remarks


def _unit(name: str) -> str:
    return next(metric.shown_unit for metric in METRICS.values() if metric.shown == name)


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "never"


def _interval(one: Estimate) -> str:
    low, high = ("?" if end is None else _number(end) for end in (one.low, one.high))
    return f"{low} to {high}"


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _plain(value: object) -> Json:
    match value:
        case float():
            return _finite(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case bool() | int() | str() | None:
            return value
        case _:
            raise TypeError(f"no JSON: {value!r}")


def fenced(lines: Sequence[str]) -> str:
    """Shell lines as a Markdown code block."""
    return "\n".join(["```sh", *lines, "```"])
