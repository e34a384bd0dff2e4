"""What an earlier study, of other hardware, another model version or other traffic, says of where to begin.

Its best configs are the first that are tried; of its numbers nothing is taken over, since they are of
something else. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from objectives.front import non_dominated
from search_spaces.faults import SpaceError
from search_spaces.parameters import Categorical, Parameter
from search_spaces.space import Config, Space
from search_spaces.values import Scalar
from tuner.front import FrontView, losses

MOST = 8
"""Configs that are taken over: in the searches that this was tried on, more of them gained nothing."""


def first_configs(earlier: FrontView, space: Space) -> tuple[Config, ...]:
    """The earlier study's best configs as configs of this space, at most `MOST`.

    Its front first, spread along its first objective if it is long; then what is the front without those, and
    so on. What this space lacks or forbids is left out; a number beyond its range becomes the nearest in it.
    """
    found: dict[Config, None] = {}
    for values in _best(earlier):
        config = _moved(values, space)
        if config is not None:
            found.setdefault(config)
        if len(found) == MOST:
            break
    return tuple(found)


def _best(earlier: FrontView) -> Iterator[Mapping[str, Scalar]]:
    scored = [(t.config, row) for t in earlier.standing if t.config and (row := losses(earlier.goal, t))]
    left = np.array([row for _, row in scored], dtype=np.float64)
    numbers = np.arange(len(scored))
    while len(numbers):
        on = non_dominated(left[numbers])
        if not on.any():
            return
        layer = numbers[on][np.argsort(left[numbers[on], 0], kind="stable")]
        for number in _spread(layer.tolist()):
            yield scored[number][0]
        numbers = numbers[~on]


def _spread(ordered: Sequence[int]) -> list[int]:
    """All of them, those first that are spread evenly from end to end if they are too many."""
    first = np.linspace(0, len(ordered) - 1, min(MOST, len(ordered))).round().astype(int).tolist()
    return [ordered[place] for place in (*first, *(p for p in range(len(ordered)) if p not in first))]


def _moved(values: Mapping[str, Scalar], space: Space) -> Config | None:
    def choose(parameter: Parameter) -> Scalar:
        value = values.get(parameter.path)
        if parameter.path not in values:
            return parameter.corners[0]  # it is new: its first choice, or its lower end
        if isinstance(parameter, Categorical) or not isinstance(value, int | float):
            return parameter.check(value)
        return parameter.snap(min(max(value, parameter.low), parameter.high))

    try:
        config = space.walk(choose)
    except (SpaceError, ValueError):
        return None
    return None if space.faults(config) else config
