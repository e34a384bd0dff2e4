"""Which replays one engine start serves.

The workload's own speed comes first and is always played whole, so that every trial of a study has latencies
at one and the same load, request by request. The capacity is looked for after it, by replays that are cut
as soon as their verdict is certain. `cluster.node.measured` makes the trial's numbers of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.node.engine import Endpoint, EngineFailure, Replay
from cluster.node.phases import Phases
from cluster.order import CapacityLoad, Cause, ClosedLoop, Order
from objectives.allowance import CUT, Allowance, misses_known
from objectives.bar import Bar, highest
from objectives.capacity import CapacitySearch, SpeedGrid, Verdicts, capacity_estimate
from objectives.drift import drift
from objectives.repeats import combine
from objectives.slo import Slo
from objectives.summary import summarise

COARSE = 1.25
"""How far apart two speeds may lie between which a capacity stays that cannot reach the front: near enough to
tell the sampler what the config is worth, and as a rule what a guess and one stride find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One replay of a trial."""

    speed: float
    replay: Replay
    misses: int
    held: bool


class Loads:
    """The replays of one trial, as they are played. What was played is there however the trial ends."""

    def __init__(self, order: Order, phases: Phases) -> None:
        self._order = order
        self._phases = phases
        self._begun = 0
        self._requests = len(order.workload.trace.requests)
        self._allowance = Allowance.of(order.slo, self._requests)
        self.played: list[Played] = []
        """In the order they were played, the void ones left out."""
        self.found: CapacitySearch | None = None
        self.beaten_by: Bar | None = None
        """What of the front the capacity is certain to stay below; it was not looked for any closer."""
        self.remarks: list[str] = []
        """What a reader must know of how the replays went, one sentence each."""

    def play(self, endpoint: Endpoint) -> None:
        """Play all that the order asks for. Raises EngineFailure, also where the client was late twice."""
        load = self._order.load
        if isinstance(load, ClosedLoop):
            self._play_whole(endpoint)
            return
        for _ in range(load.repeats):
            self._play_whole(endpoint)
        if isinstance(load, CapacityLoad):
            self._find_capacity(endpoint, load)

    def _play_whole(self, endpoint: Endpoint) -> None:
        speed = self._order.workload.speed
        replay = self._valid(endpoint, speed, cut=False)
        _refuse_unanswered(replay)
        self._keep(speed, replay)

    def _find_capacity(self, endpoint: Endpoint, load: CapacityLoad) -> None:
        grid = grid_of(self._order, load)
        search = self.found = CapacitySearch(grid, load.guess)
        held = sum(played.held for played in self.played)
        search.tell(0, held=2 * held > len(self.played))
        bar = self._bar(load)
        while (k := search.next()) is not None:
            if bar is not None and self._out_of_reach(search, grid, bar):
                self.beaten_by = bar
                return
            replay = self._valid(endpoint, grid.speed(k), cut=True)
            search.tell(k, held=self._keep(grid.speed(k), replay).held)

    def _bar(self, load: CapacityLoad) -> Bar | None:
        """The capacity to beat, once the workload's own speed was played; None where any may be worth it."""
        if not load.bars:
            return None
        seen = [
            summarise(
                played.replay.records,
                played.replay.samples,
                slo=self._order.slo,
                max_num_seqs=None,
                percentiles=self._order.percentiles,
            )
            for played in self.played
        ]
        return highest(load.bars, combine(seen))

    def _out_of_reach(self, search: CapacitySearch, grid: SpeedGrid, bar: Bar) -> bool:
        """Whether the capacity is certain to be no better than the bar, and known well enough for that."""
        if search.held is None or search.failed is None:
            return False
        held, failed = grid.speed(search.held), grid.speed(search.failed)
        if failed > bar.speed or failed > COARSE * held:
            return False
        highest_yet = capacity_estimate(held, self.verdicts(), self._order.slo.attainment).high
        return highest_yet is not None and highest_yet <= bar.speed

    def verdicts(self) -> list[Verdicts]:
        """Of every replay so far, at its speed."""
        return [Verdicts(played.speed, _met(played.replay, self._order.slo)) for played in self.played]

    def _valid(self, endpoint: Endpoint, speed: float, *, cut: bool) -> Replay:
        """A replay whose client was not late, or whose verdict stands although it was."""
        replay = self._replay(endpoint, speed, cut=cut)
        doubt = self._doubt(replay)
        if doubt is not None and not (cut and self._holds(replay)):
            self.remarks.append(f"a replay at speed {speed:.4g} was played again: {doubt}")
            replay = self._replay(endpoint, speed, cut=cut)
        if replay.invalid is None:
            again = replay.disturbed
            return replay if again is None else replace(replay, warnings=(*replay.warnings, again))
        if cut and self._holds(replay):
            # Latency counts from the due time: a late client can break an SLO, never keep it.
            self.remarks.append(f"the SLO held at speed {speed:.4g}, though {replay.invalid}")
            return replay
        raise EngineFailure(
            Cause.CLIENT_LATE,
            f"at speed {speed:.4g}, twice in a row: {replay.invalid}",
            records=replay.records,
            samples=replay.samples,
        )

    def _doubt(self, replay: Replay) -> str | None:
        """Why a replay should be played again. Only a trial's first one may have begun too cold."""
        return replay.invalid or replay.disturbed or (None if self.played else drift(replay.records))

    def _replay(self, endpoint: Endpoint, speed: float, *, cut: bool) -> Replay:
        order = self._order
        self._begun += 1
        offered = None if isinstance(order.load, ClosedLoop) else speed
        self._phases.replaying(self._begun, speed=offered, requests=self._requests)
        endpoint.reset_caches()
        if isinstance(order.load, ClosedLoop):
            return endpoint.play_closed(order.workload, order.load.concurrency, order.limits)
        workload = replace(order.workload, speed=speed)
        return endpoint.play(workload, order.limits, allowance=self._allowance if cut else None)

    def _holds(self, replay: Replay) -> bool:
        return misses_known(replay.records, self._order.slo, replay.cut_s) <= self._allowance.misses

    def _keep(self, speed: float, replay: Replay) -> Played:
        misses = misses_known(replay.records, self._order.slo, replay.cut_s)
        played = Played(speed=speed, replay=replay, misses=misses, held=misses <= self._allowance.misses)
        self.played.append(played)
        return played


