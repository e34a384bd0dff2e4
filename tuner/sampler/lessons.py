"""A study's trials as a sampler learns from them, and a space's parameters as Optuna has them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from cluster.order import Cause
from objectives.front import non_dominated
from objectives.goal import Goal
from objectives.metrics import METRICS
from search_spaces.parameters import Categorical, Integer, Parameter, Real, active
from search_spaces.space import Config, Space
from search_spaces.values import Scalar
from tuner.refusals import Picks, Refusals, refusals

CAUSE = "cause"
"""User attribute of a failed trial."""
UNSCORED = "unscored"
"""Told as a cause: the engine served the config, but an objective is missing."""


class Placed(NamedTuple):
    """A trial and its config."""

    config: Config
    trial: FrozenTrial
    picks: Picks
    """The config's choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What the trials say, each kind by number."""

    configs: tuple[Config, ...]
    """Of the measured ones."""
    losses: NDArray[np.float64]
    """(n, m) in the goal's order, in its units inside."""
    violations: Mapping[str, NDArray[np.float64]]
    """By constraint, (n,) each; NaN where a trial was not told it."""
    failed: tuple[Config, ...]
    """Those whose failure is their config's, or that gave no number."""
    pending: tuple[Config, ...]
    taken: frozenset[Config]
    """All of them, whatever became of them."""
    refusals: Refusals


def placed_in(space: Space, trials: Sequence[FrozenTrial]) -> list[Placed]:
    """Trials with the parameters of a config of the space, each with that config."""
    return [placed(space, space.walk(_answers(trial)), trial) for trial in trials]


def placed(space: Space, config: Config, trial: FrozenTrial) -> Placed:
    """A trial, placed at its config."""
    return Placed(config, trial, picks(space, config))


def refusals_of(placed: Sequence[Placed]) -> Refusals:
    """What these trials say of choices that the engine does not take."""
    served = [
        p.picks for p in placed if p.trial.state is TrialState.COMPLETE or cause_of(p.trial) == UNSCORED
    ]
    refused = [(p.picks, Cause(cause)) for p in placed if (cause := cause_of(p.trial)) in _CAUSES]
    return refusals(served, refused)


def lessons(goal: Goal, placed: Sequence[Placed]) -> Lessons:
    """What these trials, by number, teach."""
    measured = [(c, t) for c, t, _ in placed if t.state is TrialState.COMPLETE]
    losses = np.array(
        [
            [o.loss(v / METRICS[o.metric].factor) for o, v in zip(goal.objectives, t.values, strict=True)]
            for _, t in measured
        ],
        dtype=np.float64,
    ).reshape(-1, len(goal.objectives))
    missed = [t.constraints for _, t in measured]
    names = dict.fromkeys(name for each in missed for name in each)
    return Lessons(
        configs=tuple(c for c, _ in measured),
        losses=losses,
        violations={
            name: np.array([each.get(name, np.nan) for each in missed], dtype=np.float64) for name in names
        },
        failed=tuple(c for c, t, _ in placed if t.state is TrialState.FAIL and _blames(cause_of(t))),
        pending=tuple(c for c, t, _ in placed if t.state is TrialState.RUNNING),
        taken=frozenset(c for c, _, _ in placed),
        refusals=refusals_of(placed),
    )


def thinned(known: Lessons, most: int) -> Lessons:
    """The same with at most `most` measured configs, the best half and the rest evenly over the study, and as
    many failed ones, the latest; what was taken and refused stays whole.

    A process of thousands of points takes minutes, and says of the front what those near it say.
    """
    if len(known.configs) <= most and len(known.failed) <= most:
        return known
    places = np.arange(len(known.configs))
    if len(places) > most:
        best = _best_of(known, most // 2)
        rest = np.setdiff1d(places, best)
        even = rest[np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.intp)]
        places = np.sort(np.concatenate([best, even]))
    return replace(
        known,
        configs=tuple(known.configs[place] for place in places),
        losses=known.losses[places],
        violations={name: values[places] for name, values in known.violations.items()},
        failed=known.failed[-most:],
    )


def _best_of(known: Lessons, most: int) -> NDArray[np.intp]:
    """(most,) places of measured configs: those that hold all constraints first, front after front."""
    missed = np.zeros(len(known.configs), dtype=np.bool_)
    for values in known.violations.values():
        missed |= values > 0
    ordered: list[int] = []
    for group in (np.flatnonzero(~missed), np.flatnonzero(missed)):
        left = group
        while len(left) and len(ordered) < most:
            on = non_dominated(known.losses[left])
            if not on.any():
                ordered += left.tolist()
                break
            ordered += left[on].tolist()
            left = left[~on]
    return np.array(ordered[:most], dtype=np.intp)


def _answers(trial: FrozenTrial) -> Callable[[Parameter], Scalar]:
    return lambda parameter: trial.params[parameter.key]


_CAUSES = frozenset(cause.value for cause in Cause)


def cause_of(trial: FrozenTrial) -> str | None:
    """Why a trial failed, as it was told; None where it did not, or nobody said."""
    cause: str | None = trial.user_attrs.get(CAUSE)
    return cause


def _blames(cause: str | None) -> bool:
    return cause not in _CAUSES or Cause(cause).blames_config


def picks(space: Space, config: Config) -> Picks:
    """The choices that a config makes, where there was a choice."""
    return frozenset(
        (parameter.key, value)
        for parameter, value in active(space.parameters, config.values)
        if isinstance(parameter, Categorical) and parameter.size > 1
    )


def ventures(space: Space, config: Config) -> Picks:
    """Its choices, and of every number whether it lies in the upper half of its range."""
    numbers = {
        (parameter.key, _in_upper_half(parameter, value))
        for parameter, value in active(space.parameters, config.values)
        if not isinstance(parameter, Categorical) and parameter.low < parameter.high
    }
    return picks(space, config) | numbers


def _in_upper_half(parameter: Integer | Real, value: Scalar) -> bool:
    assert isinstance(value, int | float)
    if parameter.log:
        return value**2 > parameter.low * parameter.high
    return 2 * value > parameter.low + parameter.high


def params_of(space: Space, config: Config) -> dict[str, Scalar]:
    """The config as Optuna has it: active parameters by key."""
    return {parameter.key: value for parameter, value in active(space.parameters, config.values)}


def distribution(parameter: Parameter) -> BaseDistribution:
    """The parameter as Optuna has it; a step on a logarithmic scale, which it lacks, is left to `snap`."""
    match parameter:
        case Categorical():
            return CategoricalDistribution(parameter.values)
        case Integer(log=True):
            return IntDistribution(parameter.low, parameter.high, log=True)
        case Integer():
            return IntDistribution(parameter.low, parameter.values[-1], step=parameter.step)
        case Real(step=None) | Real(log=True):
            return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
        case Real():
            return FloatDistribution(parameter.low, parameter.values[-1], step=parameter.step)
