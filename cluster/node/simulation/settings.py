"""An order's arguments as the simulated engine takes them: vLLM's defaults filled in, its refusals made.

Raises EngineFailure with the cause that the real engine's failure would have. An argument that the
simulation gives no meaning to is accepted and listed in `effective["not_modelled"]`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster.node.engine import EngineFailure
from cluster.node.simulation.arguments import Arguments
from cluster.node.simulation.drafting import Drafting, drafting
from cluster.node.simulation.speculation import DEFAULT_ACCEPTANCE, Acceptance
from cluster.order import Cause, Order
from search_spaces.accelerators import GIB, Accelerator, accelerator
from search_spaces.model_shape import ModelShape, UnknownShape, known_shape
from search_spaces.roofline import MemoryFit, memory_fit, type_bytes
from search_spaces.schemes import (
    EXPERTS_ONLY,
    QUANTIZATIONS,
    Scheme,
    SchemeMismatch,
    checkpoint_scheme,
    scheme_of_name,
    served_scheme,
)
from search_spaces.settings import Settings as Asked
from search_spaces.step_model import Constants, table_constants
from search_spaces.values import Json
from search_spaces.vllm_rules import refusals

CPU_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""GiB of KV cache on the CPU engine; where it is unset, utilisation × memory counts, as on a GPU."""

UTILISATION = 0.92  # vLLM 0.32, config/cache.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What an order does not say and a simulation must. The defaults are rough."""

    accelerator: Accelerator | None = None
    """Instead of the one the order names."""
    constants: Constants | None = None
    """What steps are timed by, fitted on measured trials (`objectives.step_fit`); None: the accelerator's
    figures. Memory is the accelerator's either way."""
    api_s: float = 0.0
    """What the API server adds to a request before its first token: HTTP, tokenisation, streaming."""
    acceptance: Mapping[str, Acceptance] = field(default_factory=lambda: DEFAULT_ACCEPTANCE)
    """By speculative method or draft model's name; the name takes precedence."""
    run_noise: float = 0.0
    """Standard deviation of the log of a factor on all step times of a replay, drawn for each trial."""
    step_noise: float = 0.0
    """The same for each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the simulated engine runs with."""

    accelerator: Accelerator
    constants: Constants
    """What its steps are timed by."""
    api_s: float
    shape: ModelShape
    scheme: Scheme
    dtype: str
    kv_dtype: str
    tensor_parallel: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    block_size: int
    kv_blocks: int
    """vLLM's count; one of them is its null block and holds nothing."""
    drafting: Drafting | None
    counts_work: bool
    """`enable_mfu_metrics`: FLOPs and bytes are counted. On unless switched off, as on the real engine."""
    tells_cached: bool
    """`enable_prompt_tokens_details`: each answer says how much of its prompt was cached. On likewise."""
    fit: MemoryFit
    effective: Mapping[str, Json]


