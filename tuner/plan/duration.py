"""How long a trial takes, from studies that ran, else from a simulation and an assumption that is said."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.dispatch.in_process import InProcess
from cluster.node.simulated import SimulatedEngine
from cluster.order import Measured, Order
from objectives.measurement import Measurement
from search_spaces.space import Space
from tuner.loads import mode
from tuner.plan.shapes import DurationReport
from tuner.records import STUDY, RecordError, StoredTrial, StudyFile, read_study, read_trials

LOADING_BYTES_S = 1e9
"""Weights from disk to the device. Rough: local disks give more, a network less."""

UP_S = 60.0
"""The rest of an engine's start: imports, profiling, graphs. Rough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A real study that tells how long trials of this space take."""

    study: StudyFile
    trials: tuple[StoredTrial, ...]
    """Measured ones."""


def past_studies(runs: Path, space: Space) -> tuple[Past, ...]:
    """Studies under the runs folder that measured this space's model on an engine, the latest first.

    What cannot be read is left aside.
    """
    found = []
    for path in sorted(runs.glob(f"*/{STUDY}")):
        try:
            study = read_study(path.parent)
            if study.space_name != space.name or study.engine == "simulated":
                continue
            measured = tuple(trial for trial in read_trials(path.parent) if trial.measurement is not None)
        except RecordError:
            continue
        if measured:
            found.append(Past(study=study, trials=measured))
    return tuple(sorted(found, key=lambda past: past.study.created, reverse=True))


def duration_report(
    planned: StudyFile,
    past: Sequence[Past],
    orders: Iterable[Order],
    *,
    trials: int,
    gpus: int,
    weights: float | None,
) -> DurationReport:
    """What the trials of a planned study would take.

    Args:
        past: of the same space, the latest first.
        orders: a few of its trials, to be simulated where no study tells.
        gpus: of one trial.
        weights: bytes that one device loads; None: not known.
    """
    start_s, start_from = _start(past, weights)
    same = [p for p in past if p.study.trace_digest == planned.trace_digest and _same_load(p.study, planned)]
    replay_s: float | None
    if same:
        spent = [t.ran.total_s - (t.ran.start_s or 0.0) for t in same[0].trials if t.ran.total_s is not None]
        replay_s = statistics.median(spent) if spent else None
        replay_from = (
            f"the median of {len(spent)} trials of {same[0].study.name}, checks and stopping included"
        )
    else:
        played = _simulated(orders)
        replay_s = statistics.fmean(played) if played else None
        replay_from = (
            f"{len(played)} configs on the simulated engine; warm-up and stopping not included"
            if played
            else "nothing: the simulated engine cannot play these configs"
        )
    return DurationReport(
        trials=trials,
        start_s=start_s,
        start_from=start_from,
        replay_s=replay_s,
        replay_from=replay_from,
        gpus=gpus,
    )


def _start(past: Sequence[Past], weights: float | None) -> tuple[float, str]:
    for one in past:
        starts = [trial.ran.start_s for trial in one.trials if trial.ran.start_s is not None]
        if starts:
            return statistics.median(starts), f"the median of {len(starts)} trials of {one.study.name}"
    if weights is None:
        return UP_S, f"an assumption: {UP_S:g} s, and the weights' size is not known"
    return (
        UP_S + weights / LOADING_BYTES_S,
        f"an assumption: {UP_S:g} s and the weights at {LOADING_BYTES_S / 1e9:g} GB/s, nothing of it cached",
    )


def _same_load(one: StudyFile, other: StudyFile) -> bool:
    return mode(one) is mode(other) and one.options.get("speed") == other.options.get("speed")


def _simulated(orders: Iterable[Order]) -> list[float]:
    """Seconds of replay that each order would take, by the simulated engine's own clock."""
    dispatch = InProcess(SimulatedEngine())
    played = []
    for order in orders:
        dispatch.submit(order)
        landed = dispatch.next()
        if landed is not None and isinstance(landed[1], Measured):
            played.append(replayed_s(landed[1].measurement))
    return played


def replayed_s(measurement: Measurement) -> float:
    """All replays of a trial together."""
    return sum(point.took_s for point in measurement.curve) or measurement.duration_s
