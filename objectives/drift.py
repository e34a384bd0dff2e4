"""Whether the beginning of a replay was slowed by something that is not load. Pure.

An engine that still compiles a kernel, captures a graph or touches memory for the first time stands still
with requests waiting, and never does so again. Load does not look like that: as long as anyone is served,
tokens come. So the telling sign is a stall, a time with requests in flight in which no token comes for any
of them, at the beginning of a replay and far longer than any that follow. A long prompt that is computed
while nobody decodes is such a time too; how long it may take is judged by the prompts of the rest.

A beginning that is slower without standing still is seen only beside a second replay of the same requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from objectives.bootstrap import Array
from objectives.measurement import Record

BEGINNING = 1 / 3
"""Share of the requests, in order of due times, that are the beginning where stalls are looked for."""
FACTOR = 3.0
"""How many times as long as the longest stall of the rest one of the beginning must be."""
SHORTEST_S = 0.2
"""A stall below this is no compilation."""
FEWEST = 30
"""Requests below which the rest says too little about what is usual."""

PAIRED_BEGINNING = 0.1
PAIRED_FEWEST = 50
PAIRED_FACTOR = 1.1
"""How much slower the beginning must be in the first of two replays, the rest taken into account."""
PAIRED_LEVEL = 0.001
"""Of the rank test. Strict, as neighbouring requests are not independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Times without a token for anyone though someone was waiting, in order; arrays of one length.

    Every time between two tokens is one, however short.
    """

    start_s: Array
    """The token before, or the sending of the first request after nobody was in flight."""
    length_s: Array


def stalls(records: Sequence[Record]) -> Stalls:
    """All stalls of a replay. Requests without a token are not known to have been waiting."""
    served = [record for record in records if record.chunk_s and record.sent_s is not None]
    if not served:
        return Stalls(start_s=np.empty(0), length_s=np.empty(0))
    sent = np.sort(np.array([record.sent_s for record in served], dtype=np.float64))
    over = np.sort([record.chunk_s[-1] for record in served])
    token_s = np.unique(np.concatenate([record.chunk_s for record in served]))
    before = np.concatenate(([-math.inf], token_s[:-1]))
    left = np.searchsorted(sent, before, side="right")
    waiting = left > np.searchsorted(over, before, side="right")
    start = np.where(waiting, before, sent[np.minimum(left, len(sent) - 1)])
    return Stalls(start_s=start, length_s=np.maximum(token_s - start, 0.0))


def drift(records: Sequence[Record]) -> str | None:
    """Why this replay's beginning does not count, in one sentence; None where nothing is wrong with it.

    A stall of the beginning counts if it is longer than `SHORTEST_S` and `FACTOR` times as long as any
    stall of the rest, and as its prompt would have taken at the rest's pace.
    """
    if len(records) < FEWEST:
        return None
    ordered = sorted(records, key=lambda record: record.due_s)
    bound = int(BEGINNING * len(ordered))
    found = stalls(records)
    early = found.start_s < ordered[bound].due_s
    if early.all() or not early.any():
        return None
    longest = float(found.length_s[~early].max())
    far = early & (found.length_s > max(FACTOR * longest, SHORTEST_S))
    pace = _pace(ordered[bound:])
    for start, length in zip(found.start_s[far].tolist(), found.length_s[far].tolist(), strict=True):
        if length > FACTOR * pace * _prompt(records, start + length, length):
            return (
                f"the engine gave nobody a token for {length:.2g} s at {max(start, 0.0):.3g} s, and for no "
                f"more than {longest:.2g} s after the beginning: something other than load held it up"
            )
    return None


def _computed(record: Record) -> int:
    """Prompt tokens that were not in the prefix cache."""
    return max(record.tokens_in - (record.cached_tokens or 0), 1)


def _pace(rest: Sequence[Record]) -> float:
    """Seconds that a prompt token takes at the most.

    The least of two that are both too long: TTFT, in which a request also waits, and the time between two
    requests, in which others decode and nobody may be there.
    """
    served = [record for record in rest if record.ok and record.sent_s is not None]
    if not served:
        return 0.0
    alone = min((record.chunk_s[0] - (record.sent_s or 0.0)) / _computed(record) for record in served)
    first = [record.chunk_s[0] for record in served]
    return min(alone, (max(first) - min(first)) / sum(_computed(record) for record in served))


def _prompt(records: Sequence[Record], end_s: float, length_s: float) -> int:
    """The longest prompt whose first token ended a stall.

    First tokens of one step reach the client one after the other, so those soon after count as well.
    """
    soon_s = end_s + length_s / 10
    ending = (record for record in records if record.chunk_s and end_s - 1e-9 <= record.chunk_s[0] <= soon_s)
    return max((_computed(record) for record in ending), default=0)


def paired_drift(first: Sequence[Record], second: Sequence[Record]) -> str | None:
    """Why the beginning of `first` does not count, beside a later replay of the same requests; or None.

    TPOT of each request in the first over that in the second: those of the beginning against those of the
    rest, by their medians and by the rank-sum test (F. Wilcoxon 1945; H. Mann, D. Whitney 1947). TPOT,
    because waiting times near saturation multiply the smallest difference between two replays.
    """
    again = {record.request: record for record in second if record.ok and record.tpot_s > 0}
    pairs = [
        (record, again[record.request])
        for record in sorted(first, key=lambda record: record.due_s)
        if record.ok and record.tpot_s > 0 and record.request in again
    ]
    if len(pairs) < PAIRED_FEWEST:
        return None
    logs: NDArray[np.float64] = np.log([one.tpot_s / other.tpot_s for one, other in pairs])
    beginning, rest = np.split(logs, [int(PAIRED_BEGINNING * len(pairs))])
    slower = math.exp(float(np.median(beginning) - np.median(rest)))
    if slower < PAIRED_FACTOR:
        return None
    if mannwhitneyu(beginning, rest, alternative="greater").pvalue > PAIRED_LEVEL:
        return None
    return (
        f"the TPOT of the first {len(beginning)} requests was {slower:.2f} times that of a second replay, "
        "compared with the requests after them: the engine had not settled"
    )
