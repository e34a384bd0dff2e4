"""The points of a tree of parameters, constraints aside: how many, each of them, one by chance, one through a
given value."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from search_spaces.parameters import Categorical, Choice, Parameter, Real, chosen
from search_spaces.values import Scalar

Values: TypeAlias = dict[str, Scalar]
"""By path, active parameters only, in tree order."""


def raw_count(parameters: tuple[Parameter, ...]) -> int | None:
    """How many points there are; None for a continuum."""
    total = 1
    for parameter in parameters:
        size = _branch_counts(parameter)
        if size is None:
            return None
        total *= sum(size)
    return total


def walked(parameters: tuple[Parameter, ...], choose: Callable[[Parameter], Scalar]) -> Values:
    """The point that `choose` makes, asked for each active parameter in tree order. Checks nothing."""
    values: Values = {}
    pending = list(reversed(parameters))
    while pending:
        parameter = pending.pop()
        values[parameter.path] = value = choose(parameter)
        choice = chosen(parameter, value)
        if choice is not None:
            pending.extend(reversed(choice.parameters))
    return values


def every_point(parameters: tuple[Parameter, ...]) -> Iterator[Values]:
    """Each point once, in tree order. Raises ValueError for a continuum."""
    if not parameters:
        yield {}
        return
    first, rest = parameters[0], parameters[1:]
    for value in first.values:
        choice = chosen(first, value)
        for others in every_point((choice.parameters if choice else ()) + rest):
            yield {first.path: value} | others


def uniform(parameters: tuple[Parameter, ...], rng: np.random.Generator) -> Values:
    """A point by chance, each with the same chance. The parameters must be countable."""

    def draw(parameter: Parameter) -> Scalar:
        counts = _branch_counts(parameter)
        if counts is None or isinstance(parameter, Real) or len(counts) == 1:
            return parameter.values[int(rng.integers(parameter.size or 1))]
        shares = np.array(counts, dtype=float)
        return parameter.values[int(rng.choice(len(counts), p=shares / shares.sum()))]

    return walked(parameters, draw)


def drawn(
    parameters: tuple[Parameter, ...], rng: np.random.Generator, given: Mapping[str, Scalar] | None = None
) -> Values:
    """A point by chance, each parameter drawn on its own (branches alike, whatever hangs below them).

    Args:
        given: values by key that are not left to chance.
    """
    held = given or {}
    return walked(
        parameters, lambda parameter: held[parameter.key] if parameter.key in held else parameter.draw(rng)
    )


def ways(parameters: tuple[Parameter, ...], above: Mapping[str, Scalar] | None = None) -> Iterator[Values]:
    """For each corner of each parameter, the values by key that lead there: its own and its ancestors'."""
    for parameter in parameters:
        for corner in parameter.corners:
            way: Values = {**(above or {}), parameter.key: corner}
            yield way
            choice = chosen(parameter, corner)
            if choice is not None:
                yield from ways(choice.parameters, way)


def _branch_counts(parameter: Parameter) -> list[int] | None:
    """Points below each value of a categorical; for a number, how many values, alone; None: a continuum."""
    if not isinstance(parameter, Categorical):
        return None if parameter.size is None else [parameter.size]
    counts = [raw_count(c.parameters) if isinstance(c, Choice) else 1 for c in parameter.choices]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None
