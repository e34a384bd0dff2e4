"""What the hardware allows, before anything runs: bytes, FLOPs, step times and memory of a config.

`T = max((W + K + A) / BW, F / C) + overhead` for one forward pass: decode is bandwidth-bound because each
step reads every weight and every cached key and value once, prefill is compute-bound.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009; the counting of transformer
FLOPs follows J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1.
Pure; shared by the simulated engine and the search's prior.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from search_spaces.accelerators import GIB, Accelerator
from search_spaces.model_shape import ModelShape
from search_spaces.schemes import FALLBACK_SHARE, Scheme

Amount = TypeVar("Amount", float, NDArray[np.float64])
"""One number, or one for each of several passes."""

_TYPE_BYTES = {
    "bfloat16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "float32": 4.0,
    "float": 4.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
}

_ACTIVATIONS_PER_LAYER = 12
"""Values of width `hidden` that one token's pass through a layer writes and reads: residual twice, norms,
q, k, v, attention's output, the MLP's input. Rough."""

_GRAPH_TOKENS = 512  # vLLM captures CUDA graphs up to this many tokens a step, unless Blackwell
_GRAPH_BASE = 0.3 * GIB
_GRAPH_PER_LAYER = 12 * (1 << 20)


def type_bytes(dtype: str) -> float:
    """Bytes of one value of a `dtype` or `kv_cache_dtype`. Raises KeyError for one it has no figure for."""
    return _TYPE_BYTES[dtype]


def weight_bytes(shape: ModelShape, scheme: Scheme, dtype: str = "bfloat16") -> float:
    """Memory of all weights. Embeddings, head, norms and routers keep the model's type."""
    own = type_bytes(dtype)
    per_weight = own if scheme.bytes_per_weight is None else scheme.bytes_per_weight
    linear = shape.layers * (shape.attention_weights + shape.experts * shape.expert_weights)
    return linear * per_weight + (shape.parameters - linear) * own


