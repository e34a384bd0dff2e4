"""A study in its database: ask for a config, tell what it was worth, put right what a killed driver left.

Values are kept in people's units and in each objective's own direction, so that the database reads well in
any of Optuna's tools. A failed trial has a cause and no number.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from cluster.order import Cause
from objectives.goal import Goal
from objectives.metrics import METRICS
from search_spaces.faults import SpaceError
from search_spaces.space import Config, Space
from tuner.redaction import without_passwords
from tuner.sampler.guidance import Guidance
from tuner.sampler.lessons import CAUSE, UNSCORED, Placed, placed
from tuner.sampler.proposer import Known, Proposer, silent_optuna
from tuner.sampler.recipes import Recipe, SamplerError

_REASON, _CONTROL, _GIVEN_BACK, _REPEATS = "reason", "is_control", "given_back", "repeats"

_UNGUIDED = Guidance()

_REASON_LENGTH = 500
"""Characters of a reason that the database keeps; the whole of it is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A trial that was asked for and not told yet."""

    number: int
    config: Config
    """Empty for a repeat of a control that is no point of the space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What a trial was worth: losses, in the goal's order, and by how much it missed what must hold."""

    losses: tuple[float, ...]
    violations: Mapping[str, float] = field(default_factory=dict)
    """By name, at most 0 where it holds (`objectives.goal.violations`); kept as Optuna's constraints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """Why a trial has no number; `cause` None where the engine served it but an objective is missing."""

    cause: Cause | None
    reason: str


Verdict = Scored | Unscored


@contextmanager
def _in_database() -> Iterator[None]:
    """A database that is locked, full or gone, as a SamplerError in one line."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        reason = without_passwords(str(error.__cause__ or error).splitlines()[0])
        raise SamplerError(
            f"the study database cannot be used: {reason}; what was measured is on disk, and --resume goes on"
        ) from error


