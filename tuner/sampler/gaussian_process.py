"""An exact Gaussian process with a Matérn 5/2 kernel, for a few hundred points, its mean given from outside.

    y(x) = c + w · (m(x) − m̄) + m̄ + g(x) + noise

m is a prediction from elsewhere (the prior), w in [0, 1] how far it is borne out, c what it is off by
everywhere, g the process. Length scales (one a parameter), variances, c and w are fitted together, by their
posterior's mode; a prediction that explains nothing ends at w = 0 and costs little. Small enough to be ours:
the libraries that do this bring a second array stack and take longer to import than to fit.

Source: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006,
chapters 2 and 5.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

Array = NDArray[np.float64]

FITTED = 140
"""Points that hyperparameters are fitted to at most; the posterior is of all."""
_JITTER = 1e-8
_ITERATIONS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What is held of a function before it is seen: lognormal medians and spreads, in the values' unit."""

    signal: float = 0.4
    """Standard deviation of g."""
    signal_spread: float = 0.7
    noise: float = 0.05
    """Standard deviation of a measurement."""
    noise_spread: float = 0.7
    length: float = 1.0
    """Length scale, in an input's range; grows with the root of the number of parameters."""
    length_spread: float = 1.0
    offset: float = 0.4
    """Standard deviation of c."""
    doubt: float = 1.0
    """How fast belief in the prediction falls as w leaves 1: the log density falls by this down to 0."""
    weight: float | None = None
    """w itself, where it is not to be fitted."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Of one fitted process."""

    lengths: Array
    """(parameters,)"""
    signal: float
    noise: float
    offset: float
    weight: float


@dataclass(frozen=True, slots=True)
class Posterior:
    """What is known of the function after the points."""

    hyper: Hyperparameters
    _points: Array
    _scales: Array
    _factor: Array
    _weights: Array
    _centre: float

    def mean(self, prediction: Array) -> Array:
        """The mean function alone, where the outside prediction is `prediction`."""
        w = self.hyper.weight
        mean: Array = self.hyper.offset + w * prediction + (1 - w) * self._centre
        return mean

    def at(self, points: Array, prediction: Array) -> tuple[Array, Array]:
        """(n,) mean and standard deviation of the function itself, without noise."""
        if len(self._points) == 0:
            return self.mean(prediction), np.full(len(points), self.hyper.signal)
        cross = self.hyper.signal**2 * _matern(_distances(points / self._scales, self._points / self._scales))
        mean = self.mean(prediction) + cross @ self._weights
        explained = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        variance = self.hyper.signal**2 - (explained**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-12))


def fit(
    points: Array, values: Array, prediction: Array, groups: NDArray[np.intp], beliefs: Beliefs
) -> Hyperparameters:
    """The posterior's mode, by L-BFGS from the beliefs' medians. The same for the same data.

    Args:
        points: (n, columns)
        values: (n,)
        prediction: (n,) m at the points; all alike where there is none.
        groups: (columns,) number of each column's parameter.
    """
    if len(points) > FITTED:
        kept = np.unique(np.linspace(0, len(points) - 1, FITTED).round().astype(int))
        points, values, prediction = points[kept], values[kept], prediction[kept]
    parameters = int(groups.max()) + 1 if len(groups) else 0
    start = _start(parameters, beliefs)
    if len(points) < 2:
        return believed_start(beliefs, parameters)
    differences = np.stack([_squares(points[:, groups == p]) for p in range(parameters)])
    objective = _Objective(differences, values, prediction, beliefs, start)
    free = beliefs.weight is None
    bounds = [
        *[(start[p] - 4, start[p] + 4) for p in range(parameters)],
        *[(start[p] - 4, start[p] + 4) for p in (parameters, parameters + 1)],
        (None, None),
        (0.0, 1.0) if free else (start[-1], start[-1]),
    ]
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
    )
    return _unpacked(found.x, parameters)


def believed_start(beliefs: Beliefs, parameters: int) -> Hyperparameters:
    """Those of a process that nothing was fitted to."""
    return _unpacked(_start(parameters, beliefs), parameters)


def posterior(
    points: Array,
    values: Array,
    prediction: Array,
    groups: NDArray[np.intp],
    hyper: Hyperparameters,
    *,
    centre: float,
    pending: Array | None = None,
    pending_prediction: Array | None = None,
) -> Posterior:
    """The process given these points.

    Args:
        centre: m̄, what the prediction is drawn towards as its weight falls: its mean where it was fitted.
        pending: (k, columns) points under way. They are taken as measured where they are expected: that moves
            no mean, and leaves nothing to be found beside them.
    """
    scales = hyper.lengths[groups] if len(groups) else np.ones(0)
    known = _conditioned(points, values, prediction, scales, hyper, centre)
    if pending is None or pending_prediction is None or len(pending) == 0:
        return known
    expected, _ = known.at(pending, pending_prediction)
    return _conditioned(
        np.concatenate([points, pending]),
        np.concatenate([values, expected]),
        np.concatenate([prediction, pending_prediction]),
        scales,
        hyper,
        centre,
    )


