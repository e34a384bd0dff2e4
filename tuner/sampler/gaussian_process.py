"""An exact Gaussian process for a few hundred points, its mean given from outside.

    y(x) = c + w · (m(x) − m̄) + m̄ + Σ_q d_q e_q(x) + Σ_p h_p(x_p) + g(x) + noise

m is a prediction from elsewhere (the prior), w in [0, 1] how far it is borne out, c what it is off by
everywhere. e_q is what the prediction claims that a parameter does to this very config, d_q by how much that
is wrong: −1 where the parameter does nothing, −2 where it does the reverse. So a few trials with a parameter
put right all that was predicted of it, whatever its values. What is left is a sum: h_p is what the
prediction is off by for each parameter's value whatever the others are, so that one trial of a choice tells
of all configs that make it; g, of all parameters, is the rest. Both are Matérn 5/2. Amplitudes, length
scales, noise, c and w are fitted together, by their posterior's mode; a prediction that explains nothing ends
at w = 0 and costs little. Small enough to be ours: the libraries that do this bring a second array stack and
take longer to import than to fit.

Sources: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006,
chapters 2 (2.7 for the d_q) and 5; for the sum, D. Duvenaud, H. Nickisch, C. E. Rasmussen, "Additive Gaussian
Processes", 2011.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

Array = NDArray[np.float64]

FITTED = 110
"""Points that hyperparameters are fitted to at most; the posterior is of all."""
REACH = 0.6
"""Length scale of every h_p, in the parameter's range: two choices, at distance 1, are nearly independent."""
_JITTER = 1e-8
_ITERATIONS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What is held of a function before it is seen: lognormal medians and spreads, in the values' unit."""

    claim: float = 0.15
    """Standard deviation of each d_q."""
    claim_spread: float = 1.0
    effect: float = 0.15
    """Standard deviation of each h_p."""
    effect_spread: float = 1.0
    signal: float = 0.2
    """Standard deviation of g."""
    signal_spread: float = 0.7
    noise: float = 0.05
    """Standard deviation of a measurement."""
    noise_spread: float = 0.4
    length: float = 1.0
    """Length scale of g, in an input's range; grows with the root of the number of parameters."""
    length_spread: float = 1.0
    offset: float = 0.4
    """Standard deviation of c."""
    doubt: float = 1.0
    """How fast belief in the prediction falls as w leaves 1: the log density falls by this down to 0."""
    least: float = 0.0
    """w at least."""
    weight: float | None = None
    """w itself, where it is not to be fitted."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Of one fitted process."""

    claims: Array
    """(claims,) standard deviation of each d_q."""
    expected: Array
    """(claims,) its mean: 0, unless something else tells of it."""
    effects: Array
    """(parameters,)"""
    lengths: Array
    """(parameters,)"""
    signal: float
    noise: float
    offset: float
    weight: float

    @property
    def variance(self) -> float:
        """Of the function around its mean, before any point, where nothing is claimed."""
        return float((self.effects**2).sum()) + self.signal**2

    def mean(self, told: "Told", centre: float) -> Array:
        """(n,) the mean function alone."""
        w = self.weight
        mean: Array = self.offset + w * told.mean + (1 - w) * centre + told.claims @ self.expected
        return mean

    def kernel(self, apart: "Distances", left: Array, right: Array) -> Array:
        """(n, k) covariance of the function at two sets of points.

        Args:
            left: (n, claims) of the ones.
            right: (k, claims) of the others.
        """
        kind = apart.squares.dtype
        whole = np.tensordot((self.lengths**-2.0).astype(kind), apart.squares, axes=1)
        effects = np.tensordot((self.effects**2).astype(kind), apart.effects, axes=1)
        joint = _matern(np.sqrt(whole))
        claims = (left * self.claims**2) @ right.T
        return np.asarray(effects + self.signal**2 * joint, dtype=np.float64) + claims


