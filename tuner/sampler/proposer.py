"""What a sampler draws, made to obey the space: conditions, constraints, no config twice, nothing refused.

The sampler is asked in a study of its own, in memory, that holds what it should learn from: the trials
measured and under way. There it may be asked again and again until a draw is valid and new, without a
trace in the study's database.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from objectives.goal import Goal
from search_spaces.parameters import Categorical, Parameter, every
from search_spaces.points import every_point, raw_count
from search_spaces.space import ENUMERABLE, Config, Space
from search_spaces.values import Scalar
from tuner.refusals import Refusals
from tuner.sampler.ehvi import EhviSampler
from tuner.sampler.guidance import Guidance
from tuner.sampler.lessons import Placed, distribution, params_of, picks, refusals_of
from tuner.sampler.recipes import POPULATION, Recipe
from tuner.sampler.streams import seed_of

VARIATIONS = 64
"""Neighbours of the last draw that are tried when the sampler gives nothing new."""

BLIND_DRAWS = 512
"""Configs drawn by chance after that. A space small enough is then gone through, config by config."""

_GENERATION = "NSGAIISampler:generation"
"""Where Optuna's NSGA-II looks for a trial's generation."""


class SpaceExhausted(Exception):
    """Every config that could be found has been tried or is under way."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a study when a config is proposed."""

    placed: Sequence[Placed]
    """Trials with parameters, whatever became of them, by number, each with its config."""
    taken: frozenset[Config]
    """Not to be proposed again."""
    refusals: Refusals

    @classmethod
    def of(cls, placed: Sequence[Placed]) -> Self:
        """What these trials say."""
        return cls(placed, frozenset(config for config, _, _ in placed), refusals_of(placed))


