"""A config as files for `vllm serve --config`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from search_spaces.values import Json
from tuner.export.folder import comment, fenced, secrets_text
from tuner.export.launch import Launch, launch_of, with_secrets, without_secrets, words, written
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import comment_text, yaml_text

CONFIG = "config.yaml"
ENVIRONMENT = "vllm.env"


def launch_files(subject: Subject) -> dict[str, str]:
    """The config and its environment."""
    launch, about = launch_of(subject), comment(subject)
    return {
        CONFIG: comment_text(about) + config_yaml(launch.model, without_secrets(launch.arguments)),
        ENVIRONMENT: comment_text(about) + environment_file(launch.environment),
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
    return yaml_text(lines)


def environment_file(environment: Mapping[str, str]) -> str:
    """`NAME=value` lines that a POSIX shell can source and systemd reads alike."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))


def command(launch: Launch) -> str:
    """The shell line in the folder. Arguments with secrets are on it, since the config can't refer to any."""
    flags = [
        written(word, _quoted, lambda variable: f'"${{{variable}}}"')
        for word in words(with_secrets(launch.arguments))
    ]
    start = f"set -a && . ./{ENVIRONMENT} && set +a && vllm serve --config {CONFIG}"
    return " ".join([start, *flags])


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""


def _start(subject: Subject) -> str:
    launch = launch_of(subject)
    version = f"vLLM {launch.version}, which was measured," if launch.version else "vLLM"
    secrets = secrets_text(subject, "Export them in the shell that starts it.")
    return f"In this folder, with {version} installed:\n\n{fenced([command(launch)])}\n{secrets}"


def _line(subject: Subject, out: Path) -> str:
    return f"cd {shlex.quote(str(out))} && {command(launch_of(subject))}"


TARGET = Target(name="vllm", launch_files=launch_files, start=_start, line=_line)
