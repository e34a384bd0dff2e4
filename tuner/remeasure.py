"""The end of a study's budget: how much of it measures configs again, which, and when enough is known. Pure.

Everything is read off the trials that have finished and the repeats that are under way, so a search that was
killed goes on as it would have gone. A config goes by the number of its first trial.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from objectives.front import possibly_on_front
from objectives.measurement import Estimate
from objectives.statistics import CONFIDENCE
from tuner.front import FrontView, losses
from tuner.promise import Promise
from tuner.records import StoredTrial

Array = NDArray[np.float64]

FRESH = 2
"""Fresh measurements that what is recommended gets, where the budget allows."""
SMALLEST = 6
"""Trials of a study from which one is kept: of fewer, exploring needs every one."""
CONTROL_FROM = 5
"""Repeats of a study from which one is the control's, to show what drifted meanwhile."""
PATIENCE = 10
"""Measured configs in a row that must not have improved the front before exploring is called settled."""

_NORMAL = float(ndtri((1 + CONFIDENCE) / 2))


def reserve(total: int) -> int:
    """How many of a study's trials measure configs again: a tenth, two from 10 trials on, one from 6 on."""
    if total < SMALLEST:
        return 0
    return 1 if total < 10 else max(total // 10, FRESH)


def owed(seen: FrontView, total: int, under_way: Mapping[int, int]) -> int:
    """How many repeats are still to be sent out: what is left of the reserve, and what the best lacks.

    The best may lack some though the reserve is spent where a finished study was resumed with a larger total.

    Args:
        under_way: repeats sent out and not finished, by config.
    """
    kept = reserve(total)
    spent = sum(trial.repeats is not None for trial in seen.trials) + sum(under_way.values())
    best = next(iter(seen.best_first), None)
    lacking = 0 if best is None else FRESH - _times(seen.promise(best.number), under_way)
    return max(kept - spent, min(kept, lacking), 0)


def next_repeat(seen: FrontView, total: int, under_way: Mapping[int, int]) -> int | None:
    """The config to measure again next; None where no config has a score.

    First the recommended one until it has its fresh measurements, then one that looks better and has not.
    Then, once, the control of a study with many repeats. Then whoever may be on the front, the least certain
    first.
    """
    chosen = seen.recommended
    if chosen is None:
        return None
    for trial in (chosen, seen.best_first[0]):
        if _times(seen.promise(trial.number), under_way) < FRESH:
            return trial.number
    if reserve(total) >= CONTROL_FROM:
        for trial in seen.control:
            if losses(seen.goal, trial) and not _times(seen.promise(trial.number), under_way):
                return trial.number
    return _least_certain(seen, under_way)


def settled(seen: FrontView) -> bool:
    """Whether exploring has stopped to pay: none of the last `PATIENCE` measured configs improved the front.

    A config improves it if no config before it is as good in every objective as it is at the worst ends of
    its intervals. First measurements count, by number; failures say nothing.
    """
    first = [promise.first for promise in seen.promises]
    rows = [row for trial in first if (row := _estimates(seen, trial)) is not None]
    values = np.array([[one.value for one in row] for row in rows])
    worst = np.array([[one.value if one.high is None else one.high for one in row] for row in rows])
    if len(rows) <= PATIENCE:
        return False
    return all(
        bool((values[:place] <= worst[place]).all(axis=1).any())
        for place in range(len(rows) - PATIENCE, len(rows))
    )


def rivals(seen: FrontView) -> tuple[int, ...]:
    """Configs whose intervals of the first objective leave open that they are better than the recommended.

    An end that is not known counts as lying as far away as the other; where neither is, anything may be.
    """
    chosen = seen.recommended
    if chosen is None or (row := _estimates(seen, chosen)) is None:
        return ()
    _, bound = _reaching(row[0])
    return tuple(
        trial.number
        for trial in seen.standing
        if trial.number != chosen.number
        and (other := _estimates(seen, trial)) is not None
        and _reaching(other[0])[0] < bound
    )


def stable(seen: FrontView) -> bool:
    """Whether measuring again would hardly recommend another config.

    The recommended one has its fresh measurements, and so has every config that may be better.
    """
    chosen = seen.recommended
    if chosen is None:
        return False
    return all(len(seen.promise(number).fresh) >= FRESH for number in (chosen.number, *rivals(seen)))


def standing_text(seen: FrontView) -> str | None:
    """How sure the recommendation is, in words; None where there is none."""
    chosen = seen.recommended
    if chosen is None:
        return None
    fresh = len(seen.promise(chosen.number).fresh)
    if not fresh:
        return f"trial {chosen.number}, the best, was not measured again"
    again = f"trial {chosen.number} is recommended, measured again {times_text(fresh)}"
    others = rivals(seen)
    if not others:
        return f"{again}, and no other may be better"
    who = f"trial{'' if len(others) == 1 else 's'} {', '.join(map(str, others))}"
    if stable(seen):
        return f"{again}; {who} may be as good, measured again as well"
    return f"{again}; {who} may be as good, not measured again as often"


def times_text(count: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _times(promise: Promise, under_way: Mapping[int, int]) -> int:
    return len(promise.fresh) + under_way.get(promise.first.number, 0)


def _estimates(seen: FrontView, trial: StoredTrial) -> tuple[Estimate, ...] | None:
    """The trial's losses with their intervals; None where it has no score."""
    if losses(seen.goal, trial) is None or trial.measurement is None:
        return None
    return seen.goal.loss_estimates(trial.measurement)


def _reaching(estimate: Estimate) -> tuple[float, float]:
    """Both ends of an interval, one that is not known mirrored from the other."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if low is None:
        return (-math.inf, math.inf) if high is None else (2 * value - high, high)
    return low, 2 * value - low if high is None else high


def _least_certain(seen: FrontView, under_way: Mapping[int, int]) -> int | None:
    """Of those that may be on the front: where one more measurement tells most."""
    standing = seen.standing
    rows = [_estimates(seen, trial) for trial in standing]
    possible = np.flatnonzero(possibly_on_front(rows))
    if not len(possible):
        return None
    doubts = doubt([row for index in possible.tolist() if (row := rows[index]) is not None])

    def merit(place: int) -> tuple[float, int, int]:
        number = standing[int(possible[place])].number
        times = _times(seen.promise(number), under_way)
        return -float(doubts[place]) / (1 + times), times, number

    return standing[int(possible[min(range(len(possible)), key=merit)])].number


def doubt(rows: Sequence[Sequence[Estimate]]) -> Array:
    """(n,) how uncertain it is that each is on the front: p (1 - p), 0.25 at the most.

    p: that no other dominates it, as if losses were normal with the deviations that their intervals have, and
    as if the others dominated it independently of each other. It ranks; it is no probability to quote.
    """
    values = np.array([[one.value for one in row] for row in rows])
    deviations = np.array([[_deviation(one) for one in row] for row in rows])
    apart = values[:, None, :] - values[None, :, :]
    together = np.hypot(deviations[:, None, :], deviations[None, :, :])
    # Without deviations the sign decides.
    scaled = np.where(together > 0, apart / np.where(together > 0, together, 1.0), np.copysign(np.inf, apart))
    beaten: Array = ndtr(np.where(apart == 0, 0.0, scaled)).prod(axis=2)
    np.fill_diagonal(beaten, 0.0)
    p: Array = (1 - beaten).prod(axis=1)
    return p * (1 - p)


def _deviation(estimate: Estimate) -> float:
    ends = [abs(end - estimate.value) for end in (estimate.low, estimate.high) if end is not None]
    return sum(ends) / len(ends) / _NORMAL if ends else 0.0
