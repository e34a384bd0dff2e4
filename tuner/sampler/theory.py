"""What the trials say of every config, on one assumption of how good the prediction is.

One Gaussian process an objective, on the logarithm of its value, and one a constraint. The prediction is
their mean, or they know the trials alone. How likely the trials were under each assumption tells which holds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from objectives.goal import Goal, Objective
from search_spaces.space import Config
from tuner.sampler.encoding import Encoding
from tuner.sampler.gaussian_process import (
    Beliefs,
    Distances,
    Hyperparameters,
    Posterior,
    Told,
    believed_start,
    fit,
    posterior,
)
from tuner.sampler.improvement import Believed, Link, expected_improvement
from tuner.sampler.lessons import Lessons
from tuner.sampler.oracle import Slate

Array = NDArray[np.float64]
Foreseen = Callable[[Slate], Told | None]
"""What is predicted of a slate, not finite where it is not; None: nothing is."""

LEARNT_FROM = 5
"""Measured trials from which hyperparameters are fitted; before, beliefs hold."""

_MISTAKEN = 0.5
"""A claim that is wrong by this share of itself is held to be wrong for the other objectives too, once the
trials have brought what is not known of it to this share of what was not known before."""
_ALIKE = 0.3
"""How far mistakes of one parameter differ between objectives, a standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What a theory holds of the prediction before any trial."""

    beliefs: Beliefs
    guided: bool
    """Whether the prediction is the mean."""
    chance: float
    """How likely it is held to be, before any trial."""
    least: float
    """How likely it is held to be at least, whatever the trials say: all theories leave things out."""


BORNE_OUT = Assumption(
    beliefs=Beliefs(claim=0.15, effect=0.15, signal=0.2, offset=0.4, least=0.5),
    guided=True,
    chance=0.7,
    least=0.0,
)
MISLED = Assumption(
    beliefs=Beliefs(claim=0.7, effect=0.5, signal=0.3, offset=0.6, least=0.5),
    guided=True,
    chance=0.2,
    least=0.1,
)
"""About right but for what some choices do, which may be anything."""
REFUTED = Assumption(
    beliefs=Beliefs(effect=0.25, signal=0.4, offset=1.0, weight=0.0), guided=False, chance=0.1, least=0.01
)


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted process, what it was fitted to, and how its prediction is read off a slate."""

    process: Posterior
    told: Callable[[Slate], Told]
    slate: Slate
    values: Array
    centre: float
    """What the prediction is drawn towards as its weight falls."""

    def at(self, slate: Slate, apart: Distances | None = None) -> tuple[Array, Array]:
        """(n,) mean and standard deviation; `apart`: from the slate to what it was conditioned on."""
        return self.process.at(slate.points, self.told(slate), apart)


