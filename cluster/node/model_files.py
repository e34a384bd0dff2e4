"""Whether a node has a model's files, and how it gets them before a trial needs them.

A local folder is only looked for; a hub id is fetched into the hub's cache, which vLLM reads from. The hub's
own locks see to it that two processes on one node fetch a file once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from search_spaces.settings import at
from search_spaces.values import Json

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
"""Kinds of files that vLLM loads weights from, the first that a model has (its `--load-format auto`)."""

_NEVER_SERVED = ("original/*", "onnx/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.pth")
"""What hub repositories hold beside it, often as large again."""


class ModelState(StrEnum):
    """What a node has of a model."""

    CACHED = "cached"
    """Everything, as far as can be told without the hub."""
    TO_FETCH = "to be fetched"
    MISSING = "missing"
    """A local path that is not there."""


class ModelMissing(Exception):
    """A node cannot get a model; one line.

    Attributes:
        everywhere: whether no other node would do better, for the hub does not have it or does not give it.
    """

    def __init__(self, message: str, *, everywhere: bool) -> None:
        super().__init__(message, everywhere)
        self.everywhere = everywhere

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _missing, (self.args[0], self.everywhere)


def _missing(message: str, everywhere: bool) -> ModelMissing:
    return ModelMissing(message, everywhere=everywhere)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as an engine is told it: a local folder, or a hub id."""

    name: str
    revision: str | None = None

    @property
    def is_path(self) -> bool:
        return self.name.startswith(("/", ".", "~"))

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def models_of(model: str, arguments: Mapping[str, Json]) -> tuple[ModelName, ...]:
    """Everything that an engine with these arguments loads weights or a tokenizer from, each once."""
    revision = arguments.get("revision")
    named = [ModelName(model, revision if isinstance(revision, str) else None)]
    for path in ("tokenizer", "speculative_config.model"):
        value = at(arguments, path)
        # Some ways to speculate have a word there that is no model: "ngram".
        if isinstance(value, str) and "/" in value:
            named.append(ModelName(value))
    return tuple({one.name: one for one in reversed(named)}.values())[::-1]


def state_of(model: ModelName) -> ModelState:
    """What this node has of it. Asks no hub."""
    if model.is_path:
        return ModelState.CACHED if Path(model.name).expanduser().is_dir() else ModelState.MISSING
    return ModelState.CACHED if any(_whole(model, kind) for kind in WEIGHTS) else ModelState.TO_FETCH


def _whole(model: ModelName, kind: str) -> bool:
    """Whether the hub's cache has all of it, with weights of this kind."""
    from huggingface_hub import snapshot_download  # its import takes longer than the rest of this house

    others = [other for other in WEIGHTS if other != kind]
    try:
        folder = snapshot_download(
            model.name,
            revision=model.revision,
            local_files_only=True,
            ignore_patterns=[*_NEVER_SERVED, *others],
        )
    except (OSError, ValueError):
        return False
    # A snapshot exists from its first file on.
    return next(Path(folder).glob(kind), None) is not None


def fetch(models: tuple[ModelName, ...]) -> None:
    """Have these here. Raises ModelMissing where one cannot be had."""
    for model in models:
        if not model.is_path:
            _fetch(model)
        elif not Path(model.name).expanduser().is_dir():
            raise ModelMissing(f"no folder {model.name} here", everywhere=False)


def _fetch(model: ModelName) -> None:
    if state_of(model) is ModelState.CACHED:
        return
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        files = HfApi().list_repo_files(model.name, revision=model.revision)
        snapshot_download(model.name, revision=model.revision, ignore_patterns=_left_out(files))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ModelMissing(f"the hub does not give {model}: {_first_line(error)}", everywhere=True) from error
    except Exception as error:  # a full disk, a hub out of reach: the hub's HTTP client differs by version
        reason = f"{model} is not here and cannot be fetched: {_first_line(error)}"
        raise ModelMissing(reason, everywhere=False) from error


def _left_out(files: list[str]) -> list[str]:
    """Patterns of files that vLLM would not load from this repository: all weights but of the first kind."""
    present = [kind for kind in WEIGHTS if any(name.endswith(kind[1:]) for name in files)]
    return [*_NEVER_SERVED, *present[1:]]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
