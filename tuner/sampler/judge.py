"""What a config is worth trying, by all trials so far:

    score = E[hypervolume gained] × P(it starts and is measured) × P(every constraint holds)

One Gaussian process an objective, on the logarithm of its value, with the prediction as its mean as far as
the trials bear it out; one a constraint; one on which trials failed. The front that counts is that of the
processes' means at what was measured, so that a lucky measurement bars nothing. What is under way counts as
measured where it is expected.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from objectives.front import non_dominated
from objectives.goal import Goal, Objective
from search_spaces.space import Config
from tuner.sampler.encoding import Encoding
from tuner.sampler.gaussian_process import Beliefs, Posterior, believed_start, fit, posterior
from tuner.sampler.guidance import Guidance
from tuner.sampler.improvement import Believed, Link, expected_improvement
from tuner.sampler.lessons import Lessons
from tuner.sampler.oracle import Oracle, Slate

Array = NDArray[np.float64]

LEARNT_FROM = 5
"""Measured trials from which hyperparameters are fitted; before, beliefs hold."""
_FLOOR = 0.03
"""A maximised value counts at least as this share of the best: below that all is equally bad, and 0 has no
logarithm."""
_MARGIN = 0.1
"""The reference point lies this share of the front's extent, or largest value, beyond its worst ends."""

_PREDICTED = Beliefs(signal=0.4, offset=0.4)
_UNPREDICTED = Beliefs(signal=0.7, offset=1.0, weight=0.0)
_FAILING = Beliefs(signal=0.4, noise=0.15, noise_spread=0.3, offset=0.15, length=0.7)
_STARTS, _STAYS_AWAY = 0.98, 0.05
"""What is expected of a config before any was tried: 1 is measured, 0 failed."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A fitted process, and how its prediction is read off a slate."""

    process: Posterior
    prediction: Callable[[Slate], Array]
    guided: bool
    """Whether there is one."""

    def at(self, slate: Slate) -> tuple[Array, Array]:
        """(n,) mean and standard deviation."""
        return self.process.at(slate.points, self.prediction(slate))


