"""What the launcher knows of vLLM: what to import, what must not have happened by then, what may be forked.

It imports vLLM by name, in the launcher's process alone. Each of vLLM's modules here is one that every start
loads anyway; one that another version does not have is left out.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
import warnings
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from typing import NamedTuple

_LOADED_LATER = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.entrypoints.serve.dev.server_info.api_router",
)
"""By the server once it has read its arguments, and by the engine core."""

_CORE_FORKS = "0.32."
"""The version of which the CPU engine's core was seen to run as well forked as spawned."""


def import_all(module: str) -> None:
    """Import what the command runs, and what it would import later on. Raises what that import raises."""
    with warnings.catch_warnings():
        # Shown once each: by the engine itself, into its own log.
        warnings.simplefilter("ignore")
        importlib.import_module(module)
        for name in _LOADED_LATER if "vllm" in sys.modules else ():
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)


def touched_accelerator() -> str | None:
    """Says that importing began to use an accelerator, which no copy of this process could go on with."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for kind in ("cuda", "xpu"):
        device = getattr(torch, kind, None)
        if device is not None and device.is_initialized():
            return f"importing the engine initialised {kind.upper()}"
    return None


class _NoDescription(NamedTuple):
    """What vLLM takes for a description of its machine: a named tuple, here of nothing."""


def leave_the_machine_undescribed() -> None:
    """Have `/server_info` tell the settings alone.

    With them it describes the machine, by a dozen commands that take seconds and whose answers nobody reads.
    """
    routes = sys.modules.get("vllm.entrypoints.serve.dev.server_info.api_router")
    if routes is not None and hasattr(routes, "get_env_info"):
        vars(routes)["get_env_info"] = _NoDescription


def fork_the_core() -> None:
    """Let the API server of a CPU engine fork its engine core, as it does where there is a GPU.

    vLLM's CPU platform asks for spawn, for the sake of its workers: they read OpenMP's variables and
    LD_PRELOAD as they start. The core in between computes nothing. It is forked here, and what it starts
    itself is spawned as before, so that what computes is a fresh process with its own variables.
    """
    platforms = sys.modules.get("vllm.platforms")
    version: str = getattr(sys.modules.get("vllm"), "__version__", "")
    if platforms is None or not version.startswith(_CORE_FORKS):
        return
    if not platforms.current_platform.is_cpu():
        return
    asked_for, server = multiprocessing.get_context, os.getpid()

    def get_context(method: str | None = None) -> BaseContext:
        if method != "spawn" or os.getpid() != server:
            return asked_for(method)
        # As a spawn would have it: the server's own, which outlives the core and clears up after it.
        resource_tracker.ensure_running()
        return asked_for("fork")

    multiprocessing.get_context = get_context  # type: ignore[assignment]
