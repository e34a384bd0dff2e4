"""Where trials tell their phases and the driver reads them: nodes know no way to a driver but through this.

On Ray it is an actor of the driver's, gone with it. Its calls return at once.
"""

from collections import defaultdict

from cluster.phase import Phase


class PhaseBoard:
    """Phases that the driver has not taken yet, by the sending of a trial that told them."""

    def __init__(self) -> None:
        self._told: defaultdict[int, list[Phase]] = defaultdict(list)

    def tell(self, sending: int, phase: Phase) -> None:
        """Add a phase; one that is no new phase but further in the last replaces it."""
        told = self._told[sending]
        if told and told[-1].is_further(phase):
            told.pop()
        told.append(phase)

    def take(self) -> dict[int, tuple[Phase, ...]]:
        """All that was told since this was last called, each sending's in order."""
        told, self._told = self._told, defaultdict(list)
        return {sending: tuple(phases) for sending, phases in told.items()}
