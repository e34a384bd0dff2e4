"""The one seam between a trial and what serves it: an Engine gives an Endpoint, or fails with a cause.

`vllm_server` is the real one, `simulated` plays in virtual time; both pass the same tests.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.node.phases import Phases
from cluster.order import Cause, Limits, Order, Ran
from cluster.traffic.workload import Workload
from objectives.allowance import Allowance
from objectives.measurement import Record, Sample
from search_spaces.values import Json

LOG_NAME = "engine.log"
"""In the trial's folder: what the engine wrote."""


class EngineFailure(Exception):
    """The engine did not do what was asked.

    Attributes:
        cause: which of the closed set.
        reason: one line that a person can act on.
        records, samples: what had been seen of the replay by then.
        ran: what was known of an engine that never gave an endpoint; None where an endpoint can tell.
    """

    def __init__(
        self,
        cause: Cause,
        reason: str,
        *,
        records: tuple[Record, ...] = (),
        samples: tuple[Sample, ...] = (),
        ran: Ran | None = None,
    ) -> None:
        super().__init__(f"{cause}: {reason}")
        self.cause = cause
        self.reason = reason
        self.records = records
        self.samples = samples
        self.ran = ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One open-loop run of a workload: a record a request (trace order), samples in time order."""

    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    invalid: str | None = None
    """Why the client's own lateness or lack of CPU makes this replay void; None if it does not."""
    disturbed: str | None = None
    """What the engine did beside its load, compile say, that makes this replay doubtful; None: nothing."""
    warnings: tuple[str, ...] = ()
    """What a reader of these records and samples must know, one sentence each."""
    cut_s: float | None = None
    """When it was cut, the SLO being broken for certain; None: every request was seen through."""
    energy_j: float | None = None
    """Energy that the trial's accelerators took over it, joules; None where nothing counts it."""


class Endpoint(Protocol):
    """A serving engine, ready for requests."""

    @property
    def version(self) -> str | None: ...
    @property
    def hardware(self) -> str | None: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def effective(self) -> Mapping[str, Json]:
        """Settings as the engine reports them."""
        ...

    @property
    def launch(self) -> str:
        """How it was started; see `Ran.launch`."""
        ...

    @property
    def stages_s(self) -> Mapping[str, float]:
        """When its log first told of each stage of the start; see `Ran.stages_s`."""
        ...

    def warm_up(self, workload: Workload) -> None:
        """Play requests that are not of the trace until compilation and caches have settled."""
        ...

    def reset_caches(self) -> None:
        """Empty the prefix cache and prove it. Raises EngineFailure where it cannot be."""
        ...

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        """Replay open loop. Raises EngineFailure where the engine dies or gets stuck.

        With an allowance the replay is cut as soon as more requests than it allows are certain to have
        missed the SLO. Requests that this leaves unfinished have `objectives.allowance.CUT` as their error.
        """
        ...

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        """Replay with so many requests in flight, in the trace's order. Raises EngineFailure as `play`."""
        ...


class Engine(Protocol):
    """Something that can serve an order's config."""

    @property
    def name(self) -> str:
        """ "vllm" or "simulated"."""
        ...

    def serve(
        self, order: Order, folder: Path, phases: Phases | None = None
    ) -> AbstractContextManager[Endpoint]:
        """Start, wait until ready, check that what was asked is in effect; stop on leaving.

        Writes `LOG_NAME` into `folder`. Raises EngineFailure on entering; leaves nothing running
        and no memory taken either way. Tells `phases` what it waits for, the stages of its start, and how
        far a replay is, where it knows.
        """
        ...
