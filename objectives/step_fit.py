"""The first-order model's constants, fitted to the steps of a study's trials, and how wrong it then is.

Least squares of log(model / observed) with a soft-L1 loss, over logarithms of the constants, so that all stay
positive and a step that is off by a half weighs the same at 5 ms and at 500. A trial is off by a factor of
its own (an engine's start has its luck, and a config what the model leaves out) and its groups of steps are
off from there: how steps compare within a trial tells more than how trials compare.

The accelerator's table is the prior: each constant is worth what it says there, to a factor of
`_TABLE_FACTOR` in one standard deviation. Trials that tell a constant override it, trials that do not leave
it there. Which ones they tell is read off the curvature at the solution: where the 95 % interval is wider
than a factor of `_TOLD_FACTOR` either way, the table's value is kept if the steps allow it.

How wrong the model is says each trial's error when the constants are fitted without it. Pure.
"""

import math
from collections import defaultdict
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
"""Standard deviation of log(model / observed): where the fit starts, of trials and of steps within one."""
_LEAST_STEP_NOISE = 0.01
_LEAST_TRIAL_NOISE = 0.02
"""No step time is truer than these."""
_NOISE_ROUNDS = 4
_SHIFTS = 2
"""Constants that shift whole trials, bandwidth and compute: so many numbers were made to fit their levels."""
_OUTLIER = 2.0
"""Standard deviations from where an observation weighs ever less."""
_ALLOWED = 2.0
"""Rise of half the squared deviations up to which the table's value is allowed: two standard deviations."""
_SAME = 0.05
"""An error so small is never held against a trial."""
_NEVER = 0.5
"""An error so large explains nothing, whatever the others' are."""
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
    works: tuple[tuple[float, StepWork], ...]
    """Shares of these steps, which add up to 1, and what they have to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of log(model / observed), robust."""

    trial: float
    """Of the factor by which a whole trial is off."""
    step: float
    """Of groups of steps, from there."""


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
    """`bandwidth`, `compute SCHEME`, `step_s`, `sequence_s`, `draft_step_s`,
    `lookup_step_s`, `lookup_s`."""
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
    alone: tuple[str, ...] = ()
    """Constants that no other trial tells anything of: without it they are the accelerator table's."""

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
        but never less than `_SAME` nor more than `_NEVER`.
        """
        others = [abs(one.left_out) for one in self.trials if one.trial != trial]
        if len(others) < LEAST_TRIALS - 1:
            return None
        spread = _MAD * float(np.median(others))
        allowed = float(stdtrit(len(others), 0.975)) * spread
        return min(max(allowed, math.log1p(_SAME)), math.log1p(_NEVER))

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
    noise: "Noise"
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
    theta, noise = problem.settled()
    free = problem.told_apart(theta, noise)
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
        self._work = WorkTable([work for one in observations for _, work in one.works])
        self._shares = np.array([share for one in observations for share, _ in one.works])
        self._starts = np.cumsum([0, *(len(one.works) for one in observations[:-1])])
        self._log_s = np.log([one.seconds for one in observations])
        self._weights = _weights(observations)
        numbers = sorted({one.trial for one in observations})
        self._trial = np.array([numbers.index(one.trial) for one in observations], dtype=np.intp)
        self._trials = len(numbers)
        self._prior = math.log(_TABLE_FACTOR)
        self._steps = np.array([one.steps for one in observations])
        self.names = _names(self._work)

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
            lookup_step_s=table.lookup_step_s * factor.get("lookup_step_s", 1.0),
            lookup_s=table.lookup_s * factor.get("lookup_s", 1.0),
        )

    def settled(self) -> tuple[Array, Noise]:
        """The solution with all parameters free, and the noise that it leaves: each needs the other."""
        free = np.ones(len(self.names), dtype=np.bool_)
        noise = Noise(trial=_FIRST_NOISE, step=_FIRST_NOISE)
        theta = self.solved(noise, free)
        for _ in range(_NOISE_ROUNDS):
            noise = self._noise_left(theta, noise)
            theta = self.solved(noise, free, start=theta)
        return theta, noise

    def _noise_left(self, theta: Array, noise: Noise) -> Noise:
        missed = self._missed(theta)
        level, doubt = self._levels(missed, self._weights, noise)
        step = _MAD * _weighted_median(np.abs(missed - level[self._trial]), self._weights)
        fitted = len(self.names) + self._trials  # so many numbers were made to fit
        step *= math.sqrt(len(missed) / max(len(missed) - fitted, 1))
        trial = _MAD * float(np.median(np.sqrt(level**2 + doubt)))
        trial *= math.sqrt(self._trials / max(self._trials - _SHIFTS, 1))
        return Noise(trial=max(trial, _LEAST_TRIAL_NOISE), step=max(step, _LEAST_STEP_NOISE))

    def _levels(self, missed: Array, weights: Array, noise: Noise) -> tuple[Array, Array]:
        """(t,) by what log each trial is off as a whole, drawn towards 0, and the variance of that."""
        information = np.bincount(self._trial, weights, self._trials) / noise.step**2
        doubt = 1 / (information + 1 / noise.trial**2)
        level = np.bincount(self._trial, weights * missed, self._trials) / noise.step**2 * doubt
        return level, doubt

    def solved(
        self,
        noise: Noise,
        free: NDArray[np.bool_],
        *,
        start: Array | None = None,
        leave: NDArray[np.bool_] | None = None,
    ) -> Array:
        """The free parameters that fit best; the others are 0, the table's value."""
        weights = self._weights if leave is None else np.where(leave, 0.0, self._weights)
        starts = [np.zeros(len(self.names))] if start is None else [start, np.zeros(len(self.names))]
        found = [self._least(np.where(free, one, 0.0), free, weights, noise) for one in starts]
        return min(found, key=lambda one: self._cost(one, weights, noise))

    def _least(self, start: Array, free: NDArray[np.bool_], weights: Array, noise: Noise) -> Array:
        if not free.any():
            return start

        def rows(values: Array) -> Array:
            theta = start.copy()
            theta[free] = values
            return self._rows(theta, weights, noise)

        found = start.copy()
        found[free] = least_squares(rows, start[free], loss="soft_l1", f_scale=_OUTLIER, x_scale=1.0).x
        return found

    def _rows(self, theta: Array, weights: Array, noise: Noise) -> Array:
        """In standard deviations: steps off their trial, trials off, constants off the table."""
        missed = self._missed(theta)
        level, _ = self._levels(missed, weights, noise)
        within = np.sqrt(weights) * (missed - level[self._trial]) / noise.step
        return np.concatenate([within, level / noise.trial, theta / self._prior])

    def _cost(self, theta: Array, weights: Array, noise: Noise) -> float:
        """Half the sum of soft-L1 losses, as `least_squares` has it."""
        squared = (self._rows(theta, weights, noise) / _OUTLIER) ** 2
        return float((_OUTLIER**2 * (np.sqrt(1 + squared) - 1)).sum())

    def _missed(self, theta: Array) -> Array:
        missed: Array = np.log(self._seconds(theta)) - self._log_s
        return missed

    def _seconds(self, theta: Array) -> Array:
        """(n,) mean step of each observation."""
        each = self._work.seconds(self.constants(theta))
        summed: Array = np.add.reduceat(each * self._shares, self._starts)
        return summed

    def covariance(self, theta: Array, noise: Noise) -> Array:
        """(p, p) of the parameters, the prior included, at the solution."""
        step = 1e-4
        at = self._rows(theta, self._weights, noise)
        columns = [
            (self._rows(theta + step * np.eye(len(self.names))[place], self._weights, noise) - at) / step
            for place in range(len(self.names))
        ]
        slopes = np.column_stack(columns)
        return np.linalg.inv(slopes.T @ slopes).astype(np.float64)

    def told_apart(self, theta: Array, noise: Noise) -> NDArray[np.bool_]:
        """(p,) which are free: those told, and those untold that the table's value does not fit."""
        deviations = np.sqrt(np.diag(self.covariance(theta, noise)))
        free = np.ones(len(self.names), dtype=np.bool_)
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

    def without(self, trial: int, noise: Noise, free: NDArray[np.bool_]) -> Array:
        """The solution without a trial."""
        leave = np.array([one.trial == trial for one in self._observations])
        return self.solved(noise, free, leave=leave)

    def errors(self, theta: Array, left_out: Mapping[int, Array]) -> dict[Kind, Errors]:
        times = self._seconds(theta)
        predicted = {trial: self._seconds(one) for trial, one in left_out.items()}
        found: dict[Kind, Errors] = {}
        kinds: tuple[Kind, ...] = ("decode", "prefill")
        for kind in kinds:
            trials = [
                self._error(trial, mine, times, predicted[trial])
                for trial in left_out
                if (mine := self._first_replay(trial, kind)).any()
            ]
            if len(trials) >= LEAST_TRIALS:
                found[kind] = Errors(trials=tuple(trials))
        return found

    def _first_replay(self, trial: int, kind: Kind) -> NDArray[np.bool_]:
        """(n,) which observations are of it."""
        keys = ((one.trial, one.replay, one.kind) for one in self._observations)
        return np.array([key == (trial, 0, kind) for key in keys])

    def _error(self, trial: int, mine: NDArray[np.bool_], times: Array, left_out: Array) -> TrialError:
        steps = self._steps[mine]
        measured = float(steps @ np.exp(self._log_s[mine]) / steps.sum())
        return TrialError(
            trial=trial,
            measured_s=measured,
            fitted=math.log(float(steps @ times[mine] / steps.sum()) / measured),
            left_out=math.log(float(steps @ left_out[mine] / steps.sum()) / measured),
            alone=self._alone(trial),
        )

    def _alone(self, trial: int) -> tuple[str, ...]:
        """Constants that take part in no other trial's steps."""
        others = [work for one in self._observations if one.trial != trial for _, work in one.works]
        return tuple(name for name in self.names if name not in _names(WorkTable(others)))

    def drawn(self, theta: Array, covariance: Array, draws: int, seed: int) -> tuple[Constants, ...]:
        """Constants drawn from the normal distribution at the solution, those of the table as well."""
        generator = np.random.default_rng(seed)
        return tuple(
            self.constants(one) for one in generator.multivariate_normal(theta, covariance, size=draws)
        )


def _names(work: WorkTable) -> list[str]:
    """The constants that take part in these steps."""
    return [
        "bandwidth",
        *(f"compute {scheme}" for scheme in work.schemes),
        "step_s",
        "sequence_s",
        *(["draft_step_s"] if work.drafts else []),
        *(["lookup_step_s", "lookup_s"] if work.looks_up else []),
    ]


def _weights(observations: Sequence[StepObservation]) -> Array:
    """(n,) by the root of the steps behind each, relative to the mean of its replay and kind: a mean of few
    steps is noisy, and one of many is off by more than chance."""
    steps = defaultdict[tuple[int, int, str], list[float]](list)
    for one in observations:
        steps[one.trial, one.replay, one.kind].append(one.steps)
    mean = {key: sum(found) / len(found) for key, found in steps.items()}
    return np.array([math.sqrt(one.steps / mean[one.trial, one.replay, one.kind]) for one in observations])


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(shares, 0.5)])
