"""What a trial is doing, in words that its node tells and a person is shown. Nothing is decided by them."""

import enum
from dataclasses import dataclass, replace


class PhaseName(enum.StrEnum):
    """What a trial goes through, in this order. It may leave some out, and replays several times."""

    SENT = "sent out"
    """It waits for a worker on its node, or for what others run there to end."""
    FETCHING = "fetching the model"
    """Its node does, for all that wait for it there; then the trial is sent out."""
    MEMORY = "waiting for memory"
    """Of its GPUs, which somebody else holds."""
    STARTING = "starting the engine"
    WARMING_UP = "warming up"
    REPLAYING = "replaying"
    PROBING = "checking quality"
    """Asking what the quality of its answers is judged by."""
    STOPPING = "stopping the engine"
    SUMMARISING = "summarising"
    """What was recorded, into numbers with their intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Where a trial is."""

    name: PhaseName
    stage: str | None = None
    """Of a start, as far as the engine's log tells it: see `cluster.node.start_stages`."""
    replay: int | None = None
    """Which replay of the trial, from 1, those that turn out void among them."""
    speed: float | None = None
    """Of the replay; None in a closed loop, which has none."""
    requests: int | None = None
    """Of the replay, in all."""
    ended: int | None = None
    """How many of them the engine had done with; None where it does not say."""

    @property
    def text(self) -> str:
        """`starting the engine: loading weights`, `replay 3 at speed 1.25, 45 %`."""
        if self.replay is None:
            return self.name.value if self.stage is None else f"{self.name.value}: {self.stage}"
        at = "" if self.speed is None else f" at speed {self.speed:.3g}"
        done = (
            "" if self.ended is None or not self.requests else f", {min(self.ended / self.requests, 1):.0%}"
        )
        return f"replay {self.replay}{at}{done}"

    def is_further(self, other: "Phase") -> bool:
        """Whether the other is the same phase, at most further in it."""
        return replace(self, ended=None) == replace(other, ended=None)
