"""The front's few points measured once more, on other traffic: in turn, the control among them, twice each.

runs/<study>/drift/<trace>/trials/0000 …   one folder a run, as a trial's (`tuner.records`)

What is there is not run again, so it goes on where it was stopped.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cluster.dispatch.dispatch import Dispatch
from cluster.node.secrecy import secret_values
from cluster.order import Failed, Order, Outcome
from tuner import __version__
from tuner.first_speed import begun_at
from tuner.records import StoredTrial, read_trials, write_outcome
from tuner.study import ATTEMPTS, QUIET_S, locked

DRIFT = "drift"
ROUNDS = 2
"""Two runs tell what differs from run to run; each round has all configs, so drift of a node falls on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one config."""

    number: int
    """Of its folder."""
    config: StoredTrial
    """The study's trial whose config it is."""
    repeats: int | None
    """The run before it of the same config."""


def planned(configs: Sequence[StoredTrial]) -> tuple[Run, ...]:
    """All runs, round after round."""
    many = len(configs)
    return tuple(
        Run(number=round_ * many + place, config=config, repeats=place if round_ else None)
        for round_ in range(ROUNDS)
        for place, config in enumerate(configs)
    )


def measure(
    folder: Path,
    runs: Sequence[Run],
    order: Callable[[Run], Order],
    dispatch: Dispatch,
    say: Callable[[str], None],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> tuple[StoredTrial, ...]:
    """Run what is left; all that was measured, by number. However it ends, nothing is left running.

    Args:
        folder: of these runs, below the study's.
        order: of a run.

    Raises:
        StudyError: another process has the study.
        OSError: a run cannot be written to disk.
    """
    with locked(folder.parent.parent):
        finished = {trial.number: trial for trial in read_trials(folder)}
        try:
            for run in _left(runs, finished):
                say(f"run {run.number + 1} of {len(runs)}: trial {run.config.number} on the new traffic")
                finished[run.number] = _one(folder, run, order(run), dispatch, finished, now)
        except BaseException:
            dispatch.cancel()
            raise
    return tuple(finished[number] for number in sorted(finished))


def _left(runs: Sequence[Run], finished: dict[int, StoredTrial]) -> Iterator[Run]:
    """A config that failed by its own fault is not run again."""
    for run in runs:
        first = finished.get(run.repeats) if run.repeats is not None else None
        lost = first is not None and first.cause is not None and first.cause.blames_config
        if run.number not in finished and not lost:
            yield run


def _played(order: Order, dispatch: Dispatch) -> Outcome:
    dispatch.submit(order)
    while True:
        landed = dispatch.next(timeout_s=QUIET_S)
        if landed is not None and landed[0] == order.number:
            return landed[1]


def _one(
    folder: Path,
    run: Run,
    order: Order,
    dispatch: Dispatch,
    finished: dict[int, StoredTrial],
    now: Callable[[], datetime],
) -> StoredTrial:
    order = begun_at(order, finished.values())
    attempt, started, outcome = 1, now(), _played(order, dispatch)
    while isinstance(outcome, Failed) and not outcome.cause.blames_config and attempt < ATTEMPTS:
        attempt, started, outcome = attempt + 1, now(), _played(order, dispatch)
    secrets = secret_values({**os.environ, **order.environment})
    stored = StoredTrial.of(
        order,
        outcome,
        config=run.config.config,
        is_control=run.config.is_control,
        attempts=attempt,
        started=started,
        finished=now(),
        tuner_version=__version__,
        secrets=secrets,
        repeats=run.repeats,
    )
    write_outcome(folder, stored, outcome, secrets=secrets)
    return stored
