"""The first-order model's constants, fitted to the steps of a study's trials, and how wrong it then is.

Least squares of log(model / observed) with a soft-L1 loss, over logarithms of the constants, so that all stay
positive and a step that is off by a half weighs the same at 5 ms and at 500. Every trial weighs the same.

The accelerator's table is the prior: each constant is worth what it says there, to a factor of
`_TABLE_FACTOR` in one standard deviation. Trials that tell a constant override it, trials that do not leave
it there. Which ones they tell is read off the curvature at the solution: where the 95 % interval is wider
than a factor of `_TOLD_FACTOR` either way, the table's value is kept if the steps allow it.

How wrong the model is says each trial's error when the constants are fitted without it. Pure.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import stdtrit

from objectives.step_times import Kind
from search_spaces.step_model import Constants, StepWork, WorkTable

Array = NDArray[np.float64]

LEAST_TRIALS = 3
"""So that a trial's error is held against those of two others at the least."""

_TABLE_FACTOR = 4.0
_TOLD_FACTOR = 2.0
_Z = 1.959964
"""Of a 95 % interval."""
_FIRST_NOISE = 0.2
_LEAST_NOISE = 0.01
"""Standard deviation of log(model / observed): where the fit starts, and what no step time is truer than."""
_NOISE_ROUNDS = 4
_OUTLIER = 2.0
"""Standard deviations from where an observation weighs ever less."""
_ALLOWED = 2.0
"""Rise of half the squared deviations up to which the table's value is allowed: two standard deviations."""
_SAME = 0.05
"""An error so small is never held against a trial."""
_USABLE = 0.25
"""Median error up to which the model explains a study at all: beyond it, parts of a step would be told apart
that are smaller than what the model misses."""
_MAD = 1.4826
"""Median absolute deviation of a normal variable, inverted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservation:
    """Steps of one trial that are alike."""

    trial: int
    replay: int
    """Of the trial's; 0 is the one that its metrics are of, and that its error is told of."""
    kind: Kind
    seconds: float
    """Mean of a step."""
    steps: float
    work: StepWork


