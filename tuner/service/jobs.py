"""What the service queues: a study or an ablation, who asked for it and what became of it. Shapes only."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from search_spaces.values import Json


class Kind(StrEnum):
    """What a job runs."""

    STUDY = "study"
    ABLATION = "ablation"


class State(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    """Asked to end; its process still runs."""
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def active(self) -> bool:
        """Whether a process runs for it, or should."""
        return self in (State.RUNNING, State.STOPPING)

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it unless somebody asks."""
        return not self.active and self is not State.QUEUED


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the queue."""

    id: str
    sequence: int
    """In the order of submission."""
    kind: Kind
    study: str
    user: str
    request: Mapping[str, Json]
    """What its process is asked: a study's or an ablation's (`tuner.service.child`)."""
    simulated: bool
    gpus: int
    """Most GPUs of one trial; 0: served by CPU, or simulated."""
    state: State
    wanted: State | None = None
    """What a job that is stopping becomes: paused or cancelled."""
    place: str | None = None
    """Where it runs, or ran last."""
    queued: datetime
    started: datetime | None = None
    ended: datetime | None = None
    reason: str | None = None
    """Why it ended."""
    deaths: int = 0
    """How often its process died since it last finished a trial."""
    done_at_death: int = -1
    """Finished trials when its process died last; -1: it has not."""
    idempotency_key: str | None = None