@dataclass(frozen=True, slots=True)
class Distances:
    """How far two sets of points are apart, for any hyperparameters. Models of the same points share them."""

    squares: Array
    """(parameters, n, k) squared, by parameter."""
    effects: Array
    """(parameters, n, k) covariance of an h_p of unit amplitude."""

    @classmethod
    def between(
        cls, left: Array, right: Array, groups: NDArray[np.intp], *, rough: bool = False
    ) -> "Distances":
        """Of every row to every other.

        Args:
            groups: (columns,) number of each column's parameter.
            rough: in single precision, twice as fast: enough to compare candidates, not to fit.
        """
        parameters = int(groups.max()) + 1 if len(groups) else 0
        kind = np.float32 if rough else np.float64
        squares = np.empty((parameters, len(left), len(right)), dtype=kind)
        for p in range(parameters):
            squares[p] = _squared(left[:, groups == p], right[:, groups == p])
        return cls(squares, _matern(np.sqrt(squares) / kind(REACH)))

    def to(self, places: NDArray[np.intp]) -> "Distances":
        """Those to some of the others."""
        return Distances(self.squares[:, :, places], self.effects[:, :, places])

    def first(self, rows: int, others: int | None = None) -> "Distances":
        """Those of the first points, to the first of the others where not to all."""
        return Distances(self.squares[:, :rows, :others], self.effects[:, :rows, :others])

    def among(self, places: NDArray[np.intp]) -> "Distances":
        """Of some points to each other, where these are of points to themselves."""
        square = np.ix_(np.arange(len(self.squares)), places, places)
        return Distances(self.squares[square], self.effects[square])


@dataclass(frozen=True, slots=True)
class Told:
    """What a prediction tells of n points."""

    mean: Array
    """(n,) m; all alike where nothing is predicted."""
    claims: Array
    """(n, claims) e_q."""

    @classmethod
    def flat(cls, mean: Array) -> "Told":
        """Without claims."""
        return cls(mean, np.zeros((len(mean), 0)))

    def take(self, places: NDArray[np.intp]) -> "Told":
        """Of these points."""
        return Told(self.mean[places], self.claims[places])

    def and_of(self, other: "Told") -> "Told":
        """Of these points and then the others."""
        return Told(np.concatenate([self.mean, other.mean]), np.concatenate([self.claims, other.claims]))


@dataclass(frozen=True, slots=True)
class Posterior:
    """What is known of the function after the points."""

    hyper: Hyperparameters
    _points: Array
    _groups: NDArray[np.intp]
    _claims: Array
    _factor: Array
    _weights: Array
    _centre: float
    evidence: float
    """Log likelihood of the values that it was conditioned on."""

    def wrong(self) -> tuple[Array, Array]:
        """(claims,) mean and standard deviation of each d_q."""
        prior = self.hyper.claims**2
        if len(self._points) == 0:
            return self.hyper.expected, self.hyper.claims
        mean = self.hyper.expected + prior * (self._claims.T @ self._weights)
        explained = solve_triangular(self._factor, self._claims * prior, lower=True, check_finite=False)
        return mean, np.sqrt(np.maximum(prior - (explained**2).sum(axis=0), 1e-12))

    def at(self, points: Array, told: Told, apart: Distances | None = None) -> tuple[Array, Array]:
        """(n,) mean and standard deviation of the function itself, without noise.

        Args:
            apart: from these points to those that it was conditioned on, where that is known.
        """
        variance = self.hyper.variance + told.claims**2 @ self.hyper.claims**2
        if len(self._points) == 0:
            return self.hyper.mean(told, self._centre), np.sqrt(variance)
        apart = apart or Distances.between(points, self._points, self._groups)
        cross = self.hyper.kernel(apart, told.claims, self._claims)
        mean = self.hyper.mean(told, self._centre) + cross @ self._weights
        explained = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        return mean, np.sqrt(np.maximum(variance - (explained**2).sum(axis=0), 1e-12))


