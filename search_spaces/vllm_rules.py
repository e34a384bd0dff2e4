"""Combinations of engine arguments that vLLM is known to refuse at start, each with where vLLM refuses it.

Read in vLLM 0.32.0; files are named within its package. Only what the arguments alone tell is here: rules on
the model (equal vocabularies, heads divisible by tensor parallel size) or the hardware need more than that.
An argument left to its default is not judged, since the default depends on the hardware.

Not here, on purpose: a token budget below `max_num_seqs * (1 + depth)`. vLLM serves it, in smaller steps, and
refuses it only together with LoRA (`_lora_budget`); where it is not wanted, it is a constraint of the space.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from search_spaces.settings import Settings, at
from search_spaces.values import Json

Rule = Callable[[Mapping[str, Json]], Iterator[str]]

NEED_NO_DRAFT_MODEL = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states"})
"""Speculative methods that draft without another checkpoint (config/speculative.py, __post_init__)."""
IN_THE_TARGET = frozenset({"mtp", "dspark"})
"""Methods whose draft may come with the target's own checkpoint."""
ASYNC_METHODS = frozenset({"eagle", "eagle3", "extract_hidden_states", "mtp", "dflash", "dspark"}) | {
    "ngram_gpu",
    "draft_model",
}
"""Methods that async scheduling works with (config/vllm.py, __post_init__)."""


def refusals(settings: Settings) -> tuple[str, ...]:
    """Why vLLM would refuse these settings, one sentence each; empty where nothing known is against them."""
    return tuple(sentence for rule in _RULES for sentence in rule(settings.arguments))


