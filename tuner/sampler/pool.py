"""Valid configs to choose from: drawn from the space, and neighbours of those that look good."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from search_spaces.parameters import Categorical, Parameter, active
from search_spaces.points import every_point, raw_count
from search_spaces.space import Config, Space, SpaceError
from search_spaces.values import Scalar

_SMALL = 4_000
"""Points of the bare tree up to which all of them are looked at."""


def drawn(space: Space, rng: np.random.Generator, count: int) -> list[Config]:
    """Different valid configs by chance, `count` of them if chance finds so many; all of a small space."""
    size = raw_count(space.parameters)
    if size is not None and size <= _SMALL:
        everything = map(Config, every_point(space.parameters))
        return [config for config in everything if not space.faults(config)]
    found: dict[Config, None] = {}
    try:
        for _ in range(2 * count):
            found.setdefault(space.sample(rng))
            if len(found) == count:
                break
    except SpaceError:
        pass  # so few are valid that chance meets none
    return list(found)


def neighbours(
    space: Space,
    configs: Iterable[Config],
    rng: np.random.Generator,
    valid: Callable[[Config], bool],
    most: int,
) -> list[Config]:
    """Different valid configs, each of which differs from one of these in one parameter, what hangs below a
    choice aside; some by chance where there are more than so many.

    Every other choice is tried; a number one step to each side, and further to each side by chance.

    Args:
        valid: whether nothing in the space stands against a config.
    """
    moves = [
        (config, parameter, other)
        for config in configs
        for parameter, value in active(space.parameters, config.values)
        for other in _others(parameter, value, rng)
    ]
    found: dict[Config, int] = {}
    for place in rng.permutation(len(moves)).tolist():
        if len(found) == most:
            break
        config, parameter, other = moves[place]
        moved = space.walk(_changed(config, parameter, other, rng))
        if moved != config and moved not in found and valid(moved):
            found[moved] = place
    return sorted(found, key=found.__getitem__)


def _others(parameter: Parameter, value: Scalar, rng: np.random.Generator) -> Iterable[Scalar]:
    if isinstance(parameter, Categorical):
        return [other for other in parameter.values if other != value]
    assert isinstance(value, int | float)
    step = parameter.step or (parameter.high - parameter.low) / 50
    tried: list[Scalar] = [parameter.snap(value - step), parameter.snap(value + step)]
    for reach in rng.exponential(0.25, size=4) * (1, -1, 1, -1):
        if parameter.log:
            further = value * math.exp(reach * math.log(parameter.high / parameter.low))
        else:
            further = value + reach * (parameter.high - parameter.low)
        tried.append(parameter.snap(further))
    return tried


def _changed(
    config: Config, parameter: Parameter, other: Scalar, rng: np.random.Generator
) -> Callable[[Parameter], Scalar]:
    def choose(asked: Parameter) -> Scalar:
        if asked.key == parameter.key:
            return other
        value = config.values.get(asked.path)
        # A branch newly taken may share a path with the one left, with another range.
        if asked.path in config.values and _allows(asked, value):
            return value
        return asked.draw(rng)

    return choose


def _allows(parameter: Parameter, value: Scalar) -> bool:
    try:
        parameter.check(value)
    except ValueError:
        return False
    return True
