"""Where a trial's search for its capacity begins: at the capacities of the trials most like it.

It decides how many replays the search takes and, noise apart, not what it finds. Likeness is that of what the
engine is given: an argument that differs counts 1, a number that differs what its ratio is worth. So it needs
no space, and says as much of the control, of an ablation's runs and of a second study's.

`python -m benchmarks.cheaper_trials` measures what it saves.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeGuard

from cluster.order import CapacityLoad, Order
from search_spaces.settings import leaves
from search_spaces.values import Json
from tuner.records import StoredTrial

_APART = 16.0
"""Ratio of two numbers that counts as much as another choice."""


def first_speed(trials: Iterable[StoredTrial], order: Order) -> float | None:
    """The median of the capacities measured so far, each weighing e^-d² at a distance d from the order.

    None where none was measured. A trial whose SLO held at no speed tried has a capacity of 0, which is no
    speed to begin at. Independent of the trials' order.
    """
    wanted = _settings(order.model, order.arguments)
    found = sorted(
        (speed, math.exp(-_squared_distance(wanted, _settings(trial.model, trial.arguments))))
        for trial in trials
        if trial.measurement and (speed := trial.measurement.value("capacity_speed"))
    )
    half = sum(weight for _, weight in found) / 2
    below = 0.0
    for speed, weight in found:
        below += weight
        if below >= half:
            return speed
    return None


def begun_at(order: Order, trials: Iterable[StoredTrial]) -> Order:
    """The order with a speed to begin at, if it is to find a capacity and these trials tell one."""
    match order.load:
        case CapacityLoad():
            return replace(order, load=replace(order.load, guess=first_speed(trials, order)))
        case _:
            return order


def _settings(model: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {"model": model, **dict(leaves(arguments))}


def _squared_distance(one: Mapping[str, Json], other: Mapping[str, Json]) -> float:
    return math.fsum(_difference(one.get(name), other.get(name)) for name in {*one, *other})


def _difference(one: Json, other: Json) -> float:
    """From 0 for the same to 1 for another choice."""
    if one == other:
        return 0.0
    if _is_size(one) and _is_size(other):
        return min((math.log(one / other) / math.log(_APART)) ** 2, 1.0)
    return 1.0


def _is_size(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
