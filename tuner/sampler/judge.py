"""What a config is worth trying, by all trials so far:

    score = E[hypervolume gained] × P(every constraint holds) × P(it starts and is measured)³

The expectation is over three theories (`theory`), each as likely as the trials make it: that the prediction
is about right, that it is but for what some choices do, and that it says nothing. So where the trials bear
the prediction out it decides, what it holds for bad is still tried once what it holds for good is spent, and
the first trial that contradicts it counts. What is held of a constraint is weighed by itself: most trials
meet it by far, whatever was predicted, which says nothing of how fast they are. One more process learns which
trials fail.

The front that counts is that of the expected worths of what was measured, so that a lucky measurement bars
nothing, and gains begin beyond the noise: less could not be told from nothing. What is under way counts as
measured where it is expected.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from objectives.front import non_dominated
from objectives.goal import Goal
from search_spaces.space import Config
from tuner.sampler.encoding import Encoding
from tuner.sampler.gaussian_process import Beliefs, Distances, Told
from tuner.sampler.guidance import Guidance
from tuner.sampler.lessons import Lessons
from tuner.sampler.oracle import Oracle, Slate
from tuner.sampler.theory import (
    BORNE_OUT,
    MISLED,
    REFUTED,
    Assumption,
    Model,
    Modelling,
    Seen,
    Theory,
    logs,
    losses_of,
)

Array = NDArray[np.float64]

_FLOOR = 0.03
"""A maximised value counts at least as this share of the best: below that all is equally bad, and 0 has no
logarithm."""
_MARGIN = 0.1
"""The reference point lies this share of the front's extent, or largest value, beyond its worst ends."""
_RESOLVED = 1.0
"""Improvements count from this many standard deviations of a measurement on."""

_AT_ONCE = 512
"""Configs that are scored together: their distances to 300 others, by 20 parameters, are 25 MB."""
_CRASH = 3.0
"""Power of the chance to start: a crash costs its own trial, and teaches less than a measurement does."""

_FAILING = Beliefs(effect=0.3, signal=0.3, noise=0.15, noise_spread=0.3, offset=0.15, length=0.7)
_STARTS, _STAYS_AWAY = 0.98, -0.5
"""What is expected of a config before any was tried: 1 is measured, 0 failed."""


