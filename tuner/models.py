"""Models by hub id or local path: local ones are found where the user stands and handed on absolute."""

import re
from dataclasses import replace
from pathlib import Path

from search_spaces.arguments import Rendered
from search_spaces.settings import at, merged, nested
from tuner.mistakes import Mistake

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL_ARGUMENTS = ("speculative_config.model", "tokenizer")
"""Engine arguments that name a model."""


def localised(rendered: Rendered) -> Rendered:
    """The config with every local model as an absolute path, so that any process finds it.

    Raises:
        Mistake: a path that is not there.
    """
    arguments = rendered.arguments
    for path in _MODEL_ARGUMENTS:
        named = at(arguments, path)
        if isinstance(named, str):
            arguments = merged(arguments, nested(path, local_model(named)))
    return replace(rendered, model=local_model(rendered.model), arguments=arguments)


def local_model(model: str) -> str:
    """The absolute path of a local model; a hub id as it is. Raises Mistake for a path that is not there."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if folder.is_absolute() or model.startswith(".") or not _HUB_ID.fullmatch(model):
        make = "; tuner prepare makes it" if "SmolLM2-135M" in model else ""
        raise Mistake(f"no model at {model} (from {Path.cwd()}){make}")
    return model