class Standing(StrEnum):
    """What the trials say of a constant."""

    FITTED = "fitted"
    TABLE = "table"
    """They do not tell it; it is what the accelerator's table says."""
    LEANING = "leaning"
    """They do not tell it to a factor of two, but the table's value does not fit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One constant."""

    name: str
    """`bandwidth`, `compute SCHEME`, `step_s`, `sequence_s`, `draft_step_s`, `lookup_s`."""
    value: float
    low: float
    """Ends of the 95 % interval; those of the table's own, where the trials do not tell."""
    high: float
    table: float
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialError:
    """How far the model is off in one trial's first replay, as log(model / measured) of its mean step."""

    trial: int
    measured_s: float
    fitted: float
    """With constants that the trial had a part in."""
    left_out: float
    """With constants fitted without it."""

    @property
    def model_s(self) -> float:
        return self.measured_s * math.exp(self.fitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of all trials, in steps of one kind."""

    trials: tuple[TrialError, ...]
    """By number."""

    @property
    def median(self) -> float:
        """Of the left-out errors' size, as a share: 0.1 is 10 %."""
        return math.expm1(float(np.median([abs(one.left_out) for one in self.trials])))

    @property
    def worst(self) -> float:
        return math.expm1(max(abs(one.left_out) for one in self.trials))

    @property
    def usable(self) -> bool:
        """Whether the model is near enough to these trials to explain any."""
        return self.median <= _USABLE

    def of(self, trial: int) -> TrialError | None:
        return next((one for one in self.trials if one.trial == trial), None)

    def allowed(self, trial: int) -> float | None:
        """The size of left-out error up to which a trial is like the others; None where they are too few.

        Student's 95 % quantile times the robust standard deviation of the other trials' errors about zero,
        and never less than `_SAME`.
        """
        others = [abs(one.left_out) for one in self.trials if one.trial != trial]
        if len(others) < LEAST_TRIALS - 1:
            return None
        spread = _MAD * float(np.median(others))
        return max(float(stdtrit(len(others), 0.975)) * spread, math.log1p(_SAME))

    def explains(self, trial: int) -> bool:
        """Whether the model explains this trial: it explains the study, and this is no exception in it."""
        error, allowed = self.of(trial), self.allowed(trial)
        if error is None or allowed is None or not self.usable:
            return False
        return abs(error.left_out) <= allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """The fitted model."""

    constants: Constants
    fitted: tuple[Fitted, ...]
    noise: float
    """Standard deviation of log(model / observed), robust."""
    errors: Mapping[Kind, Errors]
    """Of each kind that enough trials have."""
    draws: tuple[Constants, ...]
    """Constants that the observations allow as well, for intervals of what is made of them."""


def fit_steps(
    observations: Sequence[StepObservation], table: Constants, *, draws: int = 200, seed: int = 0
) -> StepFit:
    """Fit the constants and hold the model against each trial.

    Raises:
        ValueError: fewer than `LEAST_TRIALS` trials, so that no error can be stated.
    """
    trials = sorted({one.trial for one in observations})
    if len(trials) < LEAST_TRIALS:
        raise ValueError(f"{len(trials)} trials, where {LEAST_TRIALS} are the least to state an error")
    problem = _Problem(observations, table)
    every = np.ones(problem.names_count, dtype=np.bool_)
    theta, noise = problem.settled(every)
    errors_of = problem.deviations(theta, noise, every)
    free = problem.told_apart(theta, noise, errors_of)
    kept = problem.solved(noise, free)
    covariance = problem.covariance(kept, noise)
    left_out = {trial: problem.without(trial, noise, free) for trial in trials}
    return StepFit(
        constants=problem.constants(kept),
        fitted=problem.told(kept, covariance, free),
        noise=noise,
        errors=problem.errors(kept, left_out),
        draws=problem.drawn(kept, covariance, draws, seed),
    )


class _Problem:
    """One fit's data. Parameters are log(constant / table), in the order of `names`."""

    def __init__(self, observations: Sequence[StepObservation], table: Constants) -> None:
        self._table = table
        self._observations = list(observations)
        self._work = WorkTable([one.work for one in observations])
        self._log_s = np.log([one.seconds for one in observations])
        self._weights = _weights(observations)
        self._prior = math.log(_TABLE_FACTOR)
        self._schemes = self._work.schemes
        self.names = [
            "bandwidth",
            *(f"compute {scheme}" for scheme in self._schemes),
            "step_s",
            "sequence_s",
            *(["draft_step_s"] if self._work.drafts else []),
            *(["lookup_s"] if self._work.looks_up else []),
        ]

    @property
    def names_count(self) -> int:
        return len(self.names)

    def constants(self, theta: Array) -> Constants:
        factor = dict(zip(self.names, np.exp(theta).tolist(), strict=True))
        table = self._table
        return Constants(
            bandwidth=table.bandwidth * factor["bandwidth"],
            compute={
                scheme: rate * factor.get(f"compute {scheme}", 1.0) for scheme, rate in table.compute.items()
            },
            step_s=table.step_s * factor["step_s"],
            sequence_s=table.sequence_s * factor["sequence_s"],
            draft_step_s=table.draft_step_s * factor.get("draft_step_s", 1.0),
            lookup_s=table.lookup_s * factor.get("lookup_s", 1.0),
        )

    def settled(self, free: NDArray[np.bool_]) -> tuple[Array, float]:
        """The solution, and the noise that it leaves: each needs the other."""
        noise = _FIRST_NOISE
        theta = self.solved(noise, free)
        for _ in range(_NOISE_ROUNDS):
            noise = max(_MAD * _weighted_median(np.abs(self._missed(theta)), self._weights), _LEAST_NOISE)
            theta = self.solved(noise, free, start=theta)
        return theta, noise

    def solved(
        self,
        noise: float,
        free: NDArray[np.bool_],
        *,
        start: Array | None = None,
        leave: NDArray[np.bool_] | None = None,
    ) -> Array:
        """The free parameters that fit best; the others are 0, the table's value."""
        weights = self._weights if leave is None else np.where(leave, 0.0, self._weights)
        starts = [np.zeros(self.names_count)] if start is None else [start, np.zeros(self.names_count)]
        found = [self._least(np.where(free, one, 0.0), free, weights, noise) for one in starts]
        return min(found, key=lambda one: self._cost(one, weights, noise))

    def _least(self, start: Array, free: NDArray[np.bool_], weights: Array, noise: float) -> Array:
        if not free.any():
            return start

        def rows(values: Array) -> Array:
            theta = start.copy()
            theta[free] = values
            return self._rows(theta, weights, noise)

        found = start.copy()
        found[free] = least_squares(rows, start[free], loss="soft_l1", f_scale=_OUTLIER, x_scale=1.0).x
        return found

    def _rows(self, theta: Array, weights: Array, noise: float) -> Array:
        return np.concatenate([np.sqrt(weights) * self._missed(theta) / noise, theta / self._prior])

    def _cost(self, theta: Array, weights: Array, noise: float) -> float:
        """Half the sum of soft-L1 losses, as `least_squares` has it."""
        squared = (self._rows(theta, weights, noise) / _OUTLIER) ** 2
        return float((_OUTLIER**2 * (np.sqrt(1 + squared) - 1)).sum())

    def _missed(self, theta: Array) -> Array:
        missed: Array = np.log(self._work.seconds(self.constants(theta))) - self._log_s
        return missed

    def covariance(self, theta: Array, noise: float) -> Array:
        """(p, p) of the parameters, the prior included, at the solution."""
        step = 1e-4
        at = self._missed(theta)
        columns = [
            (self._missed(theta + step * np.eye(self.names_count)[place]) - at) / step
            for place in range(self.names_count)
        ]
        slopes = np.sqrt(self._weights)[:, None] * np.column_stack(columns) / noise
        information = slopes.T @ slopes + np.eye(self.names_count) / self._prior**2
        return np.linalg.inv(information).astype(np.float64)

    def deviations(self, theta: Array, noise: float, free: NDArray[np.bool_]) -> Array:
        """(p,) standard deviations of the parameters."""
        return np.where(free, np.sqrt(np.diag(self.covariance(theta, noise))), 0.0).astype(np.float64)

    def told_apart(self, theta: Array, noise: float, deviations: Array) -> NDArray[np.bool_]:
        """(p,) which are free: those told, and those untold that the table's value does not fit."""
        free = np.ones(self.names_count, dtype=np.bool_)
        best = self._cost(theta, self._weights, noise)
        for place in np.argsort(-deviations):
            if _Z * deviations[place] <= math.log(_TOLD_FACTOR):
                break
            tried = free.copy()
            tried[place] = False
            if self._cost(self.solved(noise, tried, start=theta), self._weights, noise) <= best + _ALLOWED:
                free = tried
        return free

    def told(self, theta: Array, covariance: Array, free: NDArray[np.bool_]) -> tuple[Fitted, ...]:
        spread = _Z * np.sqrt(np.diag(covariance))
        found = []
        for place, name in enumerate(self.names):
            table = self._of(self._table, name)
            value = table * math.exp(theta[place])
            told = spread[place] <= math.log(_TOLD_FACTOR)
            standing = Standing.LEANING if not told else Standing.FITTED
            found.append(
                Fitted(
                    name=name,
                    value=value,
                    low=value * math.exp(-spread[place]),
                    high=value * math.exp(spread[place]),
                    table=table,
                    standing=standing if free[place] else Standing.TABLE,
                )
            )
        return tuple(found)

    @staticmethod
    def _of(constants: Constants, name: str) -> float:
        if name.startswith("compute "):
            return constants.compute[name.removeprefix("compute ")]
        return float(getattr(constants, name))

    def without(self, trial: int, noise: float, free: NDArray[np.bool_]) -> Array:
        """The solution without a trial."""
        leave = np.array([one.trial == trial for one in self._observations])
        return self.solved(noise, free, leave=leave)

    def errors(self, theta: Array, left_out: Mapping[int, Array]) -> dict[Kind, Errors]:
        times = self._work.seconds(self.constants(theta))
        predicted = {trial: self._work.seconds(self.constants(one)) for trial, one in left_out.items()}
        found: dict[Kind, Errors] = {}
        kinds: tuple[Kind, ...] = ("decode", "prefill")
        for kind in kinds:
            trials = []
            for trial in left_out:
                mine = np.array(
                    [
                        one.trial == trial and one.kind == kind and one.replay == 0
                        for one in self._observations
                    ]
                )
                if mine.any():
                    weights = self._weights[mine]
                    measured = float(weights @ np.exp(self._log_s[mine]) / weights.sum())
                    fitted = float(weights @ times[mine] / weights.sum())
                    other = float(weights @ predicted[trial][mine] / weights.sum())
                    trials.append(
                        TrialError(
                            trial=trial,
                            measured_s=measured,
                            fitted=math.log(fitted / measured),
                            left_out=math.log(other / measured),
                        )
                    )
            if len(trials) >= LEAST_TRIALS:
                found[kind] = Errors(trials=tuple(trials))
        return found

    def drawn(self, theta: Array, covariance: Array, draws: int, seed: int) -> tuple[Constants, ...]:
        """Constants drawn from the normal distribution at the solution, those of the table as well."""
        generator = np.random.default_rng(seed)
        return tuple(
            self.constants(one) for one in generator.multivariate_normal(theta, covariance, size=draws)
        )


def _weights(observations: Sequence[StepObservation]) -> Array:
    """(n,) those of a trial add up to 1: one start of an engine has luck of its own, which no second replay
    in it averages out. Within, every replay and kind weighs the same, and in these every step."""
    steps = defaultdict[tuple[int, int, str], float](float)
    for one in observations:
        steps[one.trial, one.replay, one.kind] += one.steps
    parts = Counter(trial for trial, _, _ in steps)
    return np.array(
        [one.steps / steps[one.trial, one.replay, one.kind] / parts[one.trial] for one in observations]
    )


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(shares, 0.5)])
