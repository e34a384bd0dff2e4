"""What a process does on SIGTERM, kept from Ray, whose start in it puts a handler of its own there."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept() -> Iterator[None]:
    """SIGTERM is handled afterwards as before.

    Ray's core (RayLog::InstallFailureSignalHandler) writes stacks and aborts on it: nothing would be ended in
    order, neither by a scheduler's stop nor by the service's pause.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may say how it is handled
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None: another library's, in C, which Python cannot put back.
        if before is not None:
            signal.signal(signal.SIGTERM, before)
