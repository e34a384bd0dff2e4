"""What phase a trial on this node is in, told as it changes to whoever listens. It waits for nobody."""

from collections.abc import Callable
from dataclasses import replace

from cluster.phase import Phase, PhaseName


def _nobody(phase: Phase) -> None: ...


class Phases:
    """One trial's.

    Args:
        hear: given each phase as it is entered, and about once a second how far a replay is. It is called
            from the trial's own thread, so it must be quick, and must not raise.
    """

    def __init__(self, hear: Callable[[Phase], None] = _nobody) -> None:
        self._hear = hear
        self._now: Phase | None = None

    def waiting_for_memory(self) -> None:
        self._enter(Phase(name=PhaseName.MEMORY))

    def starting(self, stage: str | None = None) -> None:
        """The stage as in `Phase`."""
        self._enter(Phase(name=PhaseName.STARTING, stage=stage))

    def warming_up(self) -> None:
        self._enter(Phase(name=PhaseName.WARMING_UP))

    def replaying(self, replay: int, *, speed: float | None, requests: int) -> None:
        """A replay begins; arguments as in `Phase`."""
        self._enter(Phase(name=PhaseName.REPLAYING, replay=replay, speed=speed, requests=requests))

    def ended(self, requests: int) -> None:
        """So many requests of the replay have ended in the engine."""
        if self._now is not None and self._now.name is PhaseName.REPLAYING:
            self._enter(replace(self._now, ended=requests))

    def probing(self) -> None:
        self._enter(Phase(name=PhaseName.PROBING))

    def stopping(self) -> None:
        self._enter(Phase(name=PhaseName.STOPPING))

    def summarising(self) -> None:
        self._enter(Phase(name=PhaseName.SUMMARISING))

    def _enter(self, phase: Phase) -> None:
        if phase != self._now:
            self._now = phase
            self._hear(phase)