def resolve(order: Order, assumptions: Assumptions) -> Settings:
    """Read an order.

    Raises:
        EngineFailure: unsupported, invalid argument or out of memory, with a line that says why.
    """
    asked = Arguments(order.arguments)
    device = assumptions.accelerator or _device(order)
    constants = assumptions.constants or _constants(device)
    shape, checkpoint = describe(order.model)
    tp = asked.whole("tensor_parallel_size", 1)
    _check_parallel(asked, order, shape, tp)
    dtype = _dtype(asked)
    kv_asked = asked.word("kv_cache_dtype", "auto")
    kv_dtype = dtype if kv_asked == "auto" else kv_asked
    quantization = asked.optional_word("quantization")
    scheme = _scheme(quantization, checkpoint, device, shape)
    _known_type("kv_cache_dtype", kv_dtype)

    length = _max_model_len(asked, shape)
    chunked = asked.flag("enable_chunked_prefill", True)
    seqs, tokens = _batch_limits(asked, device, tp, shape.max_position if length is None else length, chunked)
    _check_rules(order, seqs, tokens, length or shape.max_position)
    drafts = drafting(
        asked.mapping("speculative_config"),
        target=shape,
        accelerator=device,
        constants=constants,
        dtype=dtype,
        kv_dtype=kv_dtype,
        tensor_parallel=tp,
        budget=tokens,
        acceptance=assumptions.acceptance,
        describe=describe,
    )

    block_size = asked.whole("block_size", device.block_size)
    utilisation = asked.number("gpu_memory_utilization", UTILISATION)
    if not 0 < utilisation <= 1:
        raise invalid(f"gpu_memory_utilization={utilisation:g} must be above 0 and at most 1")
    fit = memory_fit(
        shape,
        scheme,
        device,
        utilisation=utilisation,
        max_model_len=length or 1,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        block_size=block_size,
        dtype=dtype,
        kv_dtype=kv_dtype,
        tensor_parallel=tp,
        depth=drafts.depth if drafts else 0,
        draft_weights=drafts.weights if drafts else 0.0,
        draft_kv_per_token=drafts.kv_per_token if drafts else 0.0,
        eager=asked.flag("enforce_eager", False),
    )
    kv_bytes = _explicit_kv_bytes(asked, order, device)
    blocks = _blocks(asked, fit, kv_bytes)
    length = _fitted(length, shape, blocks, block_size)
    prefix_caching = asked.flag("enable_prefix_caching", True)
    counts_work = asked.flag("enable_mfu_metrics", True)
    tells_cached = asked.flag("enable_prompt_tokens_details", True)
    effective: dict[str, Json] = {
        "dtype": dtype,
        "quantization": quantization
        if quantization is not None or scheme.bytes_per_weight is None
        else scheme.name,
        "max_model_len": length,
        "enforce_eager": asked.flag("enforce_eager", False),
        "block_size": block_size,
        "gpu_memory_utilization": utilisation,
        "kv_cache_dtype": kv_asked,
        "enable_prefix_caching": prefix_caching,
        "num_gpu_blocks_override": asked.optional_whole("num_gpu_blocks_override"),
        "kv_cache_memory_bytes": asked.optional_whole("kv_cache_memory_bytes"),
        "kv_blocks": blocks,
        "kv_tokens": (blocks - 1) * block_size,
        "kv_cache_bytes": int(fit.kv if kv_bytes is None else kv_bytes),
        "tensor_parallel_size": tp,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "enable_chunked_prefill": chunked,
        "speculative_config": None if drafts is None else dict(drafts.effective),
    }
    unread = asked.unread()
    if unread:
        effective["not_modelled"] = list(unread)
    return Settings(
        accelerator=device,
        constants=constants,
        api_s=assumptions.api_s,
        shape=shape,
        scheme=scheme,
        dtype=dtype,
        kv_dtype=kv_dtype,
        tensor_parallel=tp,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        chunked_prefill=chunked,
        prefix_caching=prefix_caching,
        block_size=block_size,
        kv_blocks=blocks,
        drafting=drafts,
        counts_work=counts_work,
        tells_cached=tells_cached,
        fit=fit,
        effective=effective,
    )


def describe(model: str) -> tuple[ModelShape, Scheme]:
    """Dimensions of a model, and the scheme its checkpoint is held in.

    Raises:
        EngineFailure: neither a folder with a readable `config.json` nor in the table.
    """
    folder = Path(model)
    try:
        if not folder.is_dir():
            return known_shape(model), scheme_of_name(model)
        config = json.loads((folder / "config.json").read_bytes())
        if not isinstance(config, dict):
            raise UnknownShape("config.json is not a mapping")
        return ModelShape.from_config(config), checkpoint_scheme(config)
    except (OSError, ValueError) as error:
        raise invalid(f"model '{model}': {error}") from error


def invalid(reason: str) -> EngineFailure:
    """A failure that is the config's, for an argument vLLM would not take."""
    return EngineFailure(Cause.INVALID_ARGUMENT, reason)


def _device(order: Order) -> Accelerator:
    name = order.accelerator or ("H100-80G" if order.gpus else "cpu")
    try:
        return accelerator(name)
    except ValueError as error:
        raise invalid(str(error)) from error


def _constants(device: Accelerator) -> Constants:
    """The table's; what each scheme computes is the forward passes' own, and n-gram lookup takes no time of
    the step beside that of its sequences."""
    return replace(table_constants(device, ()), lookup_step_s=0.0)


def _dtype(asked: Arguments) -> str:
    dtype = asked.word("dtype", "auto")
    dtype = {"auto": "bfloat16", "half": "float16", "float": "float32"}.get(dtype, dtype)
    _known_type("dtype", dtype)
    return dtype


def _known_type(argument: str, dtype: str) -> None:
    try:
        type_bytes(dtype)
    except KeyError:
        raise EngineFailure(
            Cause.UNSUPPORTED, f"the simulated engine has no figures for {argument}='{dtype}'"
        ) from None


