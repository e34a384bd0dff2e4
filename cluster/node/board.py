"""What the client's processes tell each other while they play: a few numbers in memory that they share.

The memory is a file without a name, open in those processes alone and gone with the last of them. A number
is eight bytes that are written at once, so none is ever read half; each has one writer.
"""

import math
import mmap
import os
from typing import Self

from cluster.node.watch import Stop, Stopped

_NUMBER = 8
_REASON_BYTES = 1024
_ZERO, _STOP, _STOP_AT, _REASON_LENGTH = range(4)
_HEAD = 4 + _REASON_BYTES // _NUMBER
_READY, _IN_FLIGHT, _PROGRESS, _MISSES, _BROKEN = range(5)
_ROW = 5
_KINDS = (None, *Stopped)
"""A stop by its number; 0 is none."""


class Board:
    """The parent writes when the replay begins and why it stops; each process writes how it stands.

    Args:
        descriptor: of the shared file, which stays the caller's to close.
        processes: how many play.
    """

    def __init__(self, descriptor: int, processes: int) -> None:
        self.descriptor = descriptor
        self.processes = processes
        self._memory = mmap.mmap(descriptor, (_HEAD + _ROW * processes) * _NUMBER)
        self._numbers = memoryview(self._memory).cast("d")

    @classmethod
    def new(cls, processes: int) -> Self:
        """A board with nothing on it."""
        descriptor = os.memfd_create("replay", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, (_HEAD + _ROW * processes) * _NUMBER)
        return cls(descriptor, processes)

    @property
    def zero_s(self) -> float | None:
        """Where `time.perf_counter` stands at the replay's zero; None: not said yet.

        The clock is the machine's own (CLOCK_MONOTONIC on Linux), so one number will do for every process.
        """
        return self._numbers[_ZERO] or None

    @zero_s.setter
    def zero_s(self, at: float) -> None:
        self._numbers[_ZERO] = at

    @property
    def stop(self) -> Stop | None:
        """What every process has to stop for."""
        kind = _KINDS[int(self._numbers[_STOP])]
        if kind is None:
            return None
        start = (_REASON_LENGTH + 1) * _NUMBER
        reason = self._memory[start : start + int(self._numbers[_REASON_LENGTH])]
        return Stop(kind=kind, reason=reason.decode(errors="ignore"), at_s=self._numbers[_STOP_AT])

    @stop.setter
    def stop(self, stop: Stop) -> None:
        reason = stop.reason.encode()[:_REASON_BYTES]
        start = (_REASON_LENGTH + 1) * _NUMBER
        self._memory[start : start + len(reason)] = reason
        self._numbers[_REASON_LENGTH] = len(reason)
        self._numbers[_STOP_AT] = stop.at_s
        self._numbers[_STOP] = _KINDS.index(stop.kind)  # last: whoever reads it finds the rest

    def be_ready(self, place: int) -> None:
        """Said by a process that can begin."""
        self._numbers[self._at(place, _READY)] = 1

    def report(self, place: int, *, in_flight: int, progress_s: float, misses: int) -> None:
        """How a process stands."""
        # Progress first: a request in flight since now must not be seen with the progress of long ago.
        self._numbers[self._at(place, _PROGRESS)] = progress_s
        self._numbers[self._at(place, _IN_FLIGHT)] = in_flight
        self._numbers[self._at(place, _MISSES)] = misses

    def report_broken(self, place: int, at_s: float) -> None:
        """When the last of a process's connections broke."""
        self._numbers[self._at(place, _BROKEN)] = at_s

    @property
    def ready(self) -> bool:
        """Whether every process is."""
        return all(self._column(_READY))

    @property
    def in_flight(self) -> int:
        return int(sum(self._column(_IN_FLIGHT)))

    @property
    def progress_s(self) -> float:
        """Last token of any request, or the last time that one left while its process had no other."""
        return max(self._column(_PROGRESS))

    @property
    def misses(self) -> int:
        return int(sum(self._column(_MISSES)))

    @property
    def broken_s(self) -> float:
        """When the last connection broke; -inf: none did."""
        return max(self._column(_BROKEN)) or -math.inf

    def close(self) -> None:
        """Give the memory back; the descriptor too."""
        self._numbers.release()
        self._memory.close()
        os.close(self.descriptor)

    def _at(self, place: int, field: int) -> int:
        return _HEAD + _ROW * place + field

    def _column(self, field: int) -> list[float]:
        return [self._numbers[self._at(place, field)] for place in range(self.processes)]
