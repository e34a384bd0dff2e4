"""What a replay's rates are counted over, and whether its queue was still growing at its end. Pure.

A replay begins with an empty engine and ends with one that no more requests come to. Two things keep that
out of its rates. A request counts when its first token comes, not when it ends, so an engine that is still
filling misses nothing. And the time after the last first token, in which the engine only empties, is left
out: the window ends there. docs/measurement.md has what else was tried, and how wrong each was.

A replay whose requests take about as long as it lasts never came to a steady state: whether the engine
could have gone on like that is not to be seen. The less steady it was, the more of its tail counts.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from objectives.measurement import Record

SETTLED = 1 / 3
UNSETTLED = 2 / 3
"""Median E2E over the time in which requests were due: up to the first the tail is left out, from the
second on it counts in full, and between it counts in part, so that no config gains by crossing a line."""

GROWING_BATCHES = 8
"""Means that the backlog of a replay's second half is reduced to, so that neighbours count once."""
GROWING_LEVEL = 0.01
"""One-sided level of the slope's t-test."""
GROWING_SHARE = 0.1
"""Of the requests that came in the second half, how many must have been added to the backlog in it."""
_FEWEST = 5 * GROWING_BATCHES
"""Requests below which the backlog has no trend to be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the rates of a replay are counted over."""

    start_s: float
    """First due time."""
    end_s: float
    """Last first token, or last due time where that is later; with more or less of the tail after it."""
    tail_share: float
    """How much of the tail is in it: 0 where there was a steady state, 1 where there was none."""

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def rate(self, requests: int) -> float:
        """Requests per second, all of the replay's counted. So many are one fewer gaps between them."""
        return (requests - 1 + self.tail_share) / self.length_s


def steady_window(records: Sequence[Record]) -> Window:
    """The window of a replay with at least one answered request."""
    first_due = min(record.due_s for record in records)
    last_due = max(record.due_s for record in records)
    answered = [record for record in records if record.ok]
    admitted = max(last_due, *(record.chunk_s[0] for record in answered))
    over = max(last_due, *(record.chunk_s[-1] for record in answered))
    lasted = last_due - first_due
    took = statistics.median(record.e2e_s for record in answered)
    # Everything due at once: nothing but tail.
    unsteady = took / lasted if lasted > 0 else UNSETTLED
    tail_share = min(max((unsteady - SETTLED) / (UNSETTLED - SETTLED), 0.0), 1.0)
    return Window(
        start_s=first_due,
        end_s=admitted + tail_share * (over - admitted),
        tail_share=tail_share,
    )


def unsettled(records: Sequence[Record]) -> str | None:
    """Why a replay's rates count some of its tail, in one sentence; None where they do not."""
    if not any(record.ok for record in records) or steady_window(records).tail_share == 0:
        return None
    took = statistics.median(record.e2e_s for record in records if record.ok)
    lasted = max(record.due_s for record in records) - min(record.due_s for record in records)
    return (
        f"no steady state: half of the requests took {took:.3g} s or more, and they came within "
        f"{lasted:.3g} s ({took / SETTLED:.3g} s would do): "
        "rates count the time to work them off, and are low"
    )


LATE = 1 / 4
"""Share of the requests, the last ones, whose first tokens tell when a window may as well have ended."""


def rate_reach(records: Sequence[Record], window: Window) -> tuple[float, float]:
    """How far the interval of a window's rate goes down and up from it, over the rate.

    The requests are given, so what varies of their rate is when the window ends: with the first token of a
    late request, which came as long after it was due as for any of the late ones. The 2.5 % and 97.5 %
    quantiles of those times are the interval's ends. Nothing for a window that does not end like that.
    """
    ordered = sorted((record for record in records if record.ok), key=lambda record: record.due_s)
    late = ordered[-max(1, math.ceil(LATE * len(ordered))) :]
    if len(late) < 2:
        return 0.0, 0.0
    soon, long = np.quantile([record.ttft_s for record in late], [0.025, 0.975])
    last_due = max(record.due_s for record in records)
    usual = float(np.median([record.ttft_s for record in late]))
    length = window.length_s
    shortest = max(length - (usual - float(soon)), last_due - window.start_s, length / 2)
    longest = length + (float(long) - usual)
    return 1 - length / longest, max(length / shortest - 1, 0.0)


def still_growing(records: Sequence[Record]) -> str | None:
    """Says that requests came faster than they were seen through until the last one; None if not so seen.

    The backlog (requests due and not yet over) as every request of the second half finds it, as means of
    neighbours. It grows if its slope against time is above 0 by a t-test, and if it grew by a share of the
    requests that matters.
    """
    ordered = sorted(records, key=lambda record: record.due_s)
    late = ordered[len(ordered) // 2 :]
    if len(ordered) < _FEWEST or late[-1].due_s == late[0].due_s:
        return None
    due = np.array([record.due_s for record in late])
    over = np.sort([record.chunk_s[-1] if record.chunk_s else record.due_s for record in ordered])
    backlog = np.arange(len(ordered) - len(late), len(ordered)) - np.searchsorted(over, due, side="right")
    at = np.array([part.mean() for part in np.array_split(due, GROWING_BATCHES)])
    mean = np.array([part.mean() for part in np.array_split(backlog, GROWING_BATCHES)])
    centred = at - at.mean()
    slope = float(centred @ mean / (centred @ centred))
    if slope * (due[-1] - due[0]) < GROWING_SHARE * len(late):
        return None
    rest = mean - mean.mean() - slope * centred
    error = np.sqrt(float(rest @ rest) / (GROWING_BATCHES - 2) / float(centred @ centred))
    if slope <= float(student.ppf(1 - GROWING_LEVEL, GROWING_BATCHES - 2)) * error:
        return None
    return (
        "the queue was still growing when the last request came: a longer trace would give a lower capacity"
    )