def fit(
    points: Array,
    values: Array,
    told: Told,
    groups: NDArray[np.intp],
    beliefs: Beliefs,
    *,
    apart: Distances | None = None,
) -> Hyperparameters:
    """The posterior's mode, by L-BFGS from the beliefs' medians. The same for the same data.

    Args:
        points: (n, columns)
        values: (n,)
        groups: (columns,) number of each column's parameter.
        apart: of the points to each other, where that is known.
    """
    if len(points) > FITTED:
        kept = np.unique(np.linspace(0, len(points) - 1, FITTED).round().astype(np.intp))
        points, values, told = points[kept], values[kept], told.take(kept)
        apart = None if apart is None else apart.among(kept)
    parameters, claims = int(groups.max()) + 1 if len(groups) else 0, told.claims.shape[1]
    start = _start(claims, parameters, beliefs)
    if len(points) < 2:
        return believed_start(beliefs, claims, parameters)
    apart = apart or Distances.between(points, points, groups)
    objective = _Objective(apart, values, told, beliefs, start)
    scales = claims + 2 * parameters + 2
    bounds = [
        *[(start[i] - 4, start[i] + 4) for i in range(scales)],
        (None, None),
        (beliefs.least, 1.0) if beliefs.weight is None else (start[-1], start[-1]),
    ]
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
    )
    return _unpacked(found.x, claims, parameters)


def believed_start(beliefs: Beliefs, claims: int, parameters: int) -> Hyperparameters:
    """Those of a process that nothing was fitted to."""
    return _unpacked(_start(claims, parameters, beliefs), claims, parameters)


def posterior(
    points: Array,
    values: Array,
    told: Told,
    groups: NDArray[np.intp],
    hyper: Hyperparameters,
    *,
    centre: float,
    pending: Array | None = None,
    pending_told: Told | None = None,
    apart: Distances | None = None,
) -> Posterior:
    """The process given these points.

    Args:
        centre: m̄, what the prediction is drawn towards as its weight falls: its mean where it was fitted.
        pending: (k, columns) points under way. They are taken as measured where they are expected: that moves
            no mean, and leaves nothing to be found beside them.
        apart: of the points and then those under way to each other, where that is known.
    """
    if pending is None or pending_told is None or len(pending) == 0:
        return _conditioned(points, values, told, groups, hyper, centre, apart)
    every = np.concatenate([points, pending])
    apart = apart or Distances.between(every, every, groups)
    known = _conditioned(points, values, told, groups, hyper, centre, apart.first(len(points), len(points)))
    expected, _ = known.at(pending, pending_told)
    values, told = np.concatenate([values, expected]), told.and_of(pending_told)
    both = _conditioned(every, values, told, groups, hyper, centre, apart)
    return replace(both, evidence=known.evidence)


def _conditioned(
    points: Array,
    values: Array,
    told: Told,
    groups: NDArray[np.intp],
    hyper: Hyperparameters,
    centre: float,
    apart: Distances | None,
) -> Posterior:
    if len(points) == 0:
        return Posterior(hyper, points, groups, told.claims, np.zeros((0, 0)), np.zeros(0), centre, 0.0)
    apart = apart or Distances.between(points, points, groups)
    kernel = hyper.kernel(apart, told.claims, told.claims)
    kernel[np.diag_indices_from(kernel)] += hyper.noise**2 + _JITTER
    factor = cholesky(kernel, lower=True, check_finite=False)
    mean = hyper.mean(told, centre)
    weights = cho_solve((factor, True), values - mean, check_finite=False)
    fit_term = 0.5 * (values - mean) @ weights
    evidence = -fit_term - np.log(np.diag(factor)).sum() - 0.5 * len(values) * np.log(2 * np.pi)
    return Posterior(hyper, points, groups, told.claims, factor, weights, centre, float(evidence))