def _scheme(quantization: str | None, checkpoint: Scheme, device: Accelerator, shape: ModelShape) -> Scheme:
    if quantization in device.refused:
        raise EngineFailure(
            Cause.UNSUPPORTED, f"quantization='{quantization}' does not start on {device.name}"
        )
    if quantization in EXPERTS_ONLY and shape.experts == 1:
        raise EngineFailure(
            Cause.SETTINGS_DIFFER,
            f"asked quantization={quantization}, in effect none: it quantises experts only, here are none",
        )
    try:
        return served_scheme(quantization, checkpoint)
    except SchemeMismatch as error:
        raise invalid(str(error)) from error
    except KeyError:
        raise EngineFailure(
            Cause.UNSUPPORTED,
            f"the simulated engine has no figures for quantization='{quantization}'; it has for "
            f"{', '.join(QUANTIZATIONS)}",
        ) from None


def _check_parallel(asked: Arguments, order: Order, shape: ModelShape, tp: int) -> None:
    if shape.heads % tp or (shape.kv_heads % tp and tp % shape.kv_heads):
        # vLLM: config/model.py verify_with_parallel_config; layers copy KV heads in whole numbers only
        raise invalid(
            f"tensor_parallel_size={tp} does not divide {shape.heads} attention and {shape.kv_heads} KV heads"
        )
    if order.gpus and tp > order.gpus:
        raise invalid(f"tensor_parallel_size={tp} needs {tp} GPUs, the trial has {order.gpus}")
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        if asked.whole(name, 1) != 1:
            raise EngineFailure(Cause.UNSUPPORTED, f"the simulated engine plays {name}=1 only")


def _max_model_len(asked: Arguments, shape: ModelShape) -> int | None:
    """None: as long as fits, which `auto` and -1 mean."""
    if asked.value("max_model_len") in ("auto", -1):
        return None
    length = asked.whole("max_model_len", shape.max_position)
    if length > shape.max_position:
        raise invalid(f"max_model_len={length} is above the model's {shape.max_position}")
    return length


def _batch_limits(
    asked: Arguments, device: Accelerator, tp: int, length: int, chunked: bool
) -> tuple[int, int]:
    """vLLM's defaults: engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args."""
    ranks = tp if device.is_cpu else 1
    seqs = asked.optional_whole("max_num_seqs")
    tokens = asked.optional_whole("max_num_batched_tokens")
    if tokens is None:
        tokens = device.max_num_batched_tokens * ranks
        if not chunked:
            tokens = max(tokens, length)
        tokens = min(tokens, (seqs or device.max_num_seqs * ranks) * length)
    return min(device.max_num_seqs * ranks, tokens) if seqs is None else seqs, tokens


def _check_rules(order: Order, seqs: int, tokens: int, length: int) -> None:
    """vLLM's joint rules, on the arguments with their defaults filled in."""
    filled = {
        **order.arguments,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "max_model_len": length,
    }
    reasons = refusals(Asked(model=order.model, arguments=filled))
    if reasons:
        raise invalid("; ".join(reasons))


def _explicit_kv_bytes(asked: Arguments, order: Order, device: Accelerator) -> float | None:
    explicit = asked.optional_whole("kv_cache_memory_bytes")
    if explicit is not None or not device.is_cpu or CPU_KV_SPACE not in order.environment:
        return explicit
    space = order.environment[CPU_KV_SPACE]
    try:
        return int(space) * GIB
    except ValueError as error:
        raise invalid(f"{CPU_KV_SPACE}='{space}' is not a whole number of GiB") from error


def _blocks(asked: Arguments, fit: MemoryFit, kv_bytes: float | None) -> int:
    """Blocks of the KV cache, or the failure that the real engine would end with."""
    if kv_bytes is not None:
        if fit.needed_beside_kv + kv_bytes > fit.total:
            needed = (fit.needed_beside_kv + kv_bytes) / GIB
            raise EngineFailure(
                Cause.OUT_OF_MEMORY,
                f"{kv_bytes / GIB:.2f} GiB of KV cache asked for: with weights, activations, graphs and the "
                f"rest {needed:.2f} GiB are needed, {fit.total / GIB:.2f} are there",
            )
        blocks = int(kv_bytes // fit.block)
    elif fit.needed_beside_kv > fit.total or fit.kv <= 0:
        raise EngineFailure(Cause.OUT_OF_MEMORY, fit.shortfall)
    else:
        blocks = fit.blocks
    blocks = asked.optional_whole("num_gpu_blocks_override") or blocks
    if blocks < fit.least_blocks:
        have = f"{fit.shortfall}; {blocks} KV blocks where {fit.least_blocks} are the least"
        raise EngineFailure(Cause.OUT_OF_MEMORY, have)
    return blocks


def _fitted(length: int | None, shape: ModelShape, blocks: int, block_size: int) -> int:
    return min(shape.max_position, (blocks - 1) * block_size) if length is None else length
