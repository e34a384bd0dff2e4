"""A trial as files for `vllm serve --config`."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from search_spaces.values import Json
from tuner.export.folder import (
    PROVENANCE,
    hidden_arguments,
    is_hidden,
    launch_arguments,
    promises,
    provenance,
)
from tuner.records import StoredTrial, StudyFile
from tuner.remeasure import times_text

CONFIG = "config.yaml"
ENVIRONMENT = "vllm.env"

_START = f"set -a && . ./{ENVIRONMENT} && set +a && vllm serve --config {CONFIG}"


def start_line(out: Path) -> str:
    """The shell line that starts what was exported to this folder."""
    return f"cd {shlex.quote(str(out))} && {_START}"


def vllm_files(study: StudyFile, trial: StoredTrial, *, again: int = 0) -> dict[str, str]:
    """File name → text.

    Args:
        trial: with the measurement that is promised.
        again: of how many fresh measurements that is; 0: of the one that the config was chosen by.
    """
    return {
        CONFIG: config_yaml(trial.model, launch_arguments(trial)),
        ENVIRONMENT: environment_file(trial.environment, hidden_arguments(trial)),
        "README.md": _readme(study, trial, again),
        PROVENANCE: provenance(study, trial, again=again),
    }


def config_yaml(model: str, arguments: Mapping[str, Json]) -> str:
    """The YAML that `vllm serve --config` takes.

    A switch that is off is written as `no-…: true`: vLLM versions whose reader drops a `false` would
    otherwise start with the default, which may be on.
    """
    lines: dict[str, Json] = {"model": model}
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if value is False:
            lines[f"no-{flag}"] = True
        else:
            lines[flag] = value
    text: str = yaml.safe_dump(lines, sort_keys=False, allow_unicode=True)
    return text


def environment_file(environment: Mapping[str, str], hidden: Sequence[str] = ()) -> str:
    """`NAME=value` lines that a POSIX shell can source; secrets are named, never written.

    Args:
        hidden: engine arguments that are missing in the config because they are secret.
    """
    lines = [
        f"# {_flag(name)} was given when this was measured; give it to vllm serve yourself, it is a secret"
        for name in hidden
    ]
    for name, value in sorted(environment.items()):
        if is_hidden(value):
            lines.append(f"# {name} was set when this was measured; set it yourself, it is a secret")
        else:
            lines.append(f"{name}={shlex.quote(value)}")
    return "".join(f"{line}\n" for line in lines)


def _flag(name: str) -> str:
    """`--hf-token` for hf_token; keys below an argument keep their names, as vLLM takes them."""
    top, dot, below = name.partition(".")
    return f"--{top.replace('_', '-')}{dot}{below}"


def _secrets(trial: StoredTrial) -> str:
    """What has to be added before the start, as a paragraph; nothing where nothing was secret."""
    names = [_flag(name) for name in hidden_arguments(trial)]
    names += [name for name, value in sorted(trial.environment.items()) if is_hidden(value)]
    if not names:
        return ""
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        f"\nSecrets are not stored. These were set when this was measured, and are yours to set: {listed}.\n"
    )


def _held(again: int) -> str:
    """Whether the numbers are those that it was chosen by."""
    if not again:
        return "These numbers are the search's own: the best of several noisy measurements is a little lucky."
    return f"Measured again {times_text(again)} after it was chosen; these are the fresh numbers."


def _readme(study: StudyFile, trial: StoredTrial, again: int) -> str:
    simulated = trial.ran.engine == "simulated"
    mark = "\n**Simulated: these numbers were never measured on an engine.**\n" if simulated else ""
    kept = (
        ", ".join(f"{name} = {value}" for name, value in (trial.config or {}).items())
        or "the engine's defaults"
    )
    return f"""# {trial.model}, as trial {trial.number} of study {study.name}
{mark}
Start it in this folder with

    {_START}
{_secrets(trial)}
Config: {kept}.

Measured with {trial.ran.engine} {trial.ran.version or ""} on {trial.ran.hardware or "unknown hardware"}, \
traffic {study.trace_digest[:12]}:

{promises(study, trial)}

{_held(again)}
`{PROVENANCE}` has everything that was in effect.
"""