@dataclass(frozen=True, slots=True)
class Modelling:
    """Fits models to what is seen of some configs, those under way taken into account."""

    encoding: Encoding
    pending: Slate
    _apart: dict[tuple[Config, ...], Distances] = field(default_factory=dict)

    def apart(self, slate: Slate) -> Distances:
        """Of the slate's configs and then those under way to each other. Most models are of the same ones."""
        if slate.configs not in self._apart:
            points = np.concatenate([slate.points, self.pending.points])
            self._apart[slate.configs] = Distances.between(points, points, self.encoding.groups)
        return self._apart[slate.configs]

    def model(self, slate: Slate, values: Array, foreseen: Foreseen | None, beliefs: Beliefs) -> Model:
        """The process of these values, around their mean where nothing is predicted."""
        centre = float(values.mean()) if len(values) else 0.0
        seen = None if foreseen is None else foreseen(slate)
        if seen is not None and np.isfinite(seen.mean).any():
            centre = float(np.nanmean(seen.mean))

        def told(some: Slate) -> Told:
            found = None if foreseen is None else foreseen(some)
            if found is None:
                return Told.flat(np.full(len(some), centre))
            return Told(np.where(np.isfinite(found.mean), found.mean, centre), found.claims)

        predicted = told(slate)
        if len(values) < LEARNT_FROM:
            hyper = believed_start(beliefs, predicted.claims.shape[1], self.encoding.parameters)
        else:
            apart = self.apart(slate).first(len(values), len(values))
            hyper = fit(slate.points, values, predicted, self.encoding.groups, beliefs, apart=apart)
        return self._conditioned(hyper, told, slate, values, centre)

    def corrected(self, model: Model, others: Sequence[Model]) -> Model:
        """The model, told which claims the others' values show to be mistaken: a parameter that is misjudged
        changes step times otherwise than predicted, which shows in every objective."""
        hyper = model.process.hyper
        expected, sds = hyper.expected.copy(), hyper.claims.copy()
        surest = np.full(len(sds), _MISTAKEN)
        for other in others:
            mean, sd = other.process.wrong()
            left = (sd / np.maximum(other.process.hyper.claims, 1e-12)) ** 2
            told = (np.abs(mean) > _MISTAKEN) & (left < surest)
            expected[told], sds[told] = mean[told], np.hypot(sd[told], _ALIKE)
            surest = np.where(told, left, surest)
        if not expected.any():
            return model
        better = replace(hyper, expected=expected, claims=sds)
        return self._conditioned(better, model.told, model.slate, model.values, model.centre)

    def _conditioned(
        self,
        hyper: Hyperparameters,
        told: Callable[[Slate], Told],
        slate: Slate,
        values: Array,
        centre: float,
    ) -> Model:
        process = posterior(
            slate.points,
            values,
            told(slate),
            self.encoding.groups,
            hyper,
            centre=centre,
            pending=self.pending.points,
            pending_told=told(self.pending),
            apart=self.apart(slate),
        )
        return Model(process, told, slate, values, centre)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, as the processes see it."""

    slate: Slate
    logs: tuple[Array, ...]
    """An objective, (n,) each: see `logs`."""
    floors: tuple[float, ...]
    known: Lessons
    best: Array
    """(m,) least loss that each objective can have."""


class Theory:
    """The models of one assumption.

    Attributes:
        evidence: log likelihood of the objectives that were measured.
        limits_evidence: of each constraint's.
        trust: how far the prediction counts in it, 0 to 1: the largest weight that an objective gives it.
    """

    def __init__(
        self,
        goal: Goal,
        seen: Seen,
        modelling: Modelling,
        assumption: Assumption,
        *,
        constraints: bool,
    ) -> None:
        self._goal, self._seen, self._modelling = goal, seen, modelling
        self._beliefs, self._guided = assumption.beliefs, assumption.guided
        alone = [self._objective(j) for j in range(len(goal.objectives))]
        self._objectives = [
            modelling.corrected(model, [other for other in alone if other is not model]) for model in alone
        ]
        self.trust = max((model.process.hyper.weight for model in alone), default=0.0)
        self._violations = list(seen.known.violations.values()) if constraints else []
        self._limits = [self._limit(name) for name in seen.known.violations] if constraints else []
        self.evidence = sum(model.process.evidence for model in alone)
        self.limits_evidence = [limit.process.evidence for limit in self._limits]

    def expected(self, slate: Slate, apart: Distances) -> tuple[Array, Array]:
        """(n, m) logarithms of the objectives: mean and standard deviation; `apart` as for `scores`."""
        each = [model.at(slate, apart) for model in self._objectives]
        return np.stack([mean for mean, _ in each], axis=1), np.stack([sd for _, sd in each], axis=1)

    def misses(self, slate: Slate, apart: Distances) -> Array:
        """(n, constraints) expected violations, in units of their own; `apart` as for `scores`."""
        columns = [limit.at(slate, self._to(violations, apart))[0] for violations, limit in self._limited()]
        return np.stack(columns, axis=1) if columns else np.zeros((len(slate), 0))

    @property
    def noise(self) -> Array:
        """(m,) standard deviation of a measurement's logarithm."""
        return np.array([model.process.hyper.noise for model in self._objectives])

    def scores(self, slate: Slate, front: Array, reference: Array, apart: Distances) -> Array:
        """(n,) logarithm of the expected gain, whatever the constraints.

        Args:
            apart: from the slate to all that was measured or is under way.
        """
        believed = [
            Believed(*model.at(slate, apart), link_of(objective), float(least))
            for objective, model, least in zip(
                self._goal.objectives, self._objectives, self._seen.best, strict=True
            )
        ]
        gain = expected_improvement(believed, front, reference)
        score: Array = np.log(np.maximum(gain, 1e-300))
        return score

    def holds(self, slate: Slate, apart: Distances) -> Array:
        """(constraints, n) logarithm of the chance that each constraint holds; `apart` as for `scores`."""
        found = np.zeros((len(self._limits), len(slate)))
        for k, (violations, limit) in enumerate(self._limited()):
            mean, sd = limit.at(slate, self._to(violations, apart))
            found[k] = log_ndtr(-mean / sd)
        return found

    def _limited(self) -> Iterator[tuple[Array, Model]]:
        """Each constraint's violations, as measured, with its model."""
        return zip(self._violations, self._limits, strict=True)

    def _to(self, violations: Array, apart: Distances) -> Distances:
        """Those to what a constraint's model was conditioned on: what measured it, and what is under way."""
        told = np.isfinite(violations)
        if told.all():
            return apart
        under_way = np.arange(len(told), apart.squares.shape[2])
        return apart.to(np.concatenate([np.flatnonzero(told), under_way]))

    def _objective(self, j: int) -> Model:
        objective, floor = self._goal.objectives[j], self._seen.floors[j]

        def foreseen(slate: Slate) -> Told | None:
            values = slate.foreseen.get(objective.metric)
            if values is None:
                return None
            mean, without = (
                logs(objective, some, floor) for some in (values, slate.without(objective.metric))
            )
            return Told(mean, np.nan_to_num(mean[:, None] - without))

        return self._model(self._seen.slate, self._seen.logs[j], foreseen, self._beliefs)

    def _limit(self, name: str) -> Model:
        """The violation, in units of its own spread."""
        told = np.isfinite(self._seen.known.violations[name])
        values = self._seen.known.violations[name][told]
        scale = max(float(values.std()), 1e-3)

        def foreseen(slate: Slate) -> Told | None:
            values = slate.violation(name)
            if values is None:
                return None
            without = slate.without_violation(name)
            return Told(values / scale, np.nan_to_num((values[:, None] - without) / scale))

        slate = self._seen.slate.take(np.flatnonzero(told))
        model = self._model(slate, values / scale, foreseen, self._beliefs)
        if self._guided and model.process.hyper.weight > self.trust:
            # It comes from where the objectives' predictions do. Most trials meet a constraint, or all
            # miss it, so by themselves they say less of how good its prediction is.
            capped = replace(self._beliefs, weight=self.trust)
            model = self._model(slate, values / scale, foreseen, capped)
        return model

    def _model(self, slate: Slate, values: Array, foreseen: Foreseen, beliefs: Beliefs) -> Model:
        return self._modelling.model(slate, values, foreseen if self._guided else None, beliefs)


def logs(objective: Objective, values: Array, floor: float) -> Array:
    """(n,) what the processes see: the logarithm of a minimised value, minus that of a maximised one."""
    sign = -1.0 if objective.direction == "maximise" else 1.0
    found: Array = sign * np.log(np.maximum(values, floor))
    return found


def link_of(objective: Objective) -> Link:
    return "negative lognormal" if objective.direction == "maximise" else "lognormal"


def losses_of(objectives: Sequence[Objective], z: Array) -> Array:
    """(n, m) losses of what the processes see."""
    columns = [
        -np.exp(-z[:, j]) if o.direction == "maximise" else np.exp(z[:, j]) for j, o in enumerate(objectives)
    ]
    return np.stack(columns, axis=1)
