"""Arrivals that their recorder rounded, spread over the time that it rounded away.

A trace whose 12,031 requests stand on 1,180 timestamps would otherwise be replayed as bursts that never
were, and a tuner would tune for them.
"""

from collections.abc import Sequence

import numpy as np

_FEWEST = 10
"""Below so many requests nobody can tell rounding from chance."""


def quantum(arrivals_s: Sequence[float]) -> float | None:
    """The step in seconds that arrivals were rounded to, or None where they were not.

    They are taken for rounded where two requests or more share a timestamp on average; the step is the
    median gap between the timestamps.
    """
    stamps = np.unique(np.array(arrivals_s, dtype=np.float64))
    if len(arrivals_s) < _FEWEST or len(stamps) < 2 or 2 * len(stamps) > len(arrivals_s):
        return None
    return float(np.median(np.diff(stamps)))


def spread(arrivals_s: Sequence[float], step_s: float, *, seed: int = 0) -> list[float]:
    """Ascending arrivals, each moved by less than a step, and none past a later timestamp.

    Requests of one timestamp are spread over the time up to the next one, by a step at most, as a
    Poisson process of so many arrivals would place them: at uniform times, in order. The same arrivals
    and seed give the same result.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    stamps, counts = np.unique(np.array(arrivals_s, dtype=np.float64), return_counts=True)
    room = np.minimum(np.append(np.diff(stamps), step_s), step_s)
    moved: list[float] = []
    for stamp, count, width in zip(stamps, counts, room, strict=True):
        moved += (stamp + np.sort(random.random(count)) * width).tolist()
    return moved
