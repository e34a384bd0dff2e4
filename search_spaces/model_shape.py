"""The dimensions of a model that decide its bytes and FLOPs, from its own `config.json` or a table.

Decoder-only transformers with multi-head, grouped-query or multi-query attention and gated MLPs, dense
or with routed experts. Latent attention (MLA), recurrent and hybrid models are refused, not guessed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.values import Json

_OTHER_ATTENTION = (
    "kv_lora_rank",
    "ssm_cfg",
    "mamba_d_state",
    "linear_num_key_heads",
    "sliding_window_pattern",
)
"""Keys of `config.json` that only models with latent, recurrent or mixed attention have."""


class UnknownShape(ValueError):
    """The model's dimensions are not known, or are of a kind that is not modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of one model."""

    layers: int
    hidden: int
    intermediate: int
    """Width of one MLP, or of one expert."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the output head shares the embedding's weights."""
    max_position: int
    experts: int = 1
    experts_per_token: int = 1

    @classmethod
    def from_config(cls, config: Mapping[str, Json]) -> "ModelShape":
        """Read a Hugging Face `config.json`.

        Raises:
            UnknownShape: a dimension is missing, or the architecture is not modelled.
        """
        nested = config.get("text_config")
        if isinstance(nested, dict):
            config = {**config, **nested}
        kind = config.get("model_type")
        if any(config.get(key) is not None for key in _OTHER_ATTENTION):
            raise UnknownShape(f"model_type '{kind}': latent or recurrent attention is not modelled")

        def whole(*names: str) -> int:
            for name in names:
                value = config.get(name)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
            raise UnknownShape(f"model_type '{kind}': config.json has no {' or '.join(names)}")

        def whole_or(default: int, *names: str) -> int:
            return whole(*names) if any(config.get(name) is not None for name in names) else default

        hidden, heads = whole("hidden_size"), whole("num_attention_heads")
        experts = whole_or(1, "num_local_experts", "num_experts", "n_routed_experts")
        width = ("moe_intermediate_size", "intermediate_size") if experts > 1 else ("intermediate_size",)
        return cls(
            layers=whole("num_hidden_layers"),
            hidden=hidden,
            intermediate=whole(*width),
            heads=heads,
            kv_heads=whole_or(heads, "num_key_value_heads"),
            head_dim=whole_or(hidden // heads, "head_dim"),
            vocab=whole("vocab_size"),
            tied=config.get("tie_word_embeddings") is True,
            max_position=whole("max_position_embeddings"),
            experts=experts,
            experts_per_token=whole_or(1, "num_experts_per_tok") if experts > 1 else 1,
        )

    @property
    def attention_weights(self) -> int:
        """Weights of the four projections of one layer."""
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Weights of one gated MLP: gate, up and down."""
        return 3 * self.hidden * self.intermediate

    @property
    def router_weights(self) -> int:
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def layer_weights(self) -> int:
        return self.attention_weights + self.experts * self.expert_weights + self.router_weights

    @property
    def head_weights(self) -> int:
        return self.vocab * self.hidden

    @property
    def norm_weights(self) -> int:
        return (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, without biases."""
        heads = self.head_weights * (1 if self.tied else 2)
        return self.layers * self.layer_weights + heads + self.norm_weights


# From each model's own config.json on the hub.
_LLAMA_8B = ModelShape(
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    tied=False,
    max_position=131072,
)
_LLAMA_70B = ModelShape(
    layers=80,
    hidden=8192,
    intermediate=28672,
    heads=64,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    tied=False,
    max_position=131072,
)

SHAPES: Mapping[str, ModelShape] = {
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-70B": _LLAMA_70B,
    "meta-llama/Llama-3.3-70B": _LLAMA_70B,
    "meta-llama/Llama-3.2-1B": ModelShape(
        layers=16,
        hidden=2048,
        intermediate=8192,
        heads=32,
        kv_heads=8,
        head_dim=64,
        vocab=128256,
        tied=True,
        max_position=131072,
    ),
    "meta-llama/Llama-3.2-3B": ModelShape(
        layers=28,
        hidden=3072,
        intermediate=8192,
        heads=24,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        tied=True,
        max_position=131072,
    ),
    "Qwen/Qwen2.5-7B": ModelShape(
        layers=28,
        hidden=3584,
        intermediate=18944,
        heads=28,
        kv_heads=4,
        head_dim=128,
        vocab=152064,
        tied=False,
        max_position=32768,
    ),
    "Qwen/Qwen3-8B": ModelShape(
        layers=36,
        hidden=4096,
        intermediate=12288,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        tied=False,
        max_position=40960,
    ),
    "mistralai/Mistral-7B-v0.3": ModelShape(
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=32768,
        tied=False,
        max_position=32768,
    ),
    "mistralai/Mixtral-8x7B-v0.1": ModelShape(
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=32000,
        tied=False,
        max_position=32768,
        experts=8,
        experts_per_token=2,
    ),
    "HuggingFaceTB/SmolLM2-135M": ModelShape(
        layers=30,
        hidden=576,
        intermediate=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocab=49152,
        tied=True,
        max_position=8192,
    ),
    # SmolLM2-135M with its first 6 layers only, as the CPU space's draft is made.
    "SmolLM2-135M-draft": ModelShape(
        layers=6,
        hidden=576,
        intermediate=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocab=49152,
        tied=True,
        max_position=8192,
    ),
}

_WORDS = re.compile(r"[^a-z0-9.]+")


def known_shape(model: str) -> ModelShape:
    """Dimensions of a model by hub id, from the table.

    Fine-tunes and quantised copies are found by the base model's name inside the id
    (`org/Meta-Llama-3.1-8B-Instruct-W4A16`).

    Raises:
        UnknownShape: no entry's name is in the id.
    """
    words = _words(model)
    names = {known: _words(known.rpartition("/")[2]) for known in SHAPES}
    # Longest first, so that "SmolLM2-135M-draft" is not taken for "SmolLM2-135M".
    for known, name in sorted(names.items(), key=lambda item: -len(item[1])):
        if any(words[at : at + len(name)] == name for at in range(len(words))):
            return SHAPES[known]
    raise UnknownShape(
        f"no dimensions for model '{model}': give a local folder with its config.json, or one of "
        f"{', '.join(SHAPES)}"
    )


def _words(name: str) -> list[str]:
    return [word for word in _WORDS.split(name.lower()) if word]
