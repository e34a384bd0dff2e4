"""How many draft tokens are accepted, drawn ahead of the play so that every config sees the same luck."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

METHODS = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
"""Values of `speculative_config.method` that the simulated engine plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How drafts fare. Rough defaults; calibrate on measured acceptance."""

    rate: float
    """Probability that a draft token is accepted, given that those before it were (geometric)."""
    found: float = 1.0
    """Share of sequences and steps in which there is a draft at all (n-gram lookup finds nothing else)."""
    positions: tuple[float, ...] | None = None
    """Measured instead: probability that the draft is accepted up to and with each position, from the
    first. Positions beyond the last measured go on with `rate`."""

    def by_position(self, depth: int) -> NDArray[np.float64]:
        """(depth,) probability that the draft is accepted up to and with each position; never rising."""
        known = list(self.positions or ())[:depth]
        last = known[-1] if known else 1.0
        return np.array([*known, *(last * self.rate ** (i + 1) for i in range(depth - len(known)))])


DEFAULT_ACCEPTANCE: Mapping[str, Acceptance] = {
    "ngram": Acceptance(rate=0.65, found=0.4),
    "draft_model": Acceptance(rate=0.7),
    "eagle": Acceptance(rate=0.7),
    "eagle3": Acceptance(rate=0.78),
    "mtp": Acceptance(rate=0.8),
    # An untrained draft: 1 of 66 tokens was accepted on the CPU engine.
    "SmolLM2-135M-draft": Acceptance(rate=0.015),
}
"""By method, or by a draft model's name (the last part of its id or path), which takes precedence."""


def ngram_acceptance(base: Acceptance, lookup_min: int, *, known_at: int = 2) -> Acceptance:
    """Longer matches are found less often and hold for longer. The two factors are assumptions.

    Args:
        base: how drafts fare where matches of `known_at` tokens are the shortest.
        lookup_min: the shortest matches asked for.
    """
    if lookup_min == known_at:
        return base
    factor = 0.85 ** (lookup_min - known_at)

    def held(rate: float) -> float:
        return max(1 - (1 - rate) * factor, 0.0)

    positions, reached = [], 1.0
    for before, share in itertools.pairwise((1.0, *(base.positions or ()))):
        reached *= held(share / before) if before else 0.0
        positions.append(reached)
    return Acceptance(
        rate=held(base.rate),
        found=min(base.found * factor, 1.0),
        positions=None if base.positions is None else tuple(positions),
    )


def mean_length_rates(length: float, depth: int) -> tuple[float, ...]:
    """Acceptance by position whose mean accepted length, the target's own token included, is `length`.

    As vLLM 0.32 resolves `synthetic_acceptance_length` (config/speculative.py): so many positions always
    accepted, the next one at times, none after it. That varies least, and is not geometric.
    """
    return tuple(min(max(length - 1 - position, 0.0), 1.0) for position in range(depth))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each request emits, chunk by chunk, if it is never preempted.

    `delivered[r]` is the cumulative count of output tokens after each chunk: the first chunk is the
    prefill's token, every later one a decode step's. `accepted[r]` and `drafted[r]` belong to the decode
    steps; both are empty without speculation.
    """

    delivered: Sequence[NDArray[np.int64]]
    accepted: Sequence[NDArray[np.int64]] = field(default=())
    drafted: Sequence[NDArray[np.bool_]] = field(default=())


def plain_plan(outputs: Sequence[int]) -> Plan:
    """One token a chunk."""
    counting = np.arange(1, max(outputs, default=0) + 1)
    return Plan(delivered=[counting[:n] for n in outputs])


def speculative_plan(outputs: Sequence[int], acceptance: Acceptance, depth: int, seed: int) -> Plan:
    """Draw acceptance for every possible decode step of every request.

    The draws depend on the seed and the request alone, so a deeper draft accepts at least what a
    shallower one did at the same step, whatever the batch.
    """
    steps = [max(n - 1, 0) for n in outputs]
    ends = list(itertools.accumulate(steps))
    draws = np.random.default_rng([seed, 1]).random((2, ends[-1] if ends else 0))
    drafted = draws[1] < acceptance.found
    # The smaller the draw, the longer the accepted run: it reaches position i where draw < p_i.
    rising = acceptance.by_position(depth)[::-1]
    accepted = depth - np.searchsorted(rising, draws[0], side="right")
    accepted[~drafted] = 0
    delivered, kept, tried = [], [], []
    for asked, start, end in zip(outputs, [0, *ends], ends, strict=False):
        reach = np.cumsum(accepted[start:end] + 1)
        taken = int(np.searchsorted(reach, asked - 1)) + 1 if asked > 1 else 0
        counts = np.ones(taken + 1, dtype=np.int64)
        np.minimum(reach[:taken] + 1, asked, out=counts[1:])
        delivered.append(counts)
        kept.append(accepted[start : start + taken])
        tried.append(drafted[start : start + taken])
    return Plan(delivered=delivered, accepted=kept, drafted=tried)
