"""The measuring: one run after the other, each on disk before anything else may fail.

`ablate` is a generator of events, as a search is. Runs are sent out one at a time, whatever room there is, so
that cells are compared undisturbed and in the order that the design drew. A run that is on disk is never run
again; a cell that the engine refused is not asked of it in later blocks either.
"""

import os
import statistics
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from cluster.dispatch.dispatch import Dispatch
from cluster.node.secrecy import secret_values
from cluster.order import Failed, Order, Outcome
from objectives.factorial import Cell
from search_spaces.arguments import Rendered
from tuner import __version__
from tuner.ablation.plan import Cells, PlannedRun, Runs, write_design
from tuner.first_speed import begun_at
from tuner.models import localised
from tuner.records import StoredTrial, read_trials, write_outcome
from tuner.study import ATTEMPTS, QUIET_S, locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """How far an ablation is."""

    done: int
    total: int
    """Runs in all, without those of cells that turned out to fail."""
    eta_s: float | None
    """Until the last one is over; None while there is nothing to go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A cell was sent out."""

    run: PlannedRun
    cell: str
    far: Far


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaiting:
    """Nothing has happened for a while."""

    cell: str
    running_s: float
    far: Far


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetried:
    """A cell was sent out again, for something that says nothing about its config."""

    cell: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """A cell has an outcome, and it is on disk."""

    run: PlannedRun
    cell: str
    stored: StoredTrial
    far: Far


AblationEvent = RunStarted | RunWaiting | RunRetried | RunFinished


class Recorder(Protocol):
    """Keeps what was measured where people look. Never raises for want of that place."""

    def __call__(self, finished: Sequence[StoredTrial], *, over: bool) -> object:
        """`over`: nothing more runs now, so what they show is to be drawn."""


def to_do(plan: Runs, finished: Sequence[StoredTrial]) -> tuple[PlannedRun, ...]:
    """The runs that are left, in order.

    A cell that failed, by its own fault and without ever being measured, is left out of later blocks; where
    that is none on, nothing is left, since effects are told against it.
    """
    done = {trial.number for trial in finished}
    failed = lost_cells(plan, finished)
    if frozenset[str]() in failed:
        return ()
    return tuple(run for run in plan.runs if run.number not in done and run.cell not in failed)


def lost_cells(plan: Runs, finished: Sequence[StoredTrial]) -> dict[Cell, StoredTrial]:
    """Cells that the engine would not run or not survive, with the run that told so."""
    cells = {run.number: run.cell for run in plan.runs}
    measured = {cells[trial.number] for trial in finished if trial.measurement and trial.number in cells}
    return {
        cells[trial.number]: trial
        for trial in finished
        if trial.number in cells
        and trial.cause is not None
        and trial.cause.blames_config
        and cells[trial.number] not in measured
    }


def expected_s(trials: Sequence[StoredTrial]) -> float | None:
    """Seconds that a run may take: the median of measured ones; None where none was."""
    took = [_took_s(trial) for trial in trials if trial.measurement is not None]
    return statistics.median(took) if took else None


def cell_order(plan: Cells, base: Order, run: PlannedRun) -> Order:
    """The study's own order, for this run's cell."""
    settings = plan.settings(run.cell)
    rendered = Rendered(
        model=settings.model,
        arguments=dict(settings.arguments),
        environment=dict(settings.environment),
        gpus=plan.gpus(run.cell),
    )
    if plan.study.engine != "simulated":
        rendered = localised(rendered)
    return replace(
        base,
        number=run.number,
        model=rendered.model,
        arguments=rendered.arguments,
        environment=rendered.environment,
        gpus=rendered.gpus,
        accelerator=plan.space.resources.accelerator if rendered.gpus else None,
    )


def ablate(
    plan: Runs,
    trials: Sequence[StoredTrial],
    order: Callable[[PlannedRun], Order],
    dispatch: Dispatch,
    recorder: Recorder,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Generator[AblationEvent, None, None]:
    """Run what is left of an ablation. However it ends, nothing is left running.

    Args:
        trials: the study's, for how long a run takes and at what speed a capacity is looked for first.
        order: the order of a run's cell.

    Raises:
        StudyError: another process has this study.
        OSError: a run cannot be written to disk.
    """
    with locked(plan.folder.parent.parent):
        write_design(plan)
        driver = _Driver(plan, trials, order, dispatch, recorder, now, list(read_trials(plan.folder)))
        ended = False
        try:
            yield from driver.run()
            ended = True
        finally:
            if not ended:
                dispatch.cancel()
                recorder(driver.finished, over=True)


@dataclass(slots=True)
class _Driver:
    plan: Runs
    trials: Sequence[StoredTrial]
    order: Callable[[PlannedRun], Order]
    dispatch: Dispatch
    recorder: Recorder
    now: Callable[[], datetime]
    finished: list[StoredTrial]

    def run(self) -> Iterator[AblationEvent]:
        while left := to_do(self.plan, self.finished):
            run, cell = left[0], self.plan.name(left[0].cell)
            order = begun_at(self.order(run), self.trials)
            started, attempts = self.now(), 1
            self.dispatch.submit(order)
            yield RunStarted(run=run, cell=cell, far=self._far())
            self.recorder(self.finished, over=False)  # while it runs, since MLflow may take seconds
            while True:
                landed = self.dispatch.next(timeout_s=QUIET_S)
                if landed is None:
                    seconds = (self.now() - started).total_seconds()
                    yield RunWaiting(cell=cell, running_s=seconds, far=self._far())
                    continue
                number, outcome = landed
                if number != run.number:
                    continue
                if isinstance(outcome, Failed) and not outcome.cause.blames_config and attempts < ATTEMPTS:
                    attempts += 1
                    started = self.now()
                    self.dispatch.submit(order)
                    yield RunRetried(cell=cell, reason=f"{outcome.cause}: {outcome.reason}")
                    continue
                break
            stored = self._store(run, order, outcome, attempts, started)
            yield RunFinished(run=run, cell=cell, stored=stored, far=self._far())
        self.recorder(self.finished, over=True)

    def _store(
        self, run: PlannedRun, order: Order, outcome: Outcome, attempts: int, started: datetime
    ) -> StoredTrial:
        secrets = secret_values({**os.environ, **order.environment})
        stored = StoredTrial.of(
            order,
            outcome,
            config=self.plan.levels(run.cell),
            is_control=self.plan.is_control(run.cell),
            attempts=attempts,
            started=started,
            finished=self.now(),
            tuner_version=__version__,
            secrets=secrets,
        )
        write_outcome(self.plan.folder, stored, outcome, secrets=secrets)
        self.finished.append(stored)
        return stored

    def _far(self) -> Far:
        left = len(to_do(self.plan, self.finished))
        each_s = expected_s(self.finished) or expected_s(self.trials)
        done = len(self.finished)
        return Far(done=done, total=done + left, eta_s=None if each_s is None else each_s * left)


def _took_s(trial: StoredTrial) -> float:
    """On the node where that is known: waiting for room is not in it."""
    total = trial.ran.total_s
    return (trial.finished - trial.started).total_seconds() if total is None else total
