"""What every export folder holds beside its launch files: what was measured, and where it came from.

Deterministic: the same trial gives the same bytes.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from objectives.metrics import METRICS, published
from search_spaces.secrets import HIDDEN
from search_spaces.values import Json
from tuner.records import State, StoredTrial, StudyFile

PROVENANCE = "provenance.json"

_MADE_EXPLICIT = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "enable_prefix_caching",
    "tensor_parallel_size",
)
"""Settings that decide whether a launch fits in memory: written down as they were in effect even where
the config left them to a default, since another version's default may differ."""


class ExportError(Exception):
    """The trial can't be exported, or not there; the message says why and what to do."""


def check_exportable(trial: StoredTrial, *, allow_simulated: bool) -> None:
    """Raise ExportError for a trial without a real measurement."""
    if trial.state is not State.MEASURED:
        raise ExportError(
            f"trial {trial.number} has no measurement to promise ({trial.state}: {trial.reason})"
        )
    if trial.ran.engine == "simulated" and not allow_simulated:
        raise ExportError(
            f"trial {trial.number} was simulated, not measured; --allow-simulated exports it, marked"
        )


def launch_arguments(trial: StoredTrial) -> dict[str, Json]:
    """The engine arguments to launch with: those asked for, and the memory-deciding ones in effect.

    Without secrets, which are not stored; `hidden_arguments` names them.
    """
    explicit = {
        name: trial.ran.effective[name]
        for name in _MADE_EXPLICIT
        if trial.ran.effective.get(name) is not None
        and not trial.arguments.get(name)
        # Asked for as bytes, the pool's share of memory is not what decides.
        and not (name == "gpu_memory_utilization" and trial.arguments.get("kv_cache_memory_bytes"))
    }
    trust = {"trust_remote_code": True} if trial.trust_remote_code else {}
    asked, _ = _without_hidden(dict(trial.arguments), "")
    assert isinstance(asked, dict)
    return dict(sorted((explicit | trust | asked).items()))


def hidden_arguments(trial: StoredTrial) -> tuple[str, ...]:
    """The engine arguments that were secret when this was measured, dotted: `hf_token`, `a.b`."""
    return tuple(_without_hidden(dict(trial.arguments), "")[1])


def is_hidden(value: Json) -> bool:
    """Whether a secret was blanked in this text, all of it or a URL's password."""
    return isinstance(value, str) and HIDDEN in value


def _without_hidden(value: Json, path: str) -> tuple[Json, list[str]]:
    """The value without what is_hidden, and the dotted paths of that; a list that held any is gone whole."""
    if is_hidden(value):
        return None, [path]
    if isinstance(value, list):
        hidden = any(_without_hidden(item, path)[1] for item in value)
        return (None, [path]) if hidden else (value, [])
    if not isinstance(value, dict):
        return value, []
    kept: dict[str, Json] = {}
    names: list[str] = []
    for key, item in value.items():
        rest, hidden_below = _without_hidden(item, f"{path}.{key}" if path else key)
        names += hidden_below
        if not hidden_below or rest:
            kept[key] = rest
    return kept, names


def write_folder(out: Path, files: Mapping[str, str]) -> None:
    """Write all files or none. Raises ExportError where `out` holds something that is no export."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / PROVENANCE).is_file())):
        raise ExportError(f"{out} exists and is no export of this tool; choose another --out")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, text in files.items():
        (part / name).write_text(text)
    if out.exists():
        shutil.rmtree(out)
    os.rename(part, out)


def provenance(study: StudyFile, trial: StoredTrial, *, again: int = 0) -> str:
    """Where the config came from and what it did there, as JSON; `again`: in how many fresh measurements."""
    assert trial.measurement is not None
    said = {
        "study": study.name,
        "trial": trial.number,
        "simulated": trial.ran.engine == "simulated",
        "config": trial.config,
        "model": trial.model,
        "arguments": dict(trial.arguments),
        "environment": dict(trial.environment),
        "effective": dict(trial.ran.effective),
        "engine": trial.ran.engine,
        "engine_version": trial.ran.version,
        "hardware": trial.ran.hardware,
        "trace_digest": study.trace_digest,
        "measured": {
            name: {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            for name, estimate in sorted(published(trial.measurement).items())
        },
        "measured_again": again,
        "measured_at": trial.finished.isoformat(),
        "tuner_version": trial.tuner_version,
    }
    return json.dumps(said, indent=2, sort_keys=True) + "\n"


def promises(study: StudyFile, trial: StoredTrial) -> str:
    """The measured objectives as Markdown lines, with their intervals."""
    assert trial.measurement is not None
    shown = published(trial.measurement)
    rows = ["| metric | measured | 95 % interval |", "| --- | --- | --- |"]
    wanted = (
        "goodput_rps",
        "goodput_tokens_per_s",
        "slo_attainment",
        "ttft_p95_ms",
        "tpot_p95_ms",
        "e2e_p95_ms",
    )
    for name in wanted:
        if name not in shown:
            continue
        estimate = shown[name]
        unit = next(metric.shown_unit for metric in METRICS.values() if metric.shown == name)
        low, high = (("?" if end is None else f"{end:.4g}") for end in (estimate.low, estimate.high))
        rows.append(f"| {name} ({unit}) | {estimate.value:.4g} | {low} to {high} |")
    return "\n".join(rows)
