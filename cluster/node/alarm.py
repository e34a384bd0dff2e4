"""Waking at a time on the monotonic clock to within microseconds, without spinning.

Timers of the event loops count whole milliseconds, and so does the wait for sockets beneath them. A timer of
the kernel that is waited for like a socket (timerfd_create(2)) is exact, and costs two system calls a time.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import time
from types import TracebackType
from typing import Self

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
"""Both from linux/time.h and linux/timerfd.h. `time.perf_counter` reads that very clock on Linux."""


class _Spec(ctypes.Structure):
    """struct itimerspec: a period, which stays zero, and a time."""

    _fields_ = (
        ("period_s", ctypes.c_long),
        ("period_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class Alarm:
    """Wakes whoever waits, each at a time of its own. A context manager, within a running event loop."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = -1
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        """Keeps two that wait for the same time apart, in their order."""

    def __enter__(self) -> Self:
        self._timer = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._timer, self._ring)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._timer)
        os.close(self._timer)

    async def until(self, at_s: float) -> None:
        """Return when `time.perf_counter` has come to `at_s`, never before; at once where it has."""
        if at_s <= time.perf_counter():
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (at_s, next(self._numbers), waiter))
        if self._waiting[0][2] is waiter:
            self._set(at_s)
        await waiter

    def _ring(self) -> None:
        """Wake all whose time has come, and set the timer to the next one's."""
        try:
            os.read(self._timer, 8)
        except BlockingIOError:  # set to another time between its ringing and this call
            return
        now_s = time.perf_counter()
        while self._waiting and (self._waiting[0][0] <= now_s or self._waiting[0][2].done()):
            waiter = heapq.heappop(self._waiting)[2]
            if not waiter.done():  # cancelled meanwhile
                waiter.set_result(None)
        if self._waiting:
            self._set(self._waiting[0][0])

    def _set(self, at_s: float) -> None:
        # Rounded up: a nanosecond too late rings after the time, one too early would ring for nothing.
        seconds, fraction = divmod(at_s, 1.0)
        spec = _Spec(0, 0, int(seconds), min(999_999_999, int(fraction * 1e9) + 1))
        if self._libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
