"""Ctrl-C, and a stop from a scheduler: the first one ends things in order, a second one quits at once."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)

_SAME_S = 0.5
"""One press may arrive twice: from the terminal, and handed on by a program between."""

_FIRST = b"stopping: what runs is being ended; once more quits at once\n"
_SECOND = b"quitting; what runs is ended by its guards\n"
_EXIT_INTERRUPTED = 130


@contextmanager
def stops_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first signal, leave the process on the next one.

    Leaving at once is safe: what was measured is on disk, and engines have guards that end them when the
    processes above them go.
    """
    began: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not began:
            began.append(time.monotonic())
            os.write(2, _FIRST)
            raise KeyboardInterrupt
        if time.monotonic() - began[0] >= _SAME_S:
            os.write(2, _SECOND)
            os._exit(_EXIT_INTERRUPTED)

    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