def _batch_limits(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/scheduler.py, SchedulerConfig.verify_max_model_len
    tokens, seqs = _number(arguments, "max_num_batched_tokens"), _number(arguments, "max_num_seqs")
    length = _number(arguments, "max_model_len")
    if tokens is not None and seqs is not None and tokens < seqs:
        yield f"max_num_batched_tokens ({tokens:g}) must be at least max_num_seqs ({seqs:g})"
    chunked = arguments.get("enable_chunked_prefill") is not False
    if not chunked and tokens is not None and length is not None and tokens < length:
        yield (
            f"without chunked prefill max_num_batched_tokens ({tokens:g}) must be at least "
            f"max_model_len ({length:g})"
        )
    running = _number(arguments, "max_num_active_seqs")
    if running is not None and seqs is not None and running > seqs:
        yield f"max_num_active_seqs ({running:g}) must be at most max_num_seqs ({seqs:g})"
    threshold = _number(arguments, "long_prefill_token_threshold")
    if threshold is not None and length is not None and threshold > length:
        yield f"long_prefill_token_threshold ({threshold:g}) must be at most max_model_len ({length:g})"


def _ngram_window(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/speculative.py, SpeculativeConfig.__post_init__: one of the two stands in for the other
    low = _number(arguments, "speculative_config.prompt_lookup_min")
    high = _number(arguments, "speculative_config.prompt_lookup_max")
    method = at(arguments, "speculative_config.method")
    if method in ("ngram", "ngram_gpu") and low is not None and high is not None and low > high:
        yield f"prompt_lookup_min ({low:g}) must be at most prompt_lookup_max ({high:g})"


def _draft(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/speculative.py, __post_init__, _verify_args and _verify_and_get_draft_tp
    speculative = arguments.get("speculative_config")
    if not isinstance(speculative, dict):
        return
    method, depth = speculative.get("method"), speculative.get("num_speculative_tokens")
    if isinstance(depth, int) and depth <= 0:
        yield f"num_speculative_tokens must be above 0, got {depth}; to switch speculation off, leave it out"
    if method is None and speculative.get("model") is None:
        yield "speculative_config needs a method or a model"
    if method in NEED_NO_DRAFT_MODEL - {"suffix"} and depth is None:
        yield f"speculative method {method} needs num_speculative_tokens"
    if (
        isinstance(method, str)
        and method not in NEED_NO_DRAFT_MODEL | IN_THE_TARGET
        and not method.endswith("_mtp")
        and speculative.get("model") is None
    ):
        yield f"speculative method {method} needs a model"
    if speculative.get("tensor_parallel_size") is not None:
        yield "speculative_config takes draft_tensor_parallel_size, not tensor_parallel_size"
    draft, target = speculative.get("draft_tensor_parallel_size"), arguments.get("tensor_parallel_size", 1)
    if draft is not None and draft not in (1, target):
        yield f"draft_tensor_parallel_size ({draft}) must be 1 or the target's ({target})"
    if speculative.get("use_heterogeneous_vocab") is True:
        if method not in (None, "draft_model"):
            yield f"use_heterogeneous_vocab works with method draft_model only, not with {method}"
        if speculative.get("draft_sample_method", "greedy") != "greedy":
            yield "use_heterogeneous_vocab needs draft_sample_method greedy"


def _draft_slots(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/vllm.py, _set_max_num_scheduled_tokens; config/speculative.py, max_num_new_slots_for_drafting
    tokens = _number(arguments, "max_num_batched_tokens")
    depth = _number(arguments, "speculative_config.num_speculative_tokens")
    method = at(arguments, "speculative_config.method")
    if tokens is None or depth is None:
        return
    if method == "dflash":
        slots = depth
    elif at(arguments, "speculative_config.parallel_drafting") is True:
        slots = depth if method == "draft_model" else depth - 1
    else:
        slots = 1.0 if method == "draft_model" else 0.0
    if tokens <= slots:
        yield f"max_num_batched_tokens ({tokens:g}) leaves no token beside the draft's slots ({slots:g})"


def _depth_by_batch(arguments: Mapping[str, Json]) -> Iterator[str]:
    # v1/spec_decode/dynamic/utils.py, validate_and_normalize_dynamic_sd_schedule
    schedule = at(arguments, "speculative_config.num_speculative_tokens_per_batch_size")
    if schedule is None:
        return
    name = "num_speculative_tokens_per_batch_size"
    entries: list[list[int]] = []
    for entry in schedule if isinstance(schedule, list) else []:
        if isinstance(entry, list) and len(entry) == 3:
            numbers = [number for number in entry if isinstance(number, int)]
            entries += [numbers] if len(numbers) == 3 else []
    if not isinstance(schedule, list) or not schedule or len(entries) < len(schedule):
        yield f"{name} must be a list of [first batch size, last batch size, depth]"
        return
    entries.sort()
    if entries[0][0] != 1:
        yield f"{name} must begin at batch size 1, got {entries[0][0]}"
    for first, last, depth in entries:
        if first > last or depth < 0:
            yield f"{name}: [{first}, {last}, {depth}] is no range of batch sizes with a depth of 0 or more"
    for before, after in pairwise(entries):
        if after[0] <= before[1]:
            yield f"{name}: ranges {before[:2]} and {after[:2]} overlap"


def _synthetic_acceptance(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/speculative.py, _verify_args and _resolve_synthetic_acceptance_rates
    rates = at(arguments, "speculative_config.synthetic_acceptance_rates")
    length = _number(arguments, "speculative_config.synthetic_acceptance_length")
    depth = _number(arguments, "speculative_config.num_speculative_tokens")
    if at(arguments, "speculative_config.rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            yield "synthetic acceptance needs rejection_sample_method synthetic"
        return
    if (rates is None) is (length is None):
        yield (
            "rejection_sample_method synthetic needs one of synthetic_acceptance_rates and "
            "synthetic_acceptance_length"
        )
    if length is not None and depth is not None and not 1 <= length <= depth + 1:
        yield f"synthetic_acceptance_length ({length:g}) must lie between 1 and 1 + the depth ({depth + 1:g})"
    if isinstance(rates, list) and depth is not None and len(rates) != depth:
        yield f"synthetic_acceptance_rates has {len(rates)} rates for a depth of {depth:g}"


def _lora_budget(arguments: Mapping[str, Json]) -> Iterator[str]:
    # engine/arg_utils.py, create_engine_config, where lora_config and speculative_config meet
    tokens, seqs = _number(arguments, "max_num_batched_tokens"), _number(arguments, "max_num_seqs")
    depth = _number(arguments, "speculative_config.num_speculative_tokens")
    if arguments.get("enable_lora") is not True or tokens is None or seqs is None or depth is None:
        return
    if tokens < seqs * (depth + 1):
        yield (
            f"with LoRA max_num_batched_tokens ({tokens:g}) must be at least "
            f"max_num_seqs * (1 + depth) ({seqs * (depth + 1):g})"
        )


def _async_scheduling(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/vllm.py, __post_init__: asked for, it is refused; left out, it is switched off without a word
    method = at(arguments, "speculative_config.method")
    if arguments.get("async_scheduling") is not True or not isinstance(method, str):
        return
    if method not in ASYNC_METHODS and not method.endswith("_mtp"):
        yield f"async_scheduling does not work with speculative method {method}"
    if at(arguments, "speculative_config.disable_padded_drafter_batch") is True:
        yield "async_scheduling does not work with disable_padded_drafter_batch"


def _speculation_metrics(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/vllm.py, __post_init__
    asked = arguments.get("per_request_spec_decode_metrics", "none")
    if asked != "none" and not arguments.get("speculative_config"):
        yield f"per_request_spec_decode_metrics ({asked}) needs speculation to be on"


def _one_way_to_speculate(arguments: Mapping[str, Json]) -> Iterator[str]:
    # engine/arg_utils.py, create_speculative_config
    for short, key in (
        ("spec_method", "method"),
        ("spec_model", "model"),
        ("spec_tokens", "num_speculative_tokens"),
    ):
        if arguments.get(short) is not None and at(arguments, f"speculative_config.{key}") is not None:
            yield f"{short} and speculative_config.{key} exclude each other"


def _parallel(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/parallel.py, ParallelConfig._validate_parallel_config
    tensor = _number(arguments, "tensor_parallel_size") or 1
    data = _number(arguments, "data_parallel_size") or 1
    prefill = _number(arguments, "prefill_context_parallel_size") or 1
    decode = _number(arguments, "decode_context_parallel_size") or 1
    if prefill == 1 and tensor % decode:
        yield (
            f"tensor_parallel_size ({tensor:g}) must be a multiple of "
            f"decode_context_parallel_size ({decode:g})"
        )
    if prefill > 1 and decode not in (1, prefill, tensor * prefill):
        yield (
            f"decode_context_parallel_size ({decode:g}) must be 1, {prefill:g} or {tensor * prefill:g} "
            f"with prefill_context_parallel_size {prefill:g}"
        )
    local = _number(arguments, "data_parallel_size_local")
    if local is not None and local > data:
        yield f"data_parallel_size_local ({local:g}) must be at most data_parallel_size ({data:g})"
    if arguments.get("enable_eplb") is True:
        if arguments.get("enable_expert_parallel") is not True:
            yield "enable_eplb needs enable_expert_parallel"
        if tensor * prefill * data <= 1:
            yield "enable_eplb needs tensor, prefill-context or data parallelism"


def _mamba_blocks(arguments: Mapping[str, Json]) -> Iterator[str]:
    # config/vllm.py, validate_mamba_block_size
    size = _number(arguments, "mamba_block_size")
    cached = arguments.get("enable_prefix_caching") is not False
    if size is not None and not cached and size != _number(arguments, "max_model_len"):
        yield "mamba_block_size needs enable_prefix_caching"


_RULES: tuple[Rule, ...] = (
    _batch_limits,
    _ngram_window,
    _draft,
    _draft_slots,
    _depth_by_batch,
    _synthetic_acceptance,
    _lora_budget,
    _async_scheduling,
    _speculation_metrics,
    _one_way_to_speculate,
    _parallel,
    _mamba_blocks,
)


def _number(arguments: Mapping[str, Json], path: str) -> float | None:
    """The number at a dotted path; None where there is none, or text that only vLLM can read ("8k")."""
    value = at(arguments, path)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value