def grid_of(order: Order, load: CapacityLoad) -> SpeedGrid:
    """The speeds that a trial may be played at."""
    return SpeedGrid(
        reference=order.workload.speed,
        resolution=load.resolution,
        lowest=load.lowest,
        highest=load.highest,
    )


def _met(replay: Replay, slo: Slo) -> NDArray[np.bool_]:
    """(n,) whether each request that was decided met the SLO, in order of due times, as `Verdicts` has it.

    Taking the undecided ones of a cut replay for met would leave it hardly below the SLO's share, whatever
    the engine was heading for, and the capacity without an upper end.
    """
    ordered = sorted(replay.records, key=lambda record: (record.due_s, record.request))
    decided = (
        record for record in ordered if record.error != CUT or misses_known((record,), slo, replay.cut_s) > 0
    )
    return np.array([slo.met_by(record) for record in decided], dtype=np.bool_)


def _refuse_unanswered(replay: Replay) -> None:
    """Raise EngineFailure for a replay in which nobody was served."""
    if any(record.ok for record in replay.records):
        return
    errors = [record.error or "no token" for record in replay.records]
    reason = f"none of {len(errors)} requests succeeded; the first: {errors[0]}" if errors else "no requests"
    raise EngineFailure(_cause(errors), reason, records=replay.records, samples=replay.samples)


def _cause(errors: Sequence[str]) -> Cause:
    """Of a replay in which every request failed while the engine lived."""
    if all(error.startswith("HTTP 4") for error in errors):
        return Cause.INVALID_ARGUMENT  # refused, each of them: a context too short for the trace, say
    if all("timed out" in error for error in errors):
        return Cause.STUCK
    return Cause.DIED_UNDER_LOAD