class Judge:
    """The models of one moment of a study, and what they make of a config.

    Attributes:
        front: measured configs on the front as the models see it.
        trust: how far the prediction is borne out, 0 to 1: the largest weight that an objective gives it.
    """

    def __init__(
        self, known: Lessons, goal: Goal, guidance: Guidance, encoding: Encoding, oracle: Oracle, best: Slate
    ) -> None:
        self._known, self._goal, self._guidance = known, goal, guidance
        self._encoding, self._oracle, self._best = encoding, oracle, best
        self._measured = oracle.slate(known.configs)
        self._pending = oracle.slate(known.pending)
        self._floors = [self._floor(j) for j in range(len(goal.objectives))]
        self._models = [self._objective(j) for j in range(len(goal.objectives))]
        guided = [model.process.hyper.weight for model in self._models if model.guided]
        self.trust = max(guided, default=0.0)
        self._limits = [self._limit(name) for name in known.violations] if guidance.constraints else []
        self._starting = self._start() if guidance.failures else None
        self.front, self._losses = self._seen_front()
        self._reference = self._corner()

    def scores(self, slate: Slate) -> Array:
        """(n,) logarithm of the score."""
        believed = [
            Believed(*model.at(slate), _link(objective))
            for objective, model in zip(self._goal.objectives, self._models, strict=True)
        ]
        gain = expected_improvement(believed, self._losses, self._reference)
        score: Array = np.log(np.maximum(gain, 1e-300))
        if self._starting is not None:
            mean, sd = self._starting.at(slate)
            score = score + log_ndtr((mean - 0.5) / np.hypot(sd, self._starting.process.hyper.noise))
        for limit in self._limits:
            mean, sd = limit.at(slate)
            score = score + log_ndtr(-mean / sd)
        return score

    def _objective(self, j: int) -> _Model:
        objective = self._goal.objectives[j]
        observed = self._logs(j, np.array([objective.loss(x) for x in self._known.losses[:, j]]))

        def prediction(slate: Slate) -> Array | None:
            values = slate.foreseen.get(objective.metric)
            return None if values is None else self._logs(j, values)

        return self._model(self._measured, observed, prediction)

    def _limit(self, name: str) -> _Model:
        """The violation, in units of its own spread."""
        told = np.isfinite(self._known.violations[name])
        values = self._known.violations[name][told]
        scale = max(float(values.std()), 1e-3)

        def prediction(slate: Slate) -> Array | None:
            values = slate.violation(name)
            return None if values is None else values / scale

        measured = self._measured.take(np.flatnonzero(told))
        model = self._model(measured, values / scale, prediction)
        if model.guided and model.process.hyper.weight > self.trust:
            # It comes from where the objectives' predictions do. Most trials meet a constraint, or all
            # miss it, so by themselves they say less of how good its prediction is.
            model = self._model(measured, values / scale, prediction, replace(_PREDICTED, weight=self.trust))
        return model

    def _start(self) -> _Model:
        """Whether a config is measured, 1, or fails, 0."""
        values = np.concatenate([np.ones(len(self._known.configs)), np.zeros(len(self._known.failed))])

        def prediction(slate: Slate) -> Array:
            return np.where(slate.fits, _STARTS, _STAYS_AWAY)

        slate = self._oracle.slate((*self._known.configs, *self._known.failed))
        return self._model(slate, values, prediction, _FAILING)

    def _model(
        self,
        slate: Slate,
        values: Array,
        prediction: Callable[[Slate], Array | None],
        beliefs: Beliefs | None = None,
    ) -> _Model:
        """The process of these values; around their mean where nothing is predicted or it is not to count."""
        weight = self._guidance.weight
        guided = prediction(slate) is not None and (weight != "none" or beliefs is not None)
        if beliefs is None:
            beliefs = _PREDICTED if guided else _UNPREDICTED
        if guided and weight == "full":
            beliefs = replace(beliefs, weight=1.0)
        centre = float(values.mean()) if len(values) else 0.0
        foreseen = prediction(slate) if guided else None
        if foreseen is not None and np.isfinite(foreseen).any():
            centre = float(np.nanmean(foreseen))

        def asked(some: Slate) -> Array:
            found = prediction(some) if guided else None
            return (
                np.full(len(some), centre) if found is None else np.where(np.isfinite(found), found, centre)
            )

        predicted, groups = asked(slate), self._encoding.groups
        hyper = (
            fit(slate.points, values, predicted, groups, beliefs)
            if len(values) >= LEARNT_FROM
            else believed_start(beliefs, self._encoding.parameters)
        )
        process = posterior(
            slate.points,
            values,
            predicted,
            groups,
            hyper,
            centre=centre,
            pending=self._pending.points,
            pending_prediction=asked(self._pending),
        )
        return _Model(process, asked, guided)

    def _logs(self, j: int, values: Array) -> Array:
        """(n,) what the processes see: the logarithm of a minimised value, minus that of a maximised one."""
        sign = -1.0 if self._goal.objectives[j].direction == "maximise" else 1.0
        logs: Array = sign * np.log(np.maximum(values, self._floors[j]))
        return logs

    def _floor(self, j: int) -> float:
        objective = self._goal.objectives[j]
        values = [objective.loss(x) for x in self._known.losses[:, j]]
        if objective.direction == "minimise":
            return max(min((v for v in values if v > 0), default=1e-6) * 1e-3, 1e-9)
        predicted = self._best.foreseen.get(objective.metric, np.zeros(0))
        return max(_FLOOR * max((*values, *predicted), default=0.0), 1e-9)

    def _seen_front(self) -> tuple[tuple[Config, ...], Array]:
        """The measured configs that no other dominates by the models' means, and their losses, (k, m)."""
        columns = [
            _loss(objective, model.at(self._measured)[0])
            for objective, model in zip(self._goal.objectives, self._models, strict=True)
        ]
        losses = np.stack(columns, axis=1)
        for limit in self._limits:
            losses[limit.at(self._measured)[0] > 0] = np.nan
        mask = non_dominated(losses)
        return tuple(c for c, on in zip(self._known.configs, mask, strict=True) if on), losses[mask]

    def _corner(self) -> Array:
        """(m,) where volumes are measured from: beyond the worst ends of the front, seen and expected."""
        ends = []
        for j, (objective, model) in enumerate(zip(self._goal.objectives, self._models, strict=True)):
            expected = _loss(objective, model.at(self._best)[0])
            seen = self._losses[:, j] if len(self._losses) else self._known.losses[:, j]
            losses = np.concatenate([seen, expected, np.zeros(0 if len(seen) + len(expected) else 1)])
            extent = max(float(np.ptp(losses)), float(np.abs(losses).max()), 1e-9)
            ends.append(float(losses.max()) + _MARGIN * extent)
        return np.array(ends)


def _link(objective: Objective) -> Link:
    return "negative lognormal" if objective.direction == "maximise" else "lognormal"


def _loss(objective: Objective, z: Array) -> Array:
    return -np.exp(-z) if objective.direction == "maximise" else np.exp(z)