def kv_bytes_per_token(shape: ModelShape, dtype: str = "bfloat16") -> float:
    """Keys and values of one token in every layer."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * type_bytes(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """What one forward pass costs on one rank, as coefficients of what is in the batch.

    The batch is described by four sums: `tokens` processed, `sampled` positions whose logits are wanted,
    `read` cached tokens that are read, and `pairs` of query and key tokens.
    """

    dense_bytes: float
    """Weights read whatever the batch."""
    expert_bytes: float
    """Weights of all routed experts; the share that the batch's tokens choose is read."""
    experts: int
    experts_per_token: int
    token_bytes: float
    """Activations and the token's own keys and values."""
    kv_bytes: float
    """Keys and values of one cached token."""
    token_flops: float
    sampled_flops: float
    pair_flops: float
    bandwidth: float
    compute: float
    token_link_s: float
    """All-reduces, per token."""
    fixed_link_s: float
    """All-reduces, whatever the batch."""

    def weights_read(self, tokens: Amount) -> Amount:
        """Bytes. An expert is read if any token chose it; tokens choose independently and uniformly."""
        untouched: Amount = (1 - self.experts_per_token / self.experts) ** tokens
        return self.dense_bytes + self.expert_bytes * (1 - untouched)

    def bytes_moved(self, tokens: Amount, read: Amount) -> Amount:
        return self.weights_read(tokens) + self.token_bytes * tokens + self.kv_bytes * read

    def flops(self, tokens: Amount, sampled: Amount, pairs: Amount) -> Amount:
        return self.token_flops * tokens + self.sampled_flops * sampled + self.pair_flops * pairs

    def seconds(self, *, tokens: float, sampled: float, read: float, pairs: float) -> float:
        """Duration without the engine's own overhead."""
        memory = self.bytes_moved(tokens, read) / self.bandwidth
        compute = self.flops(tokens, sampled, pairs) / self.compute
        return max(memory, compute) + self.fixed_link_s + self.token_link_s * tokens

    def decode_seconds(
        self, sequences: int, queries: float, contexts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Durations of successive decode passes of a batch that stays the same.

        Args:
            sequences: in the batch.
            queries: tokens verified per sequence and pass: 1, or 1 + draft depth.
            contexts: (n,) summed context of the batch at each pass, in tokens.

        Returns:
            (n,) seconds without the engine's own overhead.
        """
        tokens = sequences * queries
        memory_0 = self.bytes_moved(tokens, 0.0) / self.bandwidth
        compute_0 = self.flops(tokens, tokens, 0.0) / self.compute
        memory = contexts * (self.kv_bytes / self.bandwidth)
        memory += memory_0
        compute = contexts * (queries * self.pair_flops / self.compute)
        compute += compute_0
        np.maximum(memory, compute, out=memory)
        memory += self.fixed_link_s + self.token_link_s * tokens
        return memory


def forward_pass(
    shape: ModelShape,
    scheme: Scheme,
    accelerator: Accelerator,
    *,
    dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    tensor_parallel: int = 1,
) -> ForwardPass:
    """The cost of this model's forward pass on one of `tensor_parallel` equal ranks.

    KV heads are copied, not split, where there are fewer of them than ranks. Each layer has two ring
    all-reduces of the hidden state, which move 2 (n - 1) / n of it over each link.
    """
    n = tensor_parallel
    own = type_bytes(dtype)
    per_weight = own if scheme.bytes_per_weight is None else scheme.bytes_per_weight
    expert_bytes = shape.layers * shape.experts * shape.expert_weights * per_weight
    attention_bytes = shape.layers * shape.attention_weights * per_weight
    always = (shape.layers * shape.router_weights + shape.head_weights + shape.norm_weights) * own
    routed = shape.experts > 1
    kv = kv_bytes_per_token(shape, kv_dtype) * kv_share(shape, n)
    active = shape.attention_weights + shape.experts_per_token * shape.expert_weights + shape.router_weights
    compute = accelerator.flops["bf16"] * (0.5 if own > 2 else 1.0)
    if scheme.multiplies != "bf16":
        native = accelerator.flops.get(scheme.multiplies)
        compute = compute * FALLBACK_SHARE if native is None else native
    reduced = 2 * (n - 1) / n * shape.hidden * own / accelerator.link_bandwidth
    reductions = 2 * shape.layers if n > 1 else 0
    return ForwardPass(
        dense_bytes=(attention_bytes + always + (0 if routed else expert_bytes)) / n,
        expert_bytes=expert_bytes / n if routed else 0.0,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        token_bytes=shape.layers * _ACTIVATIONS_PER_LAYER * shape.hidden * own / n + kv,
        kv_bytes=kv,
        token_flops=2 * shape.layers * active / n,
        sampled_flops=2 * shape.head_weights / n,
        pair_flops=4 * shape.layers * shape.heads * shape.head_dim / n,
        bandwidth=accelerator.bandwidth,
        compute=compute * scheme.compute_share,
        token_link_s=reductions * reduced,
        fixed_link_s=reductions * accelerator.link_latency_s,
    )


def kv_share(shape: ModelShape, tensor_parallel: int) -> float:
    """Share of a token's keys and values that one rank holds."""
    return 1 / min(tensor_parallel, shape.kv_heads)


def decode_step_s(passed: ForwardPass, accelerator: Accelerator, *, sequences: int, context: float) -> float:
    """One decode step of `sequences` sequences of `context` tokens each, without speculation."""
    read = sequences * context
    work = passed.seconds(tokens=sequences, sampled=sequences, read=read, pairs=read)
    return work + accelerator.step_s + sequences * accelerator.sequence_s


def prefill_s(
    passed: ForwardPass, accelerator: Accelerator, *, tokens: int, cached: int = 0, budget: int | None = None
) -> float:
    """Prefill of one prompt alone, the first token sampled; in chunks of `budget` tokens where given.

    Args:
        tokens: prompt tokens, those cached included.
        cached: leading tokens found in the prefix cache: their work is saved.
    """
    total, done = 0.0, cached
    while done < tokens:
        chunk = tokens - done if budget is None else min(budget, tokens - done)
        total += passed.seconds(
            tokens=chunk,
            sampled=1 if done + chunk == tokens else 0,
            read=done + chunk,
            pairs=chunk_pairs(done, chunk),
        )
        total += accelerator.step_s + accelerator.sequence_s
        done += chunk
    return total


def chunk_pairs(before: int, chunk: int) -> float:
    """Query-key pairs of a causal chunk of a prompt after `before` computed tokens."""
    return chunk * before + chunk * (chunk + 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """One rank's memory, split. Bytes."""

    total: float
    allowed: float
    """What the engine may take: utilisation × total."""
    weights: float
    """Target and draft."""
    activations: float
    """Peak of one step with a full token budget, logits included."""
    graphs: float
    rest: float
    block: float
    """One KV block, target and draft."""
    least_blocks: int
    """To hold one sequence of the longest allowed length, and the block that vLLM keeps back."""
    draft: float = 0.0
    """Of `weights`, the draft's."""

    @property
    def needed_beside_kv(self) -> float:
        return self.weights + self.activations + self.graphs + self.rest

    @property
    def kv(self) -> float:
        """Left for KV blocks; negative where the rest alone does not fit."""
        return self.allowed - self.needed_beside_kv

    @property
    def blocks(self) -> int:
        return max(int(self.kv // self.block), 0)

    @property
    def fits(self) -> bool:
        return self.needed_beside_kv <= self.total and self.blocks >= self.least_blocks

    @property
    def shortfall(self) -> str:
        """One line: what was needed and had, in GiB."""
        least = self.least_blocks * self.block
        needed = self.needed_beside_kv + least
        parts = (
            f"weights {self.weights / GIB:.2f}, KV for one longest sequence {least / GIB:.2f}, "
            f"activations {self.activations / GIB:.2f}, graphs {self.graphs / GIB:.2f}, "
            f"rest {self.rest / GIB:.2f}"
        )
        has = f"{self.allowed / GIB:.2f} of {self.total / GIB:.2f} GiB"
        return f"needs {needed / GIB:.2f} GiB ({parts}), has {has}"


def memory_fit(
    shape: ModelShape,
    scheme: Scheme,
    accelerator: Accelerator,
    *,
    utilisation: float,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    depth: int = 0,
    draft_weights: float = 0.0,
    draft_kv_per_token: float = 0.0,
    eager: bool = False,
) -> MemoryFit:
    """What one rank has, and what this config needs of it.

    vLLM runs one dummy step with a full token budget and gives the KV cache what is left of
    utilisation × total, after weights, that step's peak, and (since 0.21) an estimate for CUDA graphs.

    Args:
        depth: draft tokens verified per sequence and step.
        draft_weights: bytes of the draft's weights on this rank.
        draft_kv_per_token: bytes that the draft adds to a token's KV on this rank.
    """
    n = tensor_parallel
    own = type_bytes(dtype)
    kv = kv_bytes_per_token(shape, kv_dtype) * kv_share(shape, n) + draft_kv_per_token
    # The widest moment of a layer: gate and up side by side with their product, over two hidden states.
    # Routed experts work on experts_per_token copies of each token.
    widest = 3 * shape.intermediate * shape.experts_per_token / n + 4 * shape.hidden
    # Logits in float32 and one sorted or masked copy of them. The dummy step samples one row a sequence,
    # with speculation too, so a deep draft on a wide batch takes more under load than was set aside.
    logits = 2 * 4 * min(max_num_seqs, max_num_batched_tokens) * shape.vocab / n
    captured = min(_GRAPH_TOKENS, 2 * max_num_seqs * (1 + depth)) / _GRAPH_TOKENS
    graphs = _GRAPH_BASE + _GRAPH_PER_LAYER * shape.layers * captured
    return MemoryFit(
        total=accelerator.memory,
        allowed=utilisation * accelerator.memory,
        weights=weight_bytes(shape, scheme, dtype) / n + draft_weights,
        activations=max_num_batched_tokens * widest * own + logits,
        graphs=graphs if accelerator.graphs and not eager else 0.0,
        rest=accelerator.rest,
        block=block_size * kv,
        least_blocks=-(-max_model_len // block_size) + 1,
        draft=draft_weights,
    )
