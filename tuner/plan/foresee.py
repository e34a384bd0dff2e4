"""The front that the first-order model expects, before any trial. Right to a few tens of per cent. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cluster.traffic.pace import Service
from objectives.front import non_dominated
from objectives.goal import Goal
from objectives.metrics import METRICS
from search_spaces.parameters import every
from search_spaces.space import Config, Space
from tuner.plan.shapes import Foreseen
from tuner.sampler.guidance import Foresight, Predict
from tuner.titles import Titles


def foreseen_front(
    space: Space, goal: Goal, predict: Predict, configs: Sequence[Config]
) -> tuple[Foreseen, ...]:
    """Those of these configs that no other is expected to dominate, the best by the first objective first.

    Empty where an objective is not predicted.
    """
    told = predict(configs)
    losses = _losses(goal, told, len(configs))
    titles = Titles.of(every(space.parameters))
    places = np.flatnonzero(non_dominated(losses))
    return tuple(
        _foreseen(goal, told, int(place), titles.config(configs[place].values), configs[place])
        for place in sorted(places.tolist(), key=lambda place: tuple(losses[place]))
    )


def foreseen_control(goal: Goal, told: Foresight) -> Foreseen | None:
    """What is expected of the engine's defaults; None where an objective is not predicted.

    Args:
        told: of them alone.
    """
    losses = _losses(goal, told, 1)
    if not np.isfinite(losses).all():
        return None
    return _foreseen(goal, told, 0, "the engine's defaults", None)


def defaults_of(space: Space) -> tuple[Space, Config]:
    """The engine's defaults as a space of their own with its only config, for what predicts configs alone."""
    bare = replace(space, parameters=(), constraints=(), named_objectives=space.objectives)
    return bare, Config({})


def service_of(told: Foresight) -> Service | None:
    """How long a request is expected to take with the first of the configs; None where that is not known."""
    means = [told.metrics.get(f"{latency}_mean_s", np.full(1, np.nan))[0] for latency in ("ttft", "tpot")]
    if not np.isfinite(means).all():
        return None
    return Service(ttft_s=float(means[0]), tpot_s=float(means[1]))


def _losses(goal: Goal, told: Foresight, count: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """(n, m), NaN where nothing is predicted or the config is expected not to start."""
    columns = [
        (-1.0 if objective.direction == "maximise" else 1.0)
        * told.metrics.get(objective.metric, np.full(count, np.nan))
        for objective in goal.objectives
    ]
    rows = np.array(columns, dtype=np.float64).T.reshape(count, len(columns))
    rows[~told.fits] = np.nan
    return rows


def _foreseen(goal: Goal, told: Foresight, place: int, title: str, config: Config | None) -> Foreseen:
    broken = told.violations.get("slo_attainment")
    return Foreseen(
        title=title,
        config=None if config is None else dict(config.values),
        objectives={
            objective.name: METRICS[objective.metric].factor * float(told.metrics[objective.metric][place])
            for objective in goal.objectives
        },
        holds=broken is None or bool(broken[place] <= 0),
    )
