"""Files that are still there, and whole, after the machine has lost its power."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_AT_ONCE = 8
"""Flushes that wait together share the file system's own write of its journal."""


def flush(paths: Iterable[Path]) -> None:
    """Have the disk hold what was written to these files, or into these folders. Raises OSError."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(_flush, paths):
            pass


def flush_tree(folder: Path) -> None:
    """The same of a folder, all that is in it, and its own place in the folder above. Raises OSError."""
    flush([*folder.rglob("*"), folder, folder.parent])


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
