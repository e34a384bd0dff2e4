"""An int8 checkpoint of a small model, by rounding: weights per output channel, activations per token.

The shape is compressed-tensors' "int-quantized" (W8A8), which vLLM serves on CPUs and GPUs. Rounding to
nearest, with no calibration data: fit for a small model to try quantisation with, and for nothing better.
vLLM's own online int8 (`int8_per_channel_weight_only`) quantises experts of MoE models only
(vllm/config/quantization.py), so on a dense model it changes nothing.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_WEIGHTS = "model.safetensors"
_LARGEST = 127
"""Of a symmetric int8."""

_SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def write_int8_checkpoint(source: Path, target: Path) -> None:
    """Quantise the one-file checkpoint in `source` into the empty folder `target`, tokenizer and all."""
    from safetensors.torch import load_file, save_file

    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / _WEIGHTS).items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[f"{name}_scale"] = rounded(tensor)
        else:
            tensors[name] = tensor
    for file in source.iterdir():
        if file.name != _WEIGHTS:
            shutil.copy(file, target)
    save_file(tensors, target / _WEIGHTS, metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": _SCHEME}, indent=2))


def rounded(weight: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """The weight as int8 and its scales.

    Args:
        weight: (out, in), any float type.

    Returns:
        (out, in) int8 and (out, 1) float32: weight ≈ int8 × scale, off by at most half a scale.
    """
    import torch

    exact = weight.float()
    # A channel of zeros has any scale; 1 keeps the division defined.
    scale = exact.abs().amax(dim=1, keepdim=True).div(_LARGEST)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return exact.div(scale).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale
