"""Whether an engine that is starting still gets anywhere: by what it says and reads, never by a clock alone.

A slow load may take an hour and is no hang; a hung engine may repeat one line for ever and is one. So there
is progress where the log has a line that it did not have before, or where the engine's processes have read
or written a good deal: weights come in without a word, and a compiler writes its cache.
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from cluster.node.failure import bare

_A_GOOD_DEAL = 16 * 2**20
"""Bytes since the last progress. Idle processes wake each other by reads too, far less than this."""
_IO_EVERY_S = 5.0
"""Reading the counters of a tree takes a look at every process of the machine."""
_COUNTERS = ("rchar", "wchar", "read_bytes", "write_bytes")
"""Of /proc/PID/io: `read_bytes` is where pages of a mapped file come from, `rchar` where files are read."""


class StartProgress:
    """Watches one start.

    Args:
        log: what the engine writes, which may grow at any time.
        pids: the engine's processes now.
        now: a clock that never goes back, seconds.
    """

    def __init__(
        self, log: Path, pids: Callable[[], Collection[int]], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._pids = pids
        self._now = now
        self._read = 0
        self._unfinished = ""
        self._said: set[str] = set()
        self._done: dict[int, int] = {}
        self._bytes = 0
        self._looked_s = -_IO_EVERY_S
        self._moved_s = now()

    def stalled_s(self) -> float:
        """Look again; seconds since the last progress."""
        now = self._now()
        if self._says_something_new():
            self._moved(now)
        elif now - self._looked_s >= _IO_EVERY_S:
            self._looked_s = now
            self._bytes += self._transferred()
            if self._bytes >= _A_GOOD_DEAL:
                self._moved(now)
        return now - self._moved_s

    def _moved(self, now: float) -> None:
        self._moved_s, self._bytes = now, 0

    def _says_something_new(self) -> bool:
        """Whether the log has a line now that it had not before. A bar that moves is a new line each time."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            more = log.read()
        if not more:
            return False
        self._read += len(more)
        *lines, self._unfinished = (self._unfinished + more.decode(errors="replace")).splitlines(
            keepends=True
        ) or [""]
        if self._unfinished.endswith(("\n", "\r")):
            lines.append(self._unfinished)
            self._unfinished = ""
        found = {bare(line).strip() for line in (*lines, self._unfinished)} - self._said - {""}
        self._said |= found
        return bool(found)

    def _transferred(self) -> int:
        """Bytes that the engine's processes read and wrote since this was last asked."""
        before, self._done = self._done, {pid: _bytes_of(pid) for pid in self._pids()}
        return sum(max(0, done - before.get(pid, 0)) for pid, done in self._done.items())


def _bytes_of(pid: int) -> int:
    try:
        rows = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:  # gone, or not ours to look at
        return 0
    return sum(int(value) for name, value in (row.split(": ") for row in rows) if name in _COUNTERS)