def _conditioned(
    points: Array, values: Array, prediction: Array, scales: Array, hyper: Hyperparameters, centre: float
) -> Posterior:
    if len(points) == 0:
        return Posterior(hyper, points, scales, np.zeros((0, 0)), np.zeros(0), centre)
    kernel = hyper.signal**2 * _matern(_distances(points / scales, points / scales))
    kernel[np.diag_indices_from(kernel)] += hyper.noise**2 + _JITTER
    factor = cholesky(kernel, lower=True, check_finite=False)
    mean = hyper.offset + hyper.weight * prediction + (1 - hyper.weight) * centre
    weights = cho_solve((factor, True), values - mean, check_finite=False)
    return Posterior(hyper, points, scales, factor, weights, centre)


class _Objective:
    """Negative log posterior of the packed hyperparameters, and its gradient."""

    def __init__(
        self, differences: Array, values: Array, prediction: Array, beliefs: Beliefs, start: Array
    ) -> None:
        self._differences = differences
        self._values, self._centred = values, prediction - prediction.mean()
        self._base = float(prediction.mean())
        self._beliefs, self._start = beliefs, start
        self._spreads = np.array(
            [*[beliefs.length_spread] * len(differences), beliefs.signal_spread, beliefs.noise_spread]
        )

    def __call__(self, packed: Array) -> tuple[float, Array]:
        p, n = len(self._differences), len(self._values)
        inverse_squares = np.exp(-2 * packed[:p])
        signal2, noise2 = np.exp(2 * packed[p]), np.exp(2 * packed[p + 1])
        offset, weight = packed[p + 2], packed[p + 3]
        distance = np.sqrt(np.tensordot(inverse_squares, self._differences, axes=1))
        root = np.sqrt(5.0) * distance
        decay = np.exp(-root)
        shape = (1 + root + root**2 / 3) * decay
        kernel = signal2 * shape
        kernel[np.diag_indices(n)] += noise2 + _JITTER
        factor = cholesky(kernel, lower=True, check_finite=False)
        residual = self._values - self._base - offset - weight * self._centred
        alpha = cho_solve((factor, True), residual, check_finite=False)
        inverse = cho_solve((factor, True), np.eye(n), check_finite=False)
        loss = 0.5 * residual @ alpha + np.log(np.diag(factor)).sum()
        outer = inverse - np.outer(alpha, alpha)
        slope = outer * (signal2 * 5 / 3 * (1 + root) * decay)
        gradient = np.empty_like(packed)
        gradient[:p] = 0.5 * np.tensordot(self._differences, slope, axes=([1, 2], [0, 1])) * inverse_squares
        gradient[p] = (outer * (signal2 * shape)).sum()
        gradient[p + 1] = noise2 * np.trace(outer)
        gradient[p + 2] = -alpha.sum()
        gradient[p + 3] = -self._centred @ alpha
        away = (packed[: p + 2] - self._start[: p + 2]) / self._spreads
        loss += 0.5 * away @ away + 0.5 * (offset / self._beliefs.offset) ** 2
        loss += self._beliefs.doubt * (1 - weight)
        gradient[: p + 2] += away / self._spreads
        gradient[p + 2] += offset / self._beliefs.offset**2
        gradient[p + 3] -= self._beliefs.doubt
        return float(loss), gradient


def _start(parameters: int, beliefs: Beliefs) -> Array:
    length = np.log(beliefs.length * np.sqrt(max(parameters, 1)))
    weight = 1.0 if beliefs.weight is None else beliefs.weight
    return np.array([*[length] * parameters, np.log(beliefs.signal), np.log(beliefs.noise), 0.0, weight])


def _unpacked(packed: Array, parameters: int) -> Hyperparameters:
    return Hyperparameters(
        np.exp(packed[:parameters]),
        float(np.exp(packed[parameters])),
        float(np.exp(packed[parameters + 1])),
        float(packed[parameters + 2]),
        float(packed[parameters + 3]),
    )


def _squares(columns: Array) -> Array:
    """(n, n) squared distances in one parameter's columns."""
    squares: Array = ((columns[:, None, :] - columns[None, :, :]) ** 2).sum(axis=2)
    return squares


def _distances(left: Array, right: Array) -> Array:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    distances: Array = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _matern(distance: Array) -> Array:
    root = np.sqrt(5.0) * distance
    kernel: Array = (1 + root + root**2 / 3) * np.exp(-root)
    return kernel
