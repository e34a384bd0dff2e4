"""Expected hypervolume improvement, in closed form, of independent normal or lognormal losses.

The part of the loss space that no point of the front dominates is cut into boxes along the front's own
coordinates. In a box with corners l and u a point y gains Π ((u_j − y_j)⁺ − (l_j − y_j)⁺), and for
independent losses the expectation goes into the product. Exact for any number of objectives; the boxes are
(k + 1)^m, so with three and more a long front is thinned.

Source: M. Emmerich, K. Yang, A. Deutz et al., "A multicriteria generalization of Bayesian global
optimization", 2016; the partial expectation of a lognormal is F. Black, M. Scholes, JPE 81(3), 1973.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from objectives.front import non_dominated

Array = NDArray[np.float64]

Link = Literal["normal", "lognormal", "negative lognormal"]
"""What a loss is to the normal variable z: z itself, e^z, or −e^−z (a value that is maximised, on a log)."""

BOXES = 20_000


@dataclass(frozen=True, slots=True)
class Believed:
    """Independent beliefs on one loss of n candidates: mean and standard deviation of z."""

    mean: Array
    sd: Array
    link: Link
    least: float = -np.inf
    """No loss can be below this: what is believed to be counts as this."""

    def below(self, bound: float) -> Array:
        """(n,) E[(bound − loss)⁺]."""
        if bound <= self.least:
            return np.zeros(len(self.mean))
        if self.least == -np.inf:
            return self._below(bound)
        # (bound − max(loss, least))⁺ = (bound − loss)⁺ − (least − loss)⁺
        return np.asarray(np.maximum(self._below(bound) - self._below(self.least), 0.0))

    def _below(self, bound: float) -> Array:
        mean, sd = self.mean, np.maximum(self.sd, 1e-9)
        part: Array
        if self.link == "normal":
            z = (bound - mean) / sd
            part = sd * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
        elif self.link == "lognormal":
            if bound <= 0:
                return np.zeros(len(mean))
            d = (np.log(bound) - mean) / sd
            part = bound * ndtr(d) - np.exp(mean + sd**2 / 2) * ndtr(d - sd)
        else:
            whole = np.exp(-mean + sd**2 / 2)
            if bound >= 0:
                return np.asarray(whole + bound)
            d = (-mean - np.log(-bound)) / sd
            part = whole * ndtr(d + sd) + bound * ndtr(d)
        return np.asarray(np.maximum(part, 0.0))


def expected_improvement(believed: Sequence[Believed], front: Array, reference: Array) -> Array:
    """(n,) expected gain in hypervolume of each candidate.

    Args:
        believed: one an objective.
        front: (k, m) losses; what is dominated or beyond the reference does not matter.
        reference: (m,) the corner that volumes are measured from.
    """
    m = len(reference)
    inside = front[(front < reference).all(axis=1)] if len(front) else np.zeros((0, m))
    inside = np.unique(inside[non_dominated(inside)], axis=0) if len(inside) else inside
    inside = _thinned(inside, m)
    if m == 1:
        return believed[0].below(float(inside.min()) if len(inside) else float(reference[0]))
    if m == 2:
        return _strips(believed, inside, reference)
    cuts = [np.append(np.unique(inside[:, j]), reference[j]) for j in range(m)]
    gains = [_gains(b, c) for b, c in zip(believed, cuts, strict=True)]
    free = np.ones([len(c) for c in cuts], dtype=np.bool_)
    for point in inside:
        # Boxes that begin at or above the point in every axis are dominated by it.
        starts = [int(np.searchsorted(c, v)) + 1 for c, v in zip(cuts, point, strict=True)]
        free[tuple(slice(start, None) for start in starts)] = False
    total: NDArray[np.floating] = np.tensordot(gains[-1], free.astype(np.float64), axes=(1, m - 1))
    for gain in reversed(gains[:-1]):
        total = np.einsum("n...k,nk->n...", total, gain)
    return np.asarray(total, dtype=np.float64)


def _gains(believed: Believed, cuts: Array) -> Array:
    """(n, k) expected share of each interval between cuts, the first open to below."""
    below = np.stack([believed.below(float(cut)) for cut in cuts], axis=1)
    shares: Array = np.maximum(np.diff(below, axis=1, prepend=0.0), 0.0)
    return shares


def _strips(believed: Sequence[Believed], front: Array, reference: Array) -> Array:
    """Two objectives: strips along the first, each open below the second loss of the point to its left."""
    ordered = front[np.argsort(front[:, 0])]
    widths = _gains(believed[0], np.append(ordered[:, 0], reference[0]))
    heights = np.stack([believed[1].below(float(v)) for v in np.append(reference[1], ordered[:, 1])], axis=1)
    gained: Array = (widths * heights).sum(axis=1)
    return gained


def _thinned(front: Array, m: int) -> Array:
    """Few enough points for the boxes, evenly along the first loss, both ends kept."""
    most = len(front) if m <= 2 else max(int(BOXES ** (1 / m)) - 1, 2)
    if len(front) <= most:
        return front
    ordered = front[np.argsort(front[:, 0])]
    kept: Array = ordered[np.unique(np.linspace(0, len(ordered) - 1, most).round().astype(int))]
    return kept
