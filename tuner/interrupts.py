"""Ctrl-C, and a stop from a scheduler: the first one ends things in order, a second one quits at once."""

import os
import signal
import sys
import threading
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
_AGAIN_S = 0.02
"""After an exception was dropped: out of the callback that dropped it."""


@contextmanager
def stops_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first signal, leave the process on the next one.

    Leaving at once is safe: what was measured is on disk, and engines have guards that end them when the
    processes above them go.
    """
    began: list[float] = []
    dropped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if dropped.is_set():
            dropped.clear()
            raise KeyboardInterrupt
        if not began:
            began.append(time.monotonic())
            os.write(2, _FIRST)
            raise KeyboardInterrupt
        if time.monotonic() - began[0] >= _SAME_S:
            os.write(2, _SECOND)
            os._exit(_EXIT_INTERRUPTED)

    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        with _told_of_dropped(dropped):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _told_of_dropped(dropped: threading.Event) -> Iterator[None]:
    """Have the signal come again where Python drops the KeyboardInterrupt that it raised.

    It does so in what runs between two lines of the program, such as finalizers and callbacks of weak
    references (sqlalchemy, which optuna and mlflow stand on, has many): nobody would be told of the stop.
    """
    timers: list[threading.Timer] = []
    tell = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            tell(unraisable)
            return
        dropped.set()
        # From another thread: what this one raised here would be dropped too.
        timers.append(threading.Timer(_AGAIN_S, _signal_main_thread))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = tell
        for timer in timers:
            timer.cancel()


def _signal_main_thread() -> None:
    # To the thread and not to the process: it may be waiting for a lock, which only its own signal ends.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
