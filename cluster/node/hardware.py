"""What the node is made of, and how much of its accelerators' memory is taken."""

import os
import platform
import re
import subprocess
from pathlib import Path

_ASK_S = 20.0
"""nvidia-smi takes seconds where the driver has to be loaded first."""


def hardware_name() -> str:
    """The accelerators that this process may use, else the CPU with its cores."""
    names = _nvidia("name")
    if names:
        return names[0] if len(names) == 1 else f"{len(names)} × {names[0]}"
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def gpu_memory_used_mib() -> tuple[int, ...]:
    """Memory taken on each GPU that this process may use, MiB; empty where there is none to ask about."""
    return tuple(int(text) for text in _nvidia("memory.used") if text.isdecimal())


def gpu_memory_mib() -> tuple[tuple[int, int], ...]:
    """(used, total) of each GPU that this process may use, MiB; empty where there is none to ask about."""
    rows = [row.split(", ") for row in _nvidia("memory.used,memory.total")]
    return tuple((int(row[0]), int(row[1])) for row in rows if all(text.isdecimal() for text in row))


def gpu_holders() -> tuple[tuple[int, int], ...]:
    """(pid, MiB) of each process that holds memory of those GPUs, as far as the driver tells."""
    rows = [row.split(", ") for row in _nvidia("pid,used_memory", about="compute-apps")]
    return tuple((int(row[0]), int(row[1])) for row in rows if all(text.isdecimal() for text in row))


def memory_kills() -> int:
    """How many processes of this control group the kernel has killed for memory so far.

    0 where that is not told, so only a rise says something.
    """
    for path in _memory_event_files():
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0


def _nvidia(fields: str, *, about: str = "gpu") -> tuple[str, ...]:
    """Rows of `nvidia-smi --query-…`, fields apart by ", "."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):  # hidden: "" or "-1"
        return ()
    command = ["nvidia-smi", f"--query-{about}={fields}", "--format=csv,noheader,nounits"]
    if visible:
        command += ["-i", visible]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):  # no GPU here, or a driver that does not answer
        return ()
    return tuple(line.strip() for line in told.stdout.splitlines() if line.strip())


def _cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _memory_event_files() -> tuple[Path, ...]:
    root = Path("/sys/fs/cgroup")
    try:
        own = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        own = None
    inside = (root / own[1].lstrip("/") / "memory.events",) if own else ()
    return (*inside, root / "memory.events", root / "memory/memory.oom_control")
