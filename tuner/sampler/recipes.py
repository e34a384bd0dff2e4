"""The samplers by name, and how each is made for one proposal.

A sampler is made anew for every proposal, from the study's seed and the trial's number: a study that was
stopped and resumed asks what it would have asked, and never draws the same numbers twice.
"""

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler

from tuner.mistakes import Mistake

STARTUP_TRIALS = 8
"""Measured trials before a model is trusted. Optuna's 10 would be a quarter of a usual budget of 40."""

POPULATION = 8
"""Of NSGA-II. Optuna's 50 would be random search for longer than most studies last."""

_THREADS = "OMP_NUM_THREADS"


class SamplerError(Mistake):
    """No such sampler, or a study that cannot be searched as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a sampler is made and asked."""

    name: str
    make: Callable[[int, int], BaseSampler] | None
    """From a seed that is the study's and one that is the proposal's; None: our own, made of the space."""
    conditional: bool = False
    """It understands parameters that are active only at times. Otherwise it is shown the flat space, the
    inactive parameters of each trial filled in with a neutral value."""
    draws: int = 64
    """How often it is asked for one proposal before its last draw is varied instead."""
    description: str


@contextmanager
def _experimental() -> Iterator[None]:
    """For what Optuna calls experimental and has kept for years."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _tpe(_: int, seed: int) -> BaseSampler:
    with _experimental():  # `group`, since Optuna 2.8: without it conditional parameters are drawn alone
        return TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, group=True, constant_liar=True
        )


def _gp(_: int, seed: int) -> BaseSampler:
    _load_torch()
    return GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False)


def _load_torch() -> None:
    """Import torch with one OpenMP thread, a number that it reads once, as it is imported.

    Several threads spin on the cores where a trial may be running, and are slower besides: 0.2 s an ask
    with one, up to 3 s with two on two busy cores. The variable is put back, since engines started later
    inherit this process's environment.
    """
    if "torch" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        importlib.import_module("torch")
    finally:
        del os.environ[_THREADS]


def _nsga2(_: int, seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=POPULATION)


def _qmc(study_seed: int, seed: int) -> BaseSampler:
    # One scrambled sequence a study: its points fill the space together, so its seed is the study's.
    with _experimental():  # since Optuna 3.0
        return QMCSampler(
            seed=study_seed,
            scramble=True,
            independent_sampler=RandomSampler(seed=seed),
            warn_independent_sampling=False,
        )


def _random(_: int, seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


SAMPLERS: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="ehvi",
                make=None,
                conditional=True,
                draws=1,  # the best of its pool
                description="our own, guided by a prediction of every config: best where that is about right",
            ),
            Recipe(
                name="tpe",
                make=_tpe,
                conditional=True,
                description="tree-structured Parzen estimator: sound with few trials, predicts nothing",
            ),
            Recipe(
                name="gp",
                make=_gp,
                draws=1,  # each is a fit of its own, and a second one hardly differs
                description="Gaussian process: for settings that act smoothly; takes longest to ask",
            ),
            Recipe(name="nsga2", make=_nsga2, description="genetic: for hundreds of trials, many at once"),
            Recipe(
                name="qmc",
                make=_qmc,
                draws=2048,  # its sequence starts anew for each proposal and runs through what is taken
                description="quasi-random: covers the space evenly, learns nothing",
            ),
            Recipe(name="random", make=_random, conditional=True, description="uniform: the baseline"),
        )
    }
)
"""Every sampler by its name."""


def sampler_named(name: str) -> Recipe:
    """Raises SamplerError for an unknown name, with the nearest."""
    if name in SAMPLERS:
        return SAMPLERS[name]
    close = difflib.get_close_matches(name, SAMPLERS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"samplers are {', '.join(SAMPLERS)}"
    raise SamplerError(f"unknown sampler {name!r}; {hint}")
