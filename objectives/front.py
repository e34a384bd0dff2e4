"""The Pareto front of trials' losses: who is on it, how much it covers, who cannot be told apart.

All losses minimise. A trial without a measurement (None), or with a loss that is not a finite number, is
never on a front and never keeps another trial off it, whatever the objectives' directions.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from objectives.bootstrap import Array
from objectives.measurement import Estimate

Losses = Sequence[Sequence[float] | None] | Array
"""One row a trial, one column an objective; None where a trial failed."""


def loss_array(losses: Losses) -> Array:
    """(n, m) array of the losses; a failed trial is a row of NaN.

    Raises ValueError for rows of different lengths.
    """
    if isinstance(losses, np.ndarray):
        rows = np.asarray(losses, dtype=np.float64)
        if rows.ndim != 2:
            raise ValueError(f"losses are (trials, objectives), got shape {rows.shape}")
        return rows
    lengths = {len(row) for row in losses if row is not None}
    if len(lengths) > 1:
        raise ValueError(f"trials have different numbers of losses: {sorted(lengths)}")
    m = lengths.pop() if lengths else 1
    return np.array([[math.nan] * m if row is None else list(row) for row in losses], np.float64).reshape(
        -1, m
    )


def non_dominated(losses: Losses) -> NDArray[np.bool_]:
    """Mark the trials that no other trial dominates.

    A trial dominates another if it is nowhere worse and somewhere better, so exact duplicates do not
    dominate each other and are all kept.

    Returns:
        (n,) mask.
    """
    rows = loss_array(losses)
    mask = np.zeros(len(rows), dtype=np.bool_)
    valid = np.flatnonzero(np.isfinite(rows).all(axis=1))
    # In lexicographic order no trial is dominated by a later one, so only the front so far can dominate.
    order = valid[np.lexsort(rows[valid].T[::-1])]
    front = np.empty((0, rows.shape[1]))
    for index in order:
        row = rows[index]
        if not ((front <= row).all(axis=1) & (front < row).any(axis=1)).any():
            mask[index] = True
            front = np.vstack((front, row))
    return mask


def hypervolume(losses: Losses, reference: Sequence[float]) -> float:
    """Volume between the front and a reference point, exact for any number of objectives.

    Trials that are not better than the reference in every objective add nothing.

    Source: L. While, L. Bradstreet, L. Barone, "A fast way of calculating exact hypervolumes", IEEE TEC
    16(1), 2012; a sweep in two dimensions.
    """
    rows = loss_array(losses)
    corner = np.asarray(reference, dtype=np.float64)
    if not np.isfinite(corner).all():
        raise ValueError(f"a reference point is finite, got {tuple(reference)}")
    inside = rows[np.isfinite(rows).all(axis=1)]
    if len(inside) == 0:
        return 0.0
    if inside.shape[1] != len(corner):
        raise ValueError(f"{inside.shape[1]} losses a trial, but the reference point has {len(corner)}")
    inside = inside[(inside < corner).all(axis=1)]
    return _volume(np.unique(inside[non_dominated(inside)], axis=0), corner)


def indistinguishable(estimates: Sequence[Sequence[Estimate] | None]) -> list[tuple[int, int]]:
    """Pairs of trials whose intervals overlap on every objective, as (earlier, later) indices.

    An end that is None bounds nothing, so without intervals trials cannot be told apart. Overlap is not
    transitive: a ~ b and b ~ c do not make a ~ c. It is also careful: two trials that overlap here may
    still differ when their requests are paired (`objectives.statistics.compare`).

    Args:
        estimates: one row a trial; None where it failed.
    """
    low, high = _bounds(estimates)
    overlap = (low[:, None, :] <= high[None, :, :]).all(axis=2)
    first, second = np.nonzero(np.triu(overlap & overlap.T, k=1))
    return [(int(i), int(j)) for i, j in zip(first, second, strict=True)]


def possibly_on_front(loss_estimates: Sequence[Sequence[Estimate] | None]) -> NDArray[np.bool_]:
    """Mark the trials that may be on the front, given their intervals.

    A trial is ruled out only by one that dominates it even if the other's losses are at their worst ends
    and its own at their best. Every trial of `non_dominated` is marked.

    Args:
        loss_estimates: one row a trial, as `Goal.loss_estimates` gives; None where it failed.

    Returns:
        (n,) mask.
    """
    best, worst = _bounds(loss_estimates)
    nowhere_worse = (worst[:, None, :] <= best[None, :, :]).all(axis=2)
    somewhere_better = (worst[:, None, :] < best[None, :, :]).any(axis=2)
    mask = np.ones(len(best), dtype=np.bool_)
    mask[np.isnan(best).any(axis=1)] = False
    mask[(nowhere_worse & somewhere_better).any(axis=0)] = False
    return mask


def _volume(front: Array, corner: Array) -> float:
    """Hypervolume of distinct, mutually non-dominated points, all better than the corner."""
    if len(front) == 0:
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - front[:, 0].min())
    if len(corner) == 2:
        first, second = front[np.argsort(front[:, 0])].T
        widths = np.append(first[1:], corner[0]) - first
        return float(widths @ (corner[1] - second))
    # Each point adds its own box less what later points cover of it. Worst last objective first keeps the
    # fronts of the remainders small.
    front = front[np.argsort(-front[:, -1])]
    total = 0.0
    for i, point in enumerate(front):
        covered = np.maximum(front[i + 1 :], point)
        covered = np.unique(covered[non_dominated(covered)], axis=0)
        total += float(np.prod(corner - point)) - _volume(covered, corner)
    return total


def _bounds(estimates: Sequence[Sequence[Estimate] | None]) -> tuple[Array, Array]:
    """Low and high ends, (n, m) each: infinite where unknown, NaN where the trial has no finite value."""

    def low(estimate: Estimate) -> float:
        return -math.inf if estimate.low is None else estimate.low

    def high(estimate: Estimate) -> float:
        return math.inf if estimate.high is None else estimate.high

    def ends(row: Sequence[Estimate] | None) -> tuple[list[float], list[float]] | None:
        if row is None or not all(math.isfinite(estimate.value) for estimate in row):
            return None
        return [low(estimate) for estimate in row], [high(estimate) for estimate in row]

    pairs = [ends(row) for row in estimates]
    lows = loss_array([None if pair is None else pair[0] for pair in pairs])
    highs = loss_array([None if pair is None else pair[1] for pair in pairs])
    return lows, highs