class Search:
    """One study. Only one process at a time may hold it: the caller sees to that."""

    def __init__(
        self, study: optuna.Study, space: Space, goal: Goal, recipe: Recipe, seed: int, guidance: Guidance
    ) -> None:
        self._study = study
        self._space = space
        self._goal = goal
        self._proposer = Proposer(space, goal, recipe, seed, guidance)
        self._places: dict[int, Placed] = {}

    @classmethod
    def open(
        cls,
        *,
        space: Space,
        goal: Goal,
        study: str,
        storage: str,
        recipe: Recipe,
        seed: int,
        guidance: Guidance = _UNGUIDED,
    ) -> Self:
        """The study of that name, made if there is none.

        Args:
            storage: URL of a database, as SQLAlchemy takes it.
            guidance: for the sampler `ehvi`, which without it knows nothing but the trials.

        Raises:
            SamplerError: the database cannot be opened, or its study has other objectives.
        """
        directions = [
            StudyDirection.MAXIMIZE if objective.direction == "maximise" else StudyDirection.MINIMIZE
            for objective in goal.objectives
        ]
        shown = without_passwords(storage)
        try:
            with silent_optuna():
                opened = optuna.create_study(
                    study_name=study,
                    storage=storage,
                    directions=directions,
                    # Never asked: every trial is entered with all of its parameters.
                    sampler=optuna.samplers.RandomSampler(),
                    load_if_exists=True,
                )
        except (ArgumentError, ImportError) as error:
            raise SamplerError(f"study database {shown!r} is no URL of a database: {error}") from error
        except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
            reason = without_passwords(str(error.__cause__ or error).splitlines()[0])
            raise SamplerError(f"study database {shown!r} cannot be opened: {reason}") from error
        if opened.directions != directions or opened.metric_names not in (None, list(goal.names)):
            has = opened.metric_names or [direction.name.lower() for direction in opened.directions]
            raise SamplerError(
                f"study {study!r} in {shown!r} was made for other objectives: it has {', '.join(has)}; "
                f"asked for {', '.join(goal.names)}; give the study another name"
            )
        with warnings.catch_warnings():
            # Experimental since Optuna 3.2; it only names the columns.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            opened.set_metric_names(list(goal.names))
        return cls(opened, space, goal, recipe, seed, guidance)

    @property
    def length(self) -> int:
        """How many trials there are, whatever their state: the number that the next one gets."""
        return len(self._trials())

    def running(self) -> tuple[Proposal, ...]:
        """Trials asked for and not told: this process's, and those that a dead one left."""
        return tuple(
            Proposal(number=trial.number, config=self._config(trial) if trial.params else Config({}))
            for trial in self._trials()
            if trial.state is TrialState.RUNNING
        )

    @_in_database()
    def ask(self) -> Proposal:
        """The next trial: a config that was cancelled before it was measured, or else a new one.

        Raises:
            SpaceExhausted: every config has been tried or is under way; no trial is made.
        """
        trials = self._trials()
        number = len(trials)
        found = self._placed(trials)
        config = next(iter(self._given_back(found)), None)
        if config is None:
            config = self._proposer.propose(self._study.directions, number, Known.of(found))
        # One insert with all parameters: no driver can die between a trial and its config.
        self._add(TrialState.RUNNING, config)
        return Proposal(number=number, config=config)

    @_in_database()
    def recommended(self) -> tuple[Config, ...] | None:
        """The configs that the sampler's models cannot tell from the best, lucky measurements seen through;
        None of a sampler that has no models of what is measured."""
        return self._proposer.recommended(self._placed(self._trials()))

    @_in_database()
    def repeat(self, first: int, config: Config | None) -> int:
        """Enter a trial that measures a config again; its number. To samplers it is one more trial of it.

        Args:
            first: number of the config's first trial.
            config: None where it is no point of the space.
        """
        number = self.length
        self._add(TrialState.RUNNING, config, None, {_REPEATS: first})
        return number

    @_in_database()
    def tell(self, number: int, verdict: Verdict) -> None:
        """End a trial that was asked for. One that has been told already keeps what it was told."""
        self._tell(number, verdict, _attributes(verdict))

    @_in_database()
    def cancel(self, number: int) -> None:
        """End a trial that has no outcome. Its config is asked again, first of all, under another number, but
        for a repeat's."""
        verdict = Unscored(cause=Cause.CANCELLED, reason="it was under way when the search ended")
        again = {} if _REPEATS in self._trials()[number].user_attrs else {_GIVEN_BACK: True}
        self._tell(number, verdict, {**again, **_attributes(verdict)})

    def _tell(self, number: int, verdict: Verdict, attributes: Mapping[str, str | bool]) -> None:
        frozen = self._trials()[number]
        if frozen.state.is_finished():
            return
        trial = Trial(self._study, frozen._trial_id)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        match verdict:
            case Scored():
                for name, violation in verdict.violations.items():
                    trial.set_constraint(name, violation)
                self._study.tell(number, self._shown(verdict))
            case Unscored():
                self._study.tell(number, state=TrialState.FAIL)

    @_in_database()
    def add(
        self,
        number: int,
        config: Config | None,
        verdict: Verdict,
        *,
        is_control: bool = False,
        repeats: int | None = None,
    ) -> None:
        """Enter a trial that was not asked for: a control, or one that is on disk and not in the database.

        Args:
            number: at least `length`; the numbers between are entered as cancelled.
            config: None where it is no point of the space; then it teaches the sampler nothing.
            repeats: number of the trial whose config it measured again, if it did.
        """
        for _ in range(self.length, number):
            reason = "its outcome is not on disk"
            self._add(TrialState.FAIL, None, Unscored(cause=Cause.CANCELLED, reason=reason))
        state = TrialState.COMPLETE if isinstance(verdict, Scored) else TrialState.FAIL
        marks: dict[str, bool | int] = {_CONTROL: True} if is_control else {}
        self._add(state, config, verdict, marks if repeats is None else {**marks, _REPEATS: repeats})

    def _add(
        self,
        state: TrialState,
        config: Config | None,
        verdict: Verdict | None = None,
        attributes: Mapping[str, str | bool | int] = MappingProxyType({}),
    ) -> None:
        params = {} if config is None else self._proposer.params(config)
        self._study.add_trial(
            create_trial(
                state=state,
                params=params,
                distributions=self._proposer.distributions(params),
                values=self._shown(verdict) if isinstance(verdict, Scored) else None,
                constraints=dict(verdict.violations) if isinstance(verdict, Scored) else None,
                user_attrs={**attributes, **({} if verdict is None else _attributes(verdict))},
            )
        )

    @_in_database()
    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _config(self, trial: FrozenTrial) -> Config:
        try:
            return self._space.walk(lambda parameter: trial.params[parameter.key])
        except (KeyError, SpaceError) as error:
            fault = f"no parameter {error}" if isinstance(error, KeyError) else str(error)
            raise SamplerError(
                f"study {self._study.study_name!r} was made with another space: in its trial {trial.number}, "
                f"{fault}; go on with the space it was made with, or give it another name"
            ) from error

    def _placed(self, trials: Sequence[FrozenTrial]) -> list[Placed]:
        """Those with parameters, each with its config; read off once, since parameters never change."""
        found = []
        for trial in trials:
            if trial.params:
                known = self._places.get(trial.number)
                if known is None:
                    known = self._places[trial.number] = placed(self._space, self._config(trial), trial)
                found.append(known._replace(trial=trial))
        return found

    def _given_back(self, found: Sequence[Placed]) -> list[Config]:
        """Configs of cancelled trials that no later trial has taken up, oldest first."""
        last = {config: trial for config, trial, _ in found}
        return [config for config, trial in last.items() if _GIVEN_BACK in trial.user_attrs]

    def _shown(self, scored: Scored) -> list[float]:
        """Losses as the database keeps them: each objective's own direction, in people's units."""
        values = self._goal.values(scored.losses)
        pairs = zip(self._goal.objectives, values, strict=True)
        return [METRICS[objective.metric].factor * value for objective, value in pairs]


def _attributes(verdict: Verdict) -> dict[str, str]:
    match verdict:
        case Scored():
            return {}
        case Unscored(cause=cause, reason=reason):
            return {CAUSE: UNSCORED if cause is None else cause.value, _REASON: reason[:_REASON_LENGTH]}