class Judge:
    """The models of one moment of a study, and what they make of a config.

    Args:
        outlook: some configs all over the space and those predicted to be best: how far the front may reach
            is read off them.

    Attributes:
        front: measured configs on the front as the models see it.
        trust: how far the prediction is borne out, 0 to 1.
    """

    def __init__(
        self,
        known: Lessons,
        goal: Goal,
        guidance: Guidance,
        encoding: Encoding,
        oracle: Oracle,
        outlook: Slate,
    ) -> None:
        self._known, self._goal, self._outlook = known, goal, outlook
        self._oracle = oracle
        self._modelling = Modelling(encoding, oracle.slate(known.pending))
        self._seen = self._of_measured()
        self._failed = oracle.slate(known.failed)
        assumptions = self._assumptions(guidance)
        self._theories = [
            Theory(goal, self._seen, self._modelling, one, constraints=guidance.constraints)
            for one in assumptions
        ]
        self._chances = _chances(assumptions, [theory.evidence for theory in self._theories])
        self._limit_chances = [
            _chances(assumptions, each)
            for each in zip(*(theory.limits_evidence for theory in self._theories), strict=True)
        ]
        trusts = [theory.trust for theory in self._theories]
        self.trust = float(self._chances[0] * trusts[0]) if len(trusts) > 1 else trusts[0]
        self._starting = self._start() if guidance.failures else None
        self._worths = self._expected()
        mask = non_dominated(self._worths)
        self._losses = self._worths[mask]
        self.front = tuple(c for c, on in zip(known.configs, mask, strict=True) if on)
        self._reference = self._corner()

    def scores(self, slate: Slate) -> Array:
        """(n,) logarithm of the score."""
        parts = [
            self._scored(slate.take(np.arange(start, min(start + _AT_ONCE, len(slate)))))
            for start in range(0, len(slate), _AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _scored(self, slate: Slate) -> Array:
        aim = self._bettered(self._losses)
        # As the process of what starts has them; the others know nothing of what failed.
        met = (self._seen.slate, self._failed, self._modelling.pending)
        apart = self._apart(slate, met)
        failed = np.arange(len(met[0]), len(met[0]) + len(met[1]))
        every = np.arange(sum(len(some) for some in met))
        near = apart.to(np.setdiff1d(every, failed)) if len(failed) else apart
        each = np.stack([theory.scores(slate, aim, self._reference, near) for theory in self._theories])
        score = _log_mixed(self._chances, each)
        held = np.stack([theory.holds(slate, near) for theory in self._theories], axis=1)
        for chances, of_one in zip(self._limit_chances, held, strict=True):
            score = score + _log_mixed(chances, of_one)
        if self._starting is not None:
            mean, sd = self._starting.at(slate, apart)
            started = log_ndtr((mean - 0.5) / np.hypot(sd, self._starting.process.hyper.noise))
            score = score + _CRASH * started
        return score

    def _of_measured(self) -> Seen:
        floors = tuple(self._floor(j) for j in range(len(self._goal.objectives)))
        observed = tuple(
            logs(o, np.array([o.loss(x) for x in self._known.losses[:, j]]), floors[j])
            for j, o in enumerate(self._goal.objectives)
        )
        slate = self._oracle.slate(self._known.configs)
        return Seen(slate, observed, floors, self._known, self._oracle.best())

    def _assumptions(self, guidance: Guidance) -> list[Assumption]:
        """What may be assumed of the prediction, if there is one."""
        foreseen = any(o.metric in self._seen.slate.foreseen for o in self._goal.objectives)
        if guidance.predict is None or guidance.weight == "none" or (self._known.configs and not foreseen):
            return [REFUTED]
        if guidance.weight == "full":
            return [replace(BORNE_OUT, beliefs=replace(BORNE_OUT.beliefs, weight=1.0))]
        return [BORNE_OUT, MISLED, REFUTED]

    def _start(self) -> Model:
        """Whether a config is measured, 1, or fails, 0."""
        values = np.concatenate([np.ones(len(self._known.configs)), np.zeros(len(self._known.failed))])
        slate = self._oracle.slate((*self._known.configs, *self._known.failed))
        return self._modelling.model(
            slate, values, lambda some: Told.flat(np.where(some.fits, _STARTS, _STAYS_AWAY)), _FAILING
        )

    def _floor(self, j: int) -> float:
        objective = self._goal.objectives[j]
        values = [objective.loss(x) for x in self._known.losses[:, j]]
        if objective.direction == "minimise":
            return max(min((v for v in values if v > 0), default=1e-6) * 1e-3, 1e-9)
        # Of what fits, or a config that cannot run would say what is much.
        told = self._outlook.foreseen.get(objective.metric)
        held = self._outlook.fits & ~self._outlook.violated
        predicted = np.zeros(0) if told is None else told[held]
        return max(_FLOOR * max((*values, *predicted), default=0.0), 1e-9)

    def _expected(self) -> Array:
        """(n, m) expected losses of what was measured; NaN where a constraint is expected to be missed."""
        slate = self._seen.slate
        apart = self._modelling.apart(slate).first(len(slate))
        each = np.stack([theory.expected(slate, apart)[0] for theory in self._theories])
        means = np.asarray(np.tensordot(self._chances, each, axes=1), dtype=np.float64)
        losses = self._possible(means)
        losses[self._missing(slate, apart)] = np.nan
        return losses

    def _missing(self, slate: Slate, apart: Distances) -> NDArray[np.bool_]:
        """(n,) whether a constraint is expected to be missed; `apart` as for `Theory.scores`."""
        each = np.stack([theory.misses(slate, apart) for theory in self._theories])
        missed = np.zeros(len(slate), dtype=np.bool_)
        for k, chances in enumerate(self._limit_chances):
            missed |= chances @ each[:, :, k] > 0
        return missed

    def recommended(self) -> list[Config]:
        """The measured configs that none is better than by more than a measurement can tell, by what is
        expected of them: the noise-aware front."""
        better = self._bettered(self._worths)
        return [
            config
            for config, ahead in zip(self._known.configs, better, strict=True)
            if np.isfinite(ahead).all() and not (self._losses < ahead).all(axis=1).any()
        ]

    def _bettered(self, losses: Array) -> Array:
        """(k, m) these losses, better by what a measurement can tell."""
        noise = self._theories[int(np.argmax(self._chances))].noise
        signs = np.array([1.0 if o.direction == "maximise" else -1.0 for o in self._goal.objectives])
        aim: Array = losses * np.exp(signs * _RESOLVED * noise)
        return aim

    def _corner(self) -> Array:
        """(m,) where volumes are measured from: beyond the worst ends of the front, seen and expected."""
        known = self._losses if len(self._losses) else self._known.losses
        losses = np.concatenate([known, self._foreseen_front()])
        if not len(losses):
            losses = np.zeros((1, len(self._goal.objectives)))
        extent = np.maximum(np.maximum(np.ptp(losses, axis=0), np.abs(losses).max(axis=0)), 1e-9)
        corner: Array = losses.max(axis=0) + _MARGIN * extent
        return corner

    def _foreseen_front(self) -> Array:
        """(k, m) what the likeliest theory expects of what may reach beyond the front: it is better than all
        that was tried, noise apart, if it is better than expected by a standard deviation."""
        likeliest, outlook = self._theories[int(np.argmax(self._chances))], self._outlook
        apart = self._apart(outlook, (self._seen.slate, self._modelling.pending))
        means, sds = likeliest.expected(outlook, apart)
        hoped = self._possible(means - sds)
        hoped[~outlook.fits | self._missing(outlook, apart)] = np.nan
        best = np.flatnonzero(non_dominated(hoped))
        aim = self._bettered(self._losses)
        beaten = (aim[:, None, :] <= hoped[best][None, :, :]).all(axis=2).any(axis=0)
        return self._possible(means[best[~beaten]])

    def _apart(self, slate: Slate, others: Sequence[Slate]) -> Distances:
        """From a slate's configs to those of some others."""
        points = np.concatenate([other.points for other in others])
        return Distances.between(slate.points, points, self._modelling.encoding.groups, rough=True)

    def _possible(self, logarithms: Array) -> Array:
        """(n, m) losses of what the processes see, none better than can be."""
        possible: Array = np.maximum(losses_of(self._goal.objectives, logarithms), self._seen.best)
        return possible


def _log_mixed(chances: Array, logs: Array) -> Array:
    """(n,) logarithm of the expectation over the theories, from (theories, n) logarithms."""
    with np.errstate(divide="ignore"):  # a theory may be given up
        mixed: Array = logsumexp(np.log(chances)[:, None] + logs, axis=0)
    return mixed


def _chances(assumptions: Sequence[Assumption], evidence: Sequence[float]) -> Array:
    """(theories,) how likely each is, given how likely each made the trials."""
    logs = np.array(evidence) + np.log([one.chance for one in assumptions])
    chances = np.exp(logs - logsumexp(logs))
    chances = np.maximum(chances, [one.least for one in assumptions])
    shares: Array = chances / chances.sum()
    return shares
