"""What the first-order model expects of measured configs on other traffic, and who is then on the front.

A config's numbers are those that were measured, times the ratio of what the model predicts on the new traffic
to what it predicts on the old: what the model gets wrong alike on both cancels. Of that ratio's logarithm the
model is taken to be wrong by `MODEL_ERROR` (one standard deviation), once for all configs together and once
for each by itself: `search_spaces.first_order` is right to a few tens of per cent. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from objectives.bootstrap import Array
from objectives.measurement import Estimate

MODEL_ERROR = 0.3
DRAWS = 4000
_NORMAL = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """Of each config, (n,) each."""

    before: Array
    """Chance that another config dominates it, by the errors of the measurements alone."""
    now: Array
    """The same on the new traffic."""


def chances(losses: Sequence[Sequence[Estimate]], ratios: Array, *, seed: int = 0) -> Chances:
    """Who is off the front.

    Args:
        losses: one row a config, one column an objective; as measured.
        ratios: (n, m) what the model expects each loss to be multiplied by.
    """
    rng = np.random.default_rng(seed)
    values = np.array([[one.value for one in row] for row in losses])
    deviations = np.array([[_deviation(one) for one in row] for row in losses])
    shape = (DRAWS, *values.shape)
    measured = values + deviations * rng.standard_normal(shape)
    logs = np.log(ratios)
    shared = logs.mean(axis=0)
    error = shared * rng.standard_normal((DRAWS, 1, 1)) + (logs - shared) * rng.standard_normal(shape)
    return Chances(before=dominated(measured), now=dominated(measured * np.exp(logs + MODEL_ERROR * error)))


def dominated(draws: Array) -> Array:
    """(n,) share of draws, (d, n, m), in which another config is nowhere worse and somewhere better."""
    configs: int = draws.shape[1]
    count = np.zeros(configs)
    for one in range(configs):
        own = draws[:, one : one + 1, :]
        beaten = np.logical_and((draws <= own).all(axis=2), (draws < own).any(axis=2))
        count[one] = beaten.any(axis=1).mean()
    return count


def _deviation(estimate: Estimate) -> float:
    """Of a normal error with this interval; 0 where no end is known."""
    ends = [abs(end - estimate.value) for end in (estimate.low, estimate.high) if end is not None]
    finite = [end for end in ends if np.isfinite(end)]
    return sum(finite) / len(finite) / _NORMAL if finite else 0.0
