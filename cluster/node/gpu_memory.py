"""Memory of the GPUs before an engine starts: a driver frees a dead process's memory late, or never.

An engine that starts beside memory of somebody else's runs out of it, and its config would be blamed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.node.hardware import gpu_holders, gpu_memory_mib
from cluster.order import Order

WAIT_S = 60.0
SLACK_MIB = 512
"""What a driver itself takes, or a display: not waited for."""
_POLL_S = 1.0
_DEFAULT_SHARE = 0.9
"""vLLM's `gpu_memory_utilization` where nobody sets it: 0.92 in version 0.32, 0.9 long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One accelerator's memory, MiB."""

    used_mib: int
    total_mib: int


Read = Callable[[], tuple[GpuMemory, ...]]


def _read() -> tuple[GpuMemory, ...]:
    return tuple(GpuMemory(used_mib=used, total_mib=total) for used, total in gpu_memory_mib())


def wait_for_room(
    order: Order,
    *,
    read: Read = _read,
    holders: Callable[[], tuple[tuple[int, int], ...]] = gpu_holders,
    wait_s: float = WAIT_S,
    poll_s: float = _POLL_S,
    waiting: Callable[[], None] = lambda: None,
) -> str | None:
    """Wait until the GPUs that this process may use are empty; who holds them if they never get empty enough.

    Args:
        read: memory of each GPU now.
        holders: (pid, MiB) of the processes that hold some.
        waiting: called once they turn out to be waited for.

    Returns:
        None where an engine may start: no GPU is asked for, none is there to ask about, they are empty, or
        what the config takes is free all the same. Else one line for `Cause.GPU_HELD`.
    """
    if not order.gpus:
        return None
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        found = read()
        if all(gpu.used_mib <= SLACK_MIB for gpu in found):
            return None
        if time.monotonic() > deadline:
            return _complaint(found, _share(order), holders())
        if not told:
            told = True
            waiting()
        time.sleep(poll_s)


def _share(order: Order) -> float:
    asked = order.arguments.get("gpu_memory_utilization")
    return asked if isinstance(asked, int | float) else _DEFAULT_SHARE


def _complaint(
    found: tuple[GpuMemory, ...], share: float, holders: tuple[tuple[int, int], ...]
) -> str | None:
    short = [
        (place, gpu)
        for place, gpu in enumerate(found)
        if gpu.total_mib - gpu.used_mib < share * gpu.total_mib
    ]
    if not short:
        return None
    place, gpu = short[0]
    named = ", ".join(f"process {pid} ({mib} MiB)" for pid, mib in holders) or "nobody whom the driver names"
    return (
        f"GPU {place} has {gpu.used_mib} of {gpu.total_mib} MiB in use without an engine of ours, "
        f"held by {named}; the config takes {share:.0%}"
    )
