"""Our own sampler: of a pool of valid configs, the one whose expected gain in hypervolume is largest.

The pool is the space's own: configs drawn from it, so that conditions and constraints hold by construction,
those predicted to be good, and the neighbours of all that looks good. `judge` says what a config is worth.

All that decides is in the study's trials: the sampler keeps nothing between two proposals but what it would
work out again, and with the same trials it proposes the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from threadpoolctl import threadpool_limits

from objectives.goal import Goal
from search_spaces.parameters import every
from search_spaces.space import Config, Space
from search_spaces.values import Scalar
from tuner.refusals import Pick
from tuner.sampler.encoding import Encoding
from tuner.sampler.guidance import Guidance
from tuner.sampler.judge import Judge
from tuner.sampler.lessons import (
    Lessons,
    Placed,
    distribution,
    lessons,
    params_of,
    picks,
    placed_in,
    thinned,
    ventures,
)
from tuner.sampler.oracle import Oracle, Slate
from tuner.sampler.pool import drawn, neighbours
from tuner.sampler.streams import seed_of
from tuner.sampler.theory import LEARNT_FROM

_BASE, _FRESH = 1_200, 100
"""Configs drawn by chance that stay in the pool all study long, and those drawn for one proposal."""
_OUTLOOK = 400
"""Configs of the pool that say how far the front may reach."""
_ROUNDS, _BEST, _ROUND = 2, 6, 160
"""Rounds of looking round the best candidates, how many of them, and how many neighbours at most."""
_SEEN = 200
"""Measured configs that the models are made of at most."""
_WARM = 6
"""Trials among which each makes choices that none before it made."""
_CHECKED = 20_000
"""Configs of which it is remembered whether they are valid."""
_CLIMBS, _SPREAD, _CLIMB = 3, 16, 400
"""The same for what is predicted to be good, once a study."""


class EhviSampler(BaseSampler):
    """Expected hypervolume improvement over a pool of a space's valid configs."""

    def __init__(self, space: Space, goal: Goal, guidance: Guidance, seed: int) -> None:
        self._space, self._goal = space, goal
        self._guidance, self._seed = guidance, seed
        self._distributions = {p.key: distribution(p) for p in every(space.parameters)}
        self._encoding = Encoding(space)
        # Rounds of one proposal, and of the next, come by many a config again.
        self._valid = lru_cache(_CHECKED)(lambda config: not space.faults(config))
        self._oracle = Oracle(goal, space, self._encoding, guidance.predict)
        self._base: tuple[Slate, Slate] | None = None
        self._spread: Slate | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Scalar]:
        """The chosen config's parameters, those of branches not taken left out; nothing of a spent space."""
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number and t.params]
        config = self.choose(placed_in(self._space, trials), trial.number)
        return {} if config is None else params_of(self._space, config)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Scalar:
        """By chance: only where the space is spent, or for a parameter that it does not have."""
        chance = RandomSampler(seed=seed_of(self._seed, trial.number, 3))
        value: Scalar = chance.sample_independent(study, trial, param_name, param_distribution)
        return value

    def recommend(self, placed: Sequence[Placed]) -> list[Config]:
        """The noise-aware front of these trials: what it would recommend if a study ended with them."""
        known = lessons(self._goal, placed)
        with _one_thread():
            return self._judged(known).recommended() if known.configs else []

    def choose(self, placed: Sequence[Placed], number: int) -> Config | None:
        """The next config, none that was tried; None where the pool has no other.

        Args:
            placed: the study's trials so far.
            number: of the trial it is for; with the seed it decides what is drawn by chance.
        """
        known = lessons(self._goal, placed)
        with _one_thread():
            return self._chosen(known, number)

    def _chosen(self, known: Lessons, number: int) -> Config | None:
        rng = np.random.default_rng(seed_of(self._seed, number, 2))
        fresh = drawn(self._space, rng, _FRESH)
        pool, best = self._pool()
        if len(known.configs) < LEARNT_FROM and not (self._guidance.warm_start and len(best)):
            return next(iter(self._allowed(known, (*fresh, *pool.configs))), None)
        judge = self._judged(known)
        near = self._near(judge.front, rng)
        rated = _Rated()
        rated.add(pool.where(self._untried(known)), judge)
        rated.add(self._oracle.slate(self._new(known, rated, (*fresh, *near))), judge)
        for _ in range(_ROUNDS):
            near = self._near(rated.best(_BEST), rng)
            rated.add(self._oracle.slate(self._new(known, rated, near)), judge)
        order = rated.best(len(rated.scores))
        if 0 < len(known.taken) < _WARM and self._guidance.warm_start:
            order = self._covering(known, order)
        return next(iter(self._allowed(known, order)), None)

    def _judged(self, known: Lessons) -> Judge:
        seen, outlook = thinned(known, _SEEN), self._outlook()
        return Judge(seen, self._goal, self._guidance, self._encoding, self._oracle, outlook)

    def _covering(self, known: Lessons, order: list[Config]) -> list[Config]:
        """First those that may well start and make the most choices that no trial has made, a half of a
        number's range being one: what a prediction is wrong about may be what it keeps out of sight."""
        seen = frozenset[Pick]().union(*(ventures(self._space, config) for config in known.taken))
        fits = dict(zip(order, self._oracle.slate(order).fits.tolist(), strict=True))
        return sorted(order, key=lambda c: -len(ventures(self._space, c) - seen) if fits[c] else 1)

    def _pool(self) -> tuple[Slate, Slate]:
        """What stays in the pool: drawn by chance, and what is predicted to be good with what is near it; and
        of these, a few spread over the predicted front."""
        if self._base is None:
            rng = np.random.default_rng(seed_of(self._seed, 0, 4))
            pool = self._oracle.slate(drawn(self._space, rng, _BASE))
            best = self._oracle.front(pool, _SPREAD)
            for _ in range(_CLIMBS if len(best) else 0):
                near = self._near(best.configs, rng, _CLIMB)
                pool = self._oracle.slate(tuple(dict.fromkeys((*pool.configs, *near))))
                best = self._oracle.front(pool, _SPREAD)
            self._oracle.weigh(pool.configs)
            self._base = self._oracle.slate(pool.configs), self._oracle.slate(best.configs)
        return self._base

    def _outlook(self) -> Slate:
        """Of the pool, those predicted to be best and some from all over it."""
        if self._spread is None:
            pool, best = self._pool()
            even = np.linspace(0, len(pool) - 1, min(_OUTLOOK, len(pool))).astype(np.intp)
            some = pool.take(np.unique(even))
            self._spread = self._oracle.slate(tuple(dict.fromkeys((*best.configs, *some.configs))))
        return self._spread

    def _near(self, configs: Iterable[Config], rng: np.random.Generator, most: int = _ROUND) -> list[Config]:
        """Neighbours of these, some by chance where there are too many."""
        return neighbours(self._space, configs, rng, self._valid, most)

    def _untried(self, known: Lessons) -> Callable[[Config], bool]:
        return lambda config: config not in known.taken

    def _new(self, known: Lessons, rated: "_Rated", configs: Iterable[Config]) -> list[Config]:
        return [c for c in dict.fromkeys(configs) if c not in known.taken and c not in rated.scores]

    def _allowed(self, known: Lessons, configs: Iterable[Config]) -> Iterator[Config]:
        """Those not tried, in their order; what was refused comes last."""
        refused = []
        for config in configs:
            if config in known.taken:
                continue
            if known.refusals.forbid(picks(self._space, config)):
                refused.append(config)
            else:
                yield config
        yield from refused


def _one_thread() -> AbstractContextManager[object]:
    """Matrices are small: more threads triple the time, and their number changes the last digits."""
    limits: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limits


class _Rated:
    """Candidates with their scores."""

    def __init__(self) -> None:
        self.scores: dict[Config, float] = {}

    def add(self, slate: Slate, judge: Judge) -> None:
        if len(slate):
            self.scores.update(zip(slate.configs, judge.scores(slate).tolist(), strict=True))

    def best(self, most: int) -> list[Config]:
        """The best first; of equals the first added."""
        return sorted(self.scores, key=lambda config: -self.scores[config])[:most]
