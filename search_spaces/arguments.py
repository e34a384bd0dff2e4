"""A config as the engine takes it: model, arguments by vLLM's own names, environment, GPUs; and as flags."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.settings import Settings, gpus_needed, merged, nested
from search_spaces.space import Config, Space
from search_spaces.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Everything a node needs to know of a config to serve it."""

    model: str
    arguments: dict[str, Json]
    """By vLLM's own names, with underscores; nested ones as dictionaries; nothing that is left to vLLM."""
    environment: dict[str, str]
    gpus: int
    """What the parallel sizes multiply to; 0 in a space served by CPU."""


def render(space: Space, config: Config) -> Rendered:
    """The config as the engine takes it."""
    return _rendered(space, space.settings(config))


def render_control(space: Space) -> Rendered:
    """The control: what all configs share, and the engine's defaults for everything else."""
    return _rendered(space, space.common)


def to_flags(arguments: Mapping[str, Json]) -> tuple[str, ...]:
    """Command line flags: `--max-num-seqs 64`, `--no-enable-prefix-caching`, dictionaries as JSON.

    None is left out. A list of scalars follows its flag value by value, as vLLM's parser wants it; any
    other list is JSON.
    """
    flags: list[str] = []
    for name, value in arguments.items():
        dashed = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{dashed}" if value else f"--no-{dashed}")
        elif isinstance(value, list) and value and not any(isinstance(item, list | dict) for item in value):
            flags += [f"--{dashed}", *map(_text, value)]
        elif isinstance(value, str) and value.startswith("-"):
            flags.append(f"--{dashed}={value}")  # else it would be read as a flag
        else:
            flags += [f"--{dashed}", _text(value)]
    return tuple(flags)


def from_path(arguments: Mapping[str, Json], path: str, value: Json) -> dict[str, Json]:
    """The arguments with one more, at a dotted path; a dictionary merges, null takes away."""
    return merged(arguments, nested(path, value))


def _rendered(space: Space, settings: Settings) -> Rendered:
    return Rendered(
        model=settings.model,
        arguments=dict(settings.arguments),
        environment=dict(settings.environment),
        gpus=0 if space.resources.gpus == 0 else gpus_needed(settings),
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
