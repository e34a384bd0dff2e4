"""What is compared: ways to propose the next config, each with its name.

Those of `tuner.sampler` are asked as a study asks them. The others are Optuna without any of our filters, and
BoTorch over a pool of valid configs.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import optuna
from optuna.samplers import BaseSampler, TPESampler

from benchmarks.searching.evaluation import Crash, Evaluation
from benchmarks.searching.scenarios import Loaded
from search_spaces.parameters import Categorical, Integer, Parameter
from search_spaces.space import Config
from search_spaces.values import Scalar
from tuner.sampler import Guidance, Predict, Scored, Search, Unscored, Verdict, sampler_named


class Asker(Protocol):
    """Asks for configs of one problem and is told what they were worth."""

    def control(self, worth: Evaluation) -> None:
        """Told first of all, under number 0."""
        ...

    def ask(self) -> tuple[int, Config]: ...

    def tell(self, number: int, worth: Evaluation) -> None: ...

    def recommended(self) -> tuple[Config, ...] | None:
        """By its own models, so far; None where it has none that are asked for this."""
        ...


Open = Callable[[Loaded, Predict | None, int], AbstractContextManager[Asker]]
"""Of a problem, its prior and the run's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to search."""

    name: str
    open: Open
    guided: bool = False
    """Whether it reads the prior: if not, it does the same whatever the prior says."""
    parallel: tuple[int, ...] = (1,)
    """Trials at once that it is run with."""


class _Ours:
    """A sampler of `tuner.sampler` as a study has it: a database, the filters, violations told."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def control(self, worth: Evaluation) -> None:
        self._search.add(0, None, _verdict(worth), is_control=True)

    def ask(self) -> tuple[int, Config]:
        proposal = self._search.ask()
        return proposal.number, proposal.config

    def tell(self, number: int, worth: Evaluation) -> None:
        self._search.tell(number, _verdict(worth))

    def recommended(self) -> tuple[Config, ...] | None:
        return self._search.recommended()


def _verdict(worth: Evaluation) -> Verdict:
    if isinstance(worth, Crash):
        return Unscored(cause=worth.cause, reason=worth.reason)
    return Scored(losses=worth.losses, violations={"slo_attainment": worth.violation})


def _ours(sampler: str, guidance: Callable[[Predict | None], Guidance] | None = None) -> Open:
    @contextmanager
    def opened(loaded: Loaded, predict: Predict | None, seed: int) -> Iterator[Asker]:
        with tempfile.TemporaryDirectory() as folder:
            yield _Ours(
                Search.open(
                    space=loaded.space,
                    goal=loaded.goal,
                    study="benchmark",
                    storage=f"sqlite:///{Path(folder) / 'study.sqlite'}",
                    recipe=sampler_named(sampler),
                    seed=seed,
                    guidance=Guidance() if guidance is None else guidance(predict),
                )
            )

    return opened


class _Plain:
    """Optuna as it comes: parameters asked one by one, whatever is not valid or crashes told as failed."""

    def __init__(self, loaded: Loaded, sampler: BaseSampler) -> None:
        self._space = loaded.space
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            directions=["minimize"] * len(loaded.goal.objectives), sampler=sampler
        )
        optuna.logging.set_verbosity(verbosity)
        self._asked: dict[int, optuna.Trial] = {}

    def control(self, worth: Evaluation) -> None:
        """It is no point of the space."""

    def ask(self) -> tuple[int, Config]:
        trial = self._study.ask()
        config = self._space.walk(lambda parameter: _suggested(trial, parameter))
        number = trial.number + 1  # 0 is the control
        self._asked[number] = trial
        return number, config

    def tell(self, number: int, worth: Evaluation) -> None:
        trial = self._asked.pop(number)
        if isinstance(worth, Crash):
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, list(worth.losses))

    def recommended(self) -> tuple[Config, ...] | None:
        return None


def _suggested(trial: optuna.Trial, parameter: Parameter) -> Scalar:
    key = parameter.key
    if isinstance(parameter, Categorical):
        value: Scalar = trial.suggest_categorical(key, parameter.values)
        return value
    drawn: float
    if isinstance(parameter, Integer):
        step = 1 if parameter.log else parameter.step  # Optuna has no steps on a logarithmic scale
        drawn = trial.suggest_int(key, parameter.low, parameter.high, step=step, log=parameter.log)
    else:
        pace = None if parameter.log else parameter.step
        drawn = trial.suggest_float(key, parameter.low, parameter.high, step=pace, log=parameter.log)
    return parameter.snap(drawn)


def _plain(make: Callable[[int], BaseSampler]) -> Open:
    @contextmanager
    def opened(loaded: Loaded, predict: Predict | None, seed: int) -> Iterator[Asker]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield _Plain(loaded, make(seed))

    return opened


def _multivariate(seed: int) -> BaseSampler:
    return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


@contextmanager
def _botorch(loaded: Loaded, predict: Predict | None, seed: int) -> Iterator[Asker]:
    from benchmarks.searching.botorch_pool import BoTorchPool  # its packages are not the project's

    yield BoTorchPool(loaded, seed)


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(
            name="ehvi",
            open=_ours("ehvi", lambda predict: Guidance(predict=predict)),
            guided=True,
            parallel=(1, 4),
        ),
        Arm(name="tpe", open=_ours("tpe"), parallel=(1, 4)),
        Arm(name="random", open=_ours("random"), parallel=(1, 4)),
        Arm(name="optuna tpe", open=_plain(lambda seed: TPESampler(seed=seed))),
        Arm(name="optuna tpe multivariate", open=_plain(_multivariate)),
        Arm(name="ehvi, no prior", open=_ours("ehvi", lambda _: Guidance()), parallel=(1,)),
        Arm(
            name="ehvi, prior ungated",
            open=_ours("ehvi", lambda predict: Guidance(predict=predict, weight="full")),
            guided=True,
        ),
        Arm(
            name="ehvi, no prior mean",
            open=_ours("ehvi", lambda predict: Guidance(predict=predict, weight="none")),
            guided=True,
        ),
        Arm(
            name="ehvi, no warm start",
            open=_ours("ehvi", lambda predict: Guidance(predict=predict, warm_start=False)),
            guided=True,
        ),
        Arm(
            name="ehvi, no failure model",
            open=_ours("ehvi", lambda predict: Guidance(predict=predict, failures=False)),
            guided=True,
        ),
        Arm(
            name="ehvi, no constraint model",
            open=_ours("ehvi", lambda predict: Guidance(predict=predict, constraints=False)),
            guided=True,
        ),
        Arm(name="nsga2", open=_ours("nsga2")),
        Arm(name="qmc", open=_ours("qmc")),
        Arm(name="gp", open=_ours("gp")),
        Arm(name="botorch", open=_botorch),
    )
}
"""By name, in the order in which they are run for each scenario and seed."""