class Proposer:
    """Proposes configs of one space with one sampler."""

    def __init__(self, space: Space, goal: Goal, recipe: Recipe, seed: int, guidance: Guidance) -> None:
        self._space = space
        self._recipe = recipe
        self._seed = seed
        self._first = guidance.first
        self._ours = EhviSampler(space, goal, guidance, seed) if recipe.make is None else None
        self._parameters = {parameter.key: parameter for parameter in every(space.parameters)}
        self._distributions = {key: distribution(parameter) for key, parameter in self._parameters.items()}
        self._finished: dict[int, FrozenTrial] = {}
        """Measured trials, which no longer change, as the sampler is shown them."""

    def params(self, config: Config) -> dict[str, Scalar]:
        """The config as Optuna has it: active parameters by key."""
        return params_of(self._space, config)

    def distributions(self, params: Mapping[str, Scalar]) -> dict[str, BaseDistribution]:
        return {key: self._distributions[key] for key in params}

    def propose(self, directions: Sequence[optuna.study.StudyDirection], number: int, known: Known) -> Config:
        """A config for the trial of this number: valid, not taken, and not refused while there are others.

        Raises:
            SpaceExhausted: none was found.
        """
        rng = np.random.default_rng(seed_of(self._seed, number, 1))
        refused_only: Config | None = None
        for config in self._candidates(directions, number, known, rng):
            if config in known.taken or self._space.faults(config):
                continue
            if not known.refusals.forbid(picks(self._space, config)):
                return config
            refused_only = refused_only or config
        if refused_only is None:
            raise SpaceExhausted(f"all of the {len(known.taken)} configs found in the space have been tried")
        return refused_only

    def recommended(self, placed: Sequence[Placed]) -> tuple[Config, ...] | None:
        """The noise-aware front of these trials, by our own sampler's models; None of another's."""
        return None if self._ours is None else tuple(self._ours.recommend(placed))

    def _candidates(
        self,
        directions: Sequence[optuna.study.StudyDirection],
        number: int,
        known: Known,
        rng: np.random.Generator,
    ) -> Iterator[Config]:
        """What is to be tried first; draws of the sampler, then neighbours of its last draw, then chance,
        then all there are."""
        yield from self._first
        draw: dict[str, Scalar] = {}
        if self._ours is not None:
            chosen = self._ours.choose(known.placed, number)
            if chosen is not None:
                yield chosen
                draw = self.params(chosen)
        else:
            for config, draw in self._draws(directions, number, known):  # noqa: B007 - the last is varied
                yield config
        for _ in range(VARIATIONS):
            yield self._varied(draw, rng)
        for _ in range(BLIND_DRAWS):
            yield self._space.sample(rng)
        size = raw_count(self._space.parameters)
        if size is not None and size <= ENUMERABLE:
            yield from map(Config, every_point(self._space.parameters))

    def _draws(
        self, directions: Sequence[optuna.study.StudyDirection], number: int, known: Known
    ) -> Iterator[tuple[Config, dict[str, Scalar]]]:
        """Of one of Optuna's samplers, asked in a study in memory: configs, each with all that it drew."""
        assert self._recipe.make is not None
        inner = self._recipe.make(self._seed, seed_of(self._seed, number))
        storage = InMemoryStorage()
        with silent_optuna():
            shadow = optuna.create_study(directions=directions, sampler=inner, storage=storage)
        study_id = storage.get_study_id_from_name(shadow.study_name)
        for lesson in self._lessons([trial for _, trial, _ in known.placed]):
            storage.create_new_trial(study_id, lesson)
        shadow.ask()
        trial = shadow.get_trials(deepcopy=False)[-1]
        for _ in range(self._recipe.draws):
            yield self._draw(inner, shadow, trial)

    def _draw(
        self, inner: BaseSampler, shadow: optuna.Study, trial: FrozenTrial
    ) -> tuple[Config, dict[str, Scalar]]:
        """One draw of the sampler: as a config, and by key with whatever else it drew."""
        if self._recipe.conditional:
            asked = inner.infer_relative_search_space(shadow, trial)
        else:
            asked = {key: d for key, d in self._distributions.items() if not d.single()}
        draw: dict[str, Scalar] = dict(inner.sample_relative(shadow, trial, asked))

        def choose(parameter: Parameter) -> Scalar:
            key = parameter.key
            if parameter.size == 1:
                draw[key] = parameter.values[0]
            elif key not in draw:
                draw[key] = inner.sample_independent(shadow, trial, key, self._distributions[key])
            draw[key] = _snapped(parameter, draw[key])
            return draw[key]

        return self._space.walk(choose), draw

    def _varied(self, draw: Mapping[str, Scalar], rng: np.random.Generator) -> Config:
        """The draw with some of its parameters drawn anew, about two on average."""
        share = min(1.0, 2.0 / max(len(draw), 1))

        def choose(parameter: Parameter) -> Scalar:
            if parameter.key not in draw or rng.random() < share:
                return parameter.draw(rng)
            return draw[parameter.key]

        return self._space.walk(choose)

    def _lessons(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """The trials as the sampler is to see them."""
        lessons = []
        measured = 0
        for trial in trials:
            if trial.state is TrialState.FAIL:
                continue
            lesson = self._finished.get(trial.number) or self._lesson(trial)
            if trial.state is TrialState.COMPLETE:
                self._finished[trial.number] = lesson
                # NSGA-II keeps its generations here; they are those of the order of completion.
                lesson.system_attrs[_GENERATION] = measured // POPULATION
                measured += 1
            lessons.append(lesson)
        return lessons

    def _lesson(self, trial: FrozenTrial) -> FrozenTrial:
        params = dict(trial.params)
        if not self._recipe.conditional:
            params = {key: params.get(key, _neutral(p)) for key, p in self._parameters.items()}
        made = create_trial(
            state=trial.state,
            params=params,
            distributions=self.distributions(params),
            values=trial.values if trial.state is TrialState.COMPLETE else None,
        )
        return _Lesson.like(made)


class _Lesson(FrozenTrial):
    """A trial that a study in memory takes in as it is: copying thousands of them deeply, anew for every
    proposal, takes longer than the sampler does. Its parameters and values are never changed."""

    @classmethod
    def like(cls, trial: FrozenTrial) -> Self:
        lesson = cls.__new__(cls)
        lesson.__dict__.update(trial.__dict__)
        return lesson

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.like(self)


def _snapped(parameter: Parameter, value: Scalar) -> Scalar:
    """What a sampler drew, as the space writes it."""
    if isinstance(parameter, Categorical) or not isinstance(value, int | float):
        return value
    return parameter.snap(value)


def _neutral(parameter: Parameter) -> Scalar:
    """What a flat sampler is shown for a parameter that was not active: the first choice, or the middle."""
    if isinstance(parameter, Categorical):
        return parameter.values[0]
    low, high = parameter.low, parameter.high
    return parameter.snap(math.sqrt(low * high) if parameter.log else (low + high) / 2)


@contextmanager
def silent_optuna() -> Iterator[None]:
    """Keeps Optuna from saying on stderr that it made or opened a study."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
