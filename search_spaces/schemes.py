"""Quantisation schemes as the first-order model sees them: bytes a weight, and how its GEMMs multiply.

Which of vLLM's `quantization` values means which scheme, and which scheme a checkpoint carries.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the weights of the linear layers are held. Embeddings and the output head keep the model's type."""

    name: str
    bytes_per_weight: float | None
    """Scales included; None: the model's own type."""
    multiplies: str = "bf16"
    """Key into `Accelerator.flops`; a device without it falls back to bf16 with `FALLBACK_SHARE`."""
    compute_share: float = 1.0
    """Share of the sustained compute left after dequantising inside the GEMM."""

    @property
    def word(self) -> str:
        """The name that people read, and the key into `step_model.Constants.compute`: weights that are not
        quantised multiply as the model's own type."""
        return "unquantised" if self.name == UNQUANTISED.name else self.name


FALLBACK_SHARE = 0.85
"""Weight-only kernels (Marlin) on a device that cannot multiply the type: fp8 on an A100."""

_GROUP_OF_128 = (2 + 0.5) / 128  # a 16-bit scale and a 4-bit zero for 128 weights

UNQUANTISED = Scheme(name="none", bytes_per_weight=None)
FP8 = Scheme(name="fp8", bytes_per_weight=1.0, multiplies="fp8")
MXFP8 = Scheme(name="mxfp8", bytes_per_weight=1.0 + 1 / 32, multiplies="fp8")
W8A8 = Scheme(name="w8a8", bytes_per_weight=1.0, multiplies="int8")
W8A16 = Scheme(name="w8a16", bytes_per_weight=1.0, compute_share=0.9)
W4A16 = Scheme(name="w4a16", bytes_per_weight=0.5 + _GROUP_OF_128, compute_share=0.85)

_ONLINE = {
    "fp8": FP8,
    "fp8_per_tensor": FP8,
    "fp8_per_channel": FP8,
    "fp8_per_block": FP8,
    "mxfp8": MXFP8,
    "int8_per_channel_weight_only": W8A16,
}
"""Schemes that vLLM applies to an unquantised checkpoint as it loads."""

EXPERTS_ONLY = frozenset({"int8_per_channel_weight_only"})
"""Of these, schemes that leave a model without routed experts as it is (vLLM 0.32,
model_executor/layers/quantization/online/base.py: no linear method is registered for them)."""

_OF_A_CHECKPOINT = frozenset(
    {"awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq", "compressed-tensors"}
)
"""Schemes that only a checkpoint quantised that way can be served with."""

QUANTIZATIONS = (*_ONLINE, *sorted(_OF_A_CHECKPOINT))

_BY_NAME = (
    (("w4a16", "awq", "gptq-int4", "gptq", "int4"), W4A16),
    (("w8a16",), W8A16),
    (("w8a8", "int8"), W8A8),
    (("fp8",), FP8),
)


class SchemeMismatch(ValueError):
    """`quantization` asks for a scheme that the checkpoint does not carry."""


def checkpoint_scheme(config: Mapping[str, Json]) -> Scheme:
    """The scheme a checkpoint's `config.json` says its weights are held in.

    Raises:
        ValueError: it is quantised in a way there are no figures for.
    """
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, dict):
        return UNQUANTISED
    method = quantisation.get("quant_method")
    if method == "fp8":
        return FP8
    if method in ("awq", "gptq"):
        bits = quantisation.get("bits", quantisation.get("w_bit", 4))
        return W8A16 if bits == 8 else W4A16
    if method == "compressed-tensors":
        return _compressed(quantisation)
    raise ValueError(f"no figures for checkpoints quantised with '{method}'")


def scheme_of_name(model: str) -> Scheme:
    """A guess from a checkpoint's name, for hub ids whose `config.json` is not here: `…-W4A16`, `…-FP8`."""
    folded = model.lower()
    for marks, scheme in _BY_NAME:
        if any(mark in folded for mark in marks):
            return scheme
    return UNQUANTISED


def served_scheme(quantization: str | None, checkpoint: Scheme) -> Scheme:
    """The scheme in effect when a checkpoint is served with vLLM's `quantization` argument.

    Raises:
        SchemeMismatch: the argument and the checkpoint contradict each other.
        KeyError: there are no figures for the argument's value.
    """
    if quantization is None:
        return checkpoint
    if quantization in _ONLINE:
        asked = _ONLINE[quantization]
        if checkpoint is not UNQUANTISED and checkpoint is not asked:
            raise SchemeMismatch(
                f"quantization='{quantization}' on a checkpoint that is already {checkpoint.name}"
            )
        return asked
    if quantization in _OF_A_CHECKPOINT:
        if checkpoint is UNQUANTISED:
            raise SchemeMismatch(f"quantization='{quantization}' on a checkpoint that is not quantised")
        return checkpoint
    raise KeyError(quantization)


def _compressed(quantisation: Mapping[str, Json]) -> Scheme:
    """Read the first group: that is how nearly all linear layers of such checkpoints are held."""
    groups = quantisation.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise ValueError("compressed-tensors checkpoint without config_groups.*.weights")
    bits, kind, activations = weights.get("num_bits"), weights.get("type"), group.get("input_activations")
    if kind == "float" and bits == 8:
        return FP8
    if bits == 4:
        return W4A16
    if bits == 8:
        return W8A16 if activations is None else W8A8
    raise ValueError(f"no figures for compressed-tensors weights of {bits} bits, type '{kind}'")
