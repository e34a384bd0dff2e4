"""Shared memory that an engine's processes hold and would leave behind, found by who maps it.

A segment of /dev/shm is a file: killed processes leave it, and with it its memory, until the next boot.
vLLM's processes talk through such segments. Standard library only: the guard imports it.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

SEGMENTS = Path("/dev/shm")  # where Linux keeps POSIX shared memory (shm_overview(7))


def mapped(pids: Iterable[int]) -> frozenset[Path]:
    """Segments that these processes map now."""
    found: set[Path] = set()
    for pid in pids:
        try:
            rows = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:  # gone, or not ours to look at
            continue
        # address perms offset dev inode path; the path may hold spaces.
        paths = (row.split(maxsplit=5)[5] for row in rows if f" {SEGMENTS}/" in row)
        found |= {Path(path) for path in paths if not path.endswith(" (deleted)")}
    return frozenset(found)


def remove_unmapped(segments: Iterable[Path]) -> None:
    """Remove those of the segments that no process maps any more."""
    left = frozenset(segments)
    if not left:
        return
    for path in left - mapped(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            path.unlink()