class _Objective:
    """Negative log posterior of the packed hyperparameters, and its gradient.

    Packed are the logarithms of claims, effects, lengths, signal and noise, then offset and weight.
    """

    def __init__(self, apart: Distances, values: Array, told: Told, beliefs: Beliefs, start: Array) -> None:
        q, p, n = told.claims.shape[1], len(apart.squares), len(values)
        self._sizes = q, p, n
        # Every matrix is symmetric: its lower triangle in a row is half the work.
        rows, columns = np.tril_indices(n)
        self._lower = rows * n + columns
        self._counted = np.where(rows == columns, 1.0, 2.0)
        self._squares = np.ascontiguousarray(apart.squares[:, rows, columns])
        claimed = (told.claims[rows] * told.claims[columns]).T
        self._sums = np.ascontiguousarray(np.concatenate([claimed, apart.effects[:, rows, columns]]))
        """(claims + parameters, pairs) covariances of a d_q and of an h_p of unit amplitude."""
        self._values, self._centred = values, told.mean - told.mean.mean()
        self._base = float(told.mean.mean())
        self._beliefs, self._start = beliefs, start
        self._spreads = np.array(
            [
                *[beliefs.claim_spread] * q,
                *[beliefs.effect_spread] * p,
                *[beliefs.length_spread] * p,
                beliefs.signal_spread,
                beliefs.noise_spread,
            ]
        )

    def __call__(self, packed: Array) -> tuple[float, Array]:
        q, p, n = self._sizes
        at_sums, at_lengths, scales = slice(0, q + p), slice(q + p, q + 2 * p), q + 2 * p + 2
        amplitudes = np.exp(2 * packed[at_sums])
        inverse_squares = np.exp(-2 * packed[at_lengths])
        signal2, noise2 = np.exp(2 * packed[scales - 2 : scales])
        offset, weight = packed[scales:]
        root = np.sqrt(5.0 * (inverse_squares @ self._squares))
        decay = signal2 * np.exp(-root)
        joint = (1 + root + root**2 / 3) * decay
        kernel = np.zeros(n * n)
        kernel[self._lower] = joint + amplitudes @ self._sums
        kernel[:: n + 1] += noise2 + _JITTER
        factor = cholesky(kernel.reshape(n, n), lower=True, check_finite=False)
        residual = self._values - self._base - offset - weight * self._centred
        alpha = cho_solve((factor, True), residual, check_finite=False)
        inverse, _ = dpotri(factor, lower=1)
        loss = 0.5 * residual @ alpha + np.log(np.diag(factor)).sum()
        outer = self._counted * (inverse - np.outer(alpha, alpha)).take(self._lower)
        gradient = np.empty_like(packed)
        gradient[at_sums] = amplitudes * (self._sums @ outer)
        slope = outer * (5 / 3 * (1 + root) * decay)
        gradient[at_lengths] = 0.5 * inverse_squares * (self._squares @ slope)
        gradient[scales - 2] = outer @ joint
        gradient[scales - 1] = noise2 * (np.trace(inverse) - alpha @ alpha)
        gradient[scales] = -alpha.sum()
        gradient[scales + 1] = -self._centred @ alpha
        away = (packed[:scales] - self._start[:scales]) / self._spreads
        loss += 0.5 * away @ away + 0.5 * (offset / self._beliefs.offset) ** 2
        loss += self._beliefs.doubt * (1 - weight)
        gradient[:scales] += away / self._spreads
        gradient[scales] += offset / self._beliefs.offset**2
        gradient[scales + 1] -= self._beliefs.doubt
        return float(loss), gradient


def _start(claims: int, parameters: int, beliefs: Beliefs) -> Array:
    effect, length = np.log(beliefs.effect), np.log(beliefs.length * np.sqrt(max(parameters, 1)))
    weight = 1.0 if beliefs.weight is None else beliefs.weight
    scales = [*[effect] * parameters, *[length] * parameters, np.log(beliefs.signal), np.log(beliefs.noise)]
    return np.array([*[np.log(beliefs.claim)] * claims, *scales, 0.0, weight])


def _unpacked(packed: Array, claims: int, parameters: int) -> Hyperparameters:
    of_claims, packed = packed[:claims], packed[claims:]
    rest = packed[2 * parameters :]
    return Hyperparameters(
        np.exp(of_claims),
        np.zeros(claims),
        np.exp(packed[:parameters]),
        np.exp(packed[parameters : 2 * parameters]),
        float(np.exp(rest[0])),
        float(np.exp(rest[1])),
        float(rest[2]),
        float(rest[3]),
    )


def _squared(left: Array, right: Array) -> Array:
    """(n, k) squared distances."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    kept: Array = np.maximum(squares, 0.0)
    return kept


def _matern(distance: Array) -> Array:
    root = distance * distance.dtype.type(np.sqrt(5.0))
    kernel = root * root  # in place from here: these are the largest arrays there are
    kernel /= 3
    kernel += root
    kernel += 1
    np.negative(root, out=root)
    np.exp(root, out=root)
    kernel *= root
    return kernel
