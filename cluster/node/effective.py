"""What the engine really does, read back from it, under vLLM's own argument names; and where that is not
what was asked. Pure: texts in, values out.

Three texts, each with what the others leave out:

- `GET /server_info?config_format=json` (needs VLLM_SERVER_DEV_MODE=1): the resolved configuration;
- the `vllm:cache_config_info` labels of `GET /metrics`: the KV cache as allocated, in every version;
- the log: how many layers an online quantisation scheme found to quantise, which attention backend was
  picked, how much memory the KV cache got.

A setting that the engine does not tell is absent, never guessed; None is its own word for unset.
"""

import json
import math
import re
from collections.abc import Mapping

from cluster.node.counters import readings
from search_spaces.values import Json

_FROM_CONFIG = {
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "max_model_len": ("model_config", "max_model_len"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "seed": ("model_config", "seed"),
    "block_size": ("cache_config", "block_size"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "prefix_caching_hash_algo": ("cache_config", "prefix_caching_hash_algo"),
    "num_gpu_blocks_override": ("cache_config", "num_gpu_blocks_override"),
    "kv_cache_memory_bytes": ("cache_config", "kv_cache_memory_bytes"),
    "kv_offloading_size": ("cache_config", "kv_offloading_size"),
    "kv_blocks": ("cache_config", "num_gpu_blocks"),
    "kv_tokens": ("cache_config", "kv_cache_size_tokens"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
    "enable_expert_parallel": ("parallel_config", "enable_expert_parallel"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "long_prefill_token_threshold": ("scheduler_config", "long_prefill_token_threshold"),
    "attention_backend": ("attention_config", "backend"),
    "compilation_mode": ("compilation_config", "mode"),
    "cudagraph_mode": ("compilation_config", "cudagraph_mode"),
    "optimization_level": ("optimization_level",),
}
"""Our name → where /server_info has it. Names are the arguments' own, but for `kv_blocks`, `kv_tokens`,
`compilation_mode` and `cudagraph_mode`, which are no arguments."""

_SPECULATION = (
    "method",
    "model",
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
    "quantization",
    "rejection_sample_method",
)
"""The part of `speculative_config` worth keeping; it also repeats the target's whole configuration."""

_QUANTISED_LAYERS = re.compile(r"Quantizing (\d+) layers of types:")
_KV_MEMORY_GIB = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_ATTENTION = re.compile(r"Using (\w+) (?:attention )?backend(?: out of potential backends)?\b")


def effective_settings(server_info: str, metrics: str, log: str = "") -> dict[str, Json]:
    """Settings in effect, by name.

    Args:
        server_info: body of /server_info?config_format=json; empty or not JSON where there is none.
        metrics: body of /metrics.
        log: the engine's log so far.

    Returns:
        Settings; `speculative_config` is None where speculation is off. `kv_cache_bytes` is per worker.
    """
    config = _config(server_info)
    found: dict[str, Json] = {}
    caches = [
        {name: _literal(text) for name, text in row.labels.items()}
        for row in readings(metrics, {"vllm:cache_config_info"})
    ]
    for name, (*section, key) in _FROM_CONFIG.items():
        told = _section(config, section)
        if key not in told and section == ["cache_config"] and caches:
            told = caches[0]
        if key in told:
            found[name] = _shortened(told[key])
    blocks = [count for labels in caches if isinstance(count := labels.get("num_gpu_blocks"), int)]
    if blocks:  # one row an engine: with data parallelism the replicas' pools add up
        found["kv_blocks"] = sum(blocks)
    if config:
        found["speculative_config"] = _speculation(config.get("speculative_config"))
    return found | _from_log(log, found)


def differences(asked: Mapping[str, Json], effective: Mapping[str, Json]) -> tuple[str, ...]:
    """Settings that were asked for and are not in effect, one sentence each; empty where all are.

    What was left to the engine (`None`, `auto`, -1 for a length) and what the engine does not tell
    can't differ.
    """
    found = []
    for name, value in asked.items():
        if name == "speculative_config":
            found += _speculation_differences(value, effective)
        elif name in effective and not _left_open(name, value):
            in_effect = effective[name]
            if not _same(name, value, in_effect):
                found.append(_sentence(name, value, in_effect))
    if not _left_open("quantization", asked.get("quantization")) and effective.get("quantized_layers") == 0:
        found.append(
            f"asked quantization={_shown(asked['quantization'])}, in effect none: "
            "this scheme found no layer of this model to quantise"
        )
    return tuple(found)


def _config(server_info: str) -> Mapping[str, Json]:
    try:
        body = json.loads(server_info)
    except ValueError:
        return {}
    config = body.get("vllm_config") if isinstance(body, dict) else None
    return config if isinstance(config, dict) else {}  # text, in versions that know no JSON here


def _section(config: Mapping[str, Json], path: list[str]) -> Mapping[str, Json]:
    for step in path:
        inner = config.get(step)
        if not isinstance(inner, dict):
            return {}
        config = inner
    return config


def _shortened(value: Json) -> Json:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def _literal(text: str) -> Json:
    """The value that Python printed as this text, where it is a plain one."""
    plain: dict[str, Json] = {"None": None, "True": True, "False": False}
    if text in plain:
        return plain[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _speculation(config: Json) -> Json:
    if not isinstance(config, dict):
        return None
    return {name: config[name] for name in _SPECULATION if config.get(name) is not None}


def _from_log(log: str, known: Mapping[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if layers := _QUANTISED_LAYERS.search(log):
        found["quantized_layers"] = int(layers[1])
    if known.get("attention_backend") is None and (backend := _ATTENTION.search(log)):
        found["attention_backend"] = backend[1]
    if (asked_bytes := known.get("kv_cache_memory_bytes")) is not None:
        found["kv_cache_bytes"] = asked_bytes
    elif memory := _KV_MEMORY_GIB.search(log):
        found["kv_cache_bytes"] = int(float(memory[1]) * 2**30)
    return found


_ALIASES = {
    "dtype": {"half": "float16", "float": "float32"},
    "kv_cache_dtype": {"fp8": "fp8_e4m3"},
}
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vLLM's own reading of `8k` and `8K` (vllm/utils/argparse_utils.py, human_readable_int)."""
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")


def _left_open(name: str, value: Json) -> bool:
    return value is None or value == "auto" or (name == "max_model_len" and value == -1)


def _same(name: str, asked: Json, in_effect: Json) -> bool:
    asked, in_effect = _plain(name, asked), _plain(name, in_effect)
    if isinstance(asked, bool) or isinstance(in_effect, bool):
        return asked is in_effect
    if isinstance(asked, int | float) and isinstance(in_effect, int | float):
        return math.isclose(asked, in_effect, rel_tol=1e-6)
    if isinstance(asked, str) and isinstance(in_effect, str):
        if name == "quantization":  # vLLM picks the kernel within a family: awq → awq_marlin
            longer, shorter = sorted((asked, in_effect), key=len, reverse=True)
            return longer == shorter or longer.startswith(f"{shorter}_")
        return asked.lower() == in_effect.lower()
    return asked == in_effect


def _plain(name: str, value: Json) -> Json:
    if not isinstance(value, str):
        return value
    if count := _COUNT.fullmatch(value):
        return float(count[1]) * _SUFFIXES.get(count[2], 1)
    return _ALIASES.get(name, {}).get(value, value)


def _speculation_differences(asked: Json, effective: Mapping[str, Json]) -> list[str]:
    if not isinstance(asked, dict) or "speculative_config" not in effective:
        return []
    in_effect = effective["speculative_config"]
    if not isinstance(in_effect, dict):
        return [f"asked speculative_config={_shown(asked)}, in effect no speculation"]
    found = []
    for name, value in asked.items():
        if (
            value is None
            or name not in in_effect
            or (name == "method" and _one_family(value, in_effect[name]))
        ):
            continue
        if not _same(name, value, in_effect[name]):
            found.append(_sentence(f"speculative_config.{name}", value, in_effect[name]))
    return found


def _one_family(asked: Json, in_effect: Json) -> bool:
    """vLLM folds every model's own name for multi-token prediction into `mtp`."""
    return isinstance(asked, str) and asked.endswith("mtp") and in_effect == "mtp"


def _sentence(name: str, asked: Json, in_effect: Json) -> str:
    return f"asked {name}={_shown(asked)}, in effect {_shown(in_effect)}"


def _shown(value: Json) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
