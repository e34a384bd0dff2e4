"""What of a config can change what a model answers, its artefact; and what of that should change nothing.

Every setting counts unless it is known not to: one that nobody has heard of may do anything. Two configs of
one artefact answer alike but for rounding, so one check of quality serves both.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.values import Json

_NEUTRAL = frozenset(
    {
        # How much is done at once, and with what memory.
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "max_num_active_seqs",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "max_model_len",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "prefill_schedule_interval",
        "scheduling_policy",
        "scheduler_reserve_full_isl",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "stream_interval",
        "data_parallel_size",
        "data_parallel_size_local",
        "api_server_count",
        "renderer_num_workers",
        # How it is started, watched and asked.
        "disable_log_stats",
        "disable_access_log_for_endpoints",
        "disable_uvicorn_access_log",
        "download_dir",
        "enable_log_outputs",
        "enable_log_requests",
        "enable_auto_tool_choice",
        "enable_mfu_metrics",
        "enable_prompt_tokens_details",
        "enable_force_include_usage",
        "kv_cache_metrics",
        "kv_cache_metrics_sample",
        "max_logprobs",
        "max_parallel_loading_workers",
        "per_request_spec_decode_metrics",
        "safetensors_load_strategy",
        "seed",
        "served_model_name",
        "shutdown_timeout",
        "skip_mm_profiling",
        "trust_remote_code",
        "use_tqdm_on_load",
        "uvicorn_log_level",
    }
)
"""Engine arguments that answers do not depend on, beyond the order in which a batch is added up."""

_LOSSLESS = frozenset(
    {
        "speculative_config",
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "enable_chunked_prefill",
        "async_scheduling",
        "enforce_eager",
        "optimization_level",
        "compilation_config",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "attention_backend",
        "disable_cascade_attn",
        "block_size",
        "kv_offloading_size",
        "kv_offloading_backend",
        "kv_transfer_config",
        "cpu_offload_gb",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        "enable_expert_parallel",
        "disable_custom_all_reduce",
        "distributed_executor_backend",
    }
)
"""Engine arguments that must change no answer, beyond rounding: where they do, the engine is at fault."""

_NEUTRAL_SPECULATION = frozenset(
    {
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
        "prompt_lookup_min",
        "prompt_lookup_max",
        "draft_tensor_parallel_size",
        "max_model_len",
    }
)
"""How deep it drafts and how it looks a draft up: the same code at another depth is the same artefact."""

_LOSSY_SPECULATION = (
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
"""How a draft is accepted: the one part of speculation that may be asked to change answers."""

_NEUTRAL_ENVIRONMENT = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_LOGGING_LEVEL")
_NEUTRAL_BEGINNINGS = ("HF_", "OMP_", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES")

_DEFAULTS: Mapping[str, Json] = {
    "dtype": "auto",
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "enforce_eager": False,
    "kv_offloading_size": 0,
    "cpu_offload_gb": 0,
}
"""What an argument says that says what vLLM does anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """What a config answers with. Values are JSON texts, so that two of them compare and hash."""

    lossy: tuple[tuple[str, str], ...]
    """Settings that may change answers by design: the checkpoint, its scheme, number formats."""
    lossless: tuple[tuple[str, str], ...]
    """Settings that must not."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits of all of it: equal means the same artefact."""
        return _digest((self.lossy, self.lossless))

    def beside(self, control: "Artefact") -> "Artefact":
        """The same with the lossless settings of the control: what it has to answer like."""
        return Artefact(lossy=self.lossy, lossless=control.lossless)

    @property
    def speculates(self) -> bool:
        return any(name == "speculative_config" for name, _ in self.lossless)

    @property
    def text(self) -> str:
        """All of it in one line, as a person reads it."""
        return ", ".join(f"{name}={value.strip(chr(34))}" for name, value in (*self.lossy, *self.lossless))


def artefact(model: str, arguments: Mapping[str, Json], environment: Mapping[str, str]) -> Artefact:
    """The artefact of a rendered config.

    Args:
        model: the checkpoint's name or folder. What lies there is not looked at.
        arguments: by vLLM's names, underscores.
        environment: variables that the engine is given.
    """
    lossy: dict[str, Json] = {"model": model}
    lossless: dict[str, Json] = {}
    for name, value in arguments.items():
        if name in _NEUTRAL or value is None or _DEFAULTS.get(name) == value:
            continue
        if name == "speculative_config" and isinstance(value, dict):
            accepted = {
                key: value[key] for key in _LOSSY_SPECULATION if value.get(key) not in (None, "standard")
            }
            if accepted:
                lossy[name] = dict(accepted)
            lossless[name] = {
                key: item
                for key, item in value.items()
                if key not in _NEUTRAL_SPECULATION and key not in _LOSSY_SPECULATION and item is not None
            }
        elif name in _LOSSLESS:
            lossless[name] = value
        else:
            lossy[name] = value
    lossy |= {
        name: text
        for name, text in environment.items()
        if name not in _NEUTRAL_ENVIRONMENT and not name.startswith(_NEUTRAL_BEGINNINGS)
    }
    return Artefact(lossy=_pairs(lossy), lossless=_pairs(lossless))


def _pairs(settings: Mapping[str, Json]) -> tuple[tuple[str, str], ...]:
    return tuple((name, json.dumps(value, sort_keys=True)) for name, value in sorted(settings.items()))


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
