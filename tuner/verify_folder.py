"""An exported folder as something to verify: what it starts, what it promises, whether it is as exported.

Nothing but the folder is read: neither the study nor its traces need be there.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from search_spaces.arguments import Rendered
from search_spaces.secrets import HIDDEN
from search_spaces.settings import Settings, gpus_needed
from search_spaces.values import Json
from tuner.export.digest import DIGEST, PROVENANCE, disagreements, read_provenance
from tuner.mistakes import Mistake
from tuner.verify.promised import Launch, Promised, promised_from
from tuner.verify.verification import Quality

_CONFIG, _ENVIRONMENT = "config.yaml", "vllm.env"
"""Of the `vllm` target, which is read as vLLM and a shell read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One folder."""

    promised: Promised
    config: Rendered
    """What its files start."""
    control: Rendered | None
    quality: Quality
    digest: str


def read_exported(folder: Path) -> Exported:
    """What the folder starts and promises.

    Raises Mistake where it is no export, is not as it was exported, or needs secrets that are not set.
    """
    if told := disagreements(folder):
        raise Mistake(
            f"{folder} and its {PROVENANCE} disagree: {'; '.join(told)}. What is promised there is not "
            "promised of this; export the config that you want"
        )
    said = read_provenance(folder)
    promised = promised_from(said.get("promised"), str(folder / PROVENANCE))
    launch, needed = _launch(said.get("launch"), folder)
    if said.get("target") == "vllm":
        launch = Launch(
            model=launch.model,
            arguments=_arguments(folder / _CONFIG),
            environment=_environment(folder / _ENVIRONMENT),
        )
    missing = [name for name in needed if name not in os.environ]
    if missing and promised.engine != "simulated":
        raise Mistake(f"{folder} needs {', '.join(missing)} in the environment: secrets are not exported")
    control = promised.control_launch
    return Exported(
        promised=promised,
        config=_rendered(promised, launch),
        control=None if control is None else _rendered(promised, control),
        quality=_quality(said.get("quality"), simulated=promised.engine == "simulated"),
        digest=str(said.get(DIGEST)),
    )


def _launch(raw: Json, folder: Path) -> tuple[Launch, tuple[str, ...]]:
    """What starts, by the provenance, and the variables that hold its secrets."""
    match raw:
        case {
            "model": str(model),
            "arguments": dict(arguments),
            "environment": dict(environment),
            "secrets": list(secrets),
        }:
            return Launch(
                model=model,
                arguments=arguments,
                environment={name: str(value) for name, value in environment.items()},
            ), tuple(map(str, secrets))
        case _:
            raise Mistake(f"{folder / PROVENANCE} does not say what it starts; export it again")


def _arguments(path: Path) -> dict[str, Json]:
    """What `vllm serve --config` reads there, by vLLM's own names."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise Mistake(f"{path}: cannot be read ({type(error).__name__})") from error
    if not isinstance(raw, dict):
        raise Mistake(f"{path}: expected arguments by name, got {type(raw).__name__}")
    found: dict[str, Json] = {}
    for name, value in raw.items():
        underscored = str(name).replace("-", "_")
        if underscored.startswith("no_") and value is True:
            found[underscored.removeprefix("no_")] = False
        else:
            found[underscored] = value
    return found


def _environment(path: Path) -> dict[str, str]:
    """What a shell that sources the file sets."""
    try:
        words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    except (OSError, ValueError) as error:
        raise Mistake(f"{path}: cannot be read ({error})") from error
    return dict(word.split("=", 1) for word in words if "=" in word)


def _rendered(promised: Promised, launch: Launch) -> Rendered:
    """As a node is told to serve it. Secrets are left to the node's environment."""
    arguments = {
        name: value
        for name, value in launch.arguments.items()
        if name not in ("model", "trust_remote_code") and not _hides(value)
    }
    named = launch.arguments.get("model")
    model = named if isinstance(named, str) else launch.model
    environment = {name: value for name, value in launch.environment.items() if HIDDEN not in value}
    settings = Settings(model=model, arguments=arguments, environment=environment)
    return Rendered(
        model=model,
        arguments=arguments,
        environment=environment,
        gpus=0 if promised.resources.gpus == 0 else gpus_needed(settings),
    )


def _hides(value: Json) -> bool:
    match value:
        case str():
            return HIDDEN in value
        case list():
            return any(map(_hides, value))
        case dict():
            return any(map(_hides, value.values()))
        case _:
            return False


def _quality(raw: Json | Mapping[str, Json], *, simulated: bool) -> Quality:
    match raw:
        case {"passed": True}:
            return Quality(passed=True, words="passed when it was exported")
        case {"passed": False, "reasons": list(reasons)}:
            return Quality(passed=False, words=f"failed when it was exported: {'; '.join(map(str, reasons))}")
        case _:
            simply = "; nothing answers in a simulation" if simulated else ""
            return Quality(passed=None, words=f"not checked when it was exported{simply}")
