"""The best that can be had of a problem, as far as a large evaluation finds it, and the share of it that some
configs reach.

Random configs first, then Pareto local search: everything one step away from the front is played until
nothing there is new. What any search has recommended since is in the same memory, so a front can only grow.

Source: L. Paquete, M. Chiarandini, T. Stützle, "Pareto local optimum sets in the biobjective traveling
salesman problem", 2004.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.searching.evaluation import Worth
from benchmarks.searching.memory import Memory
from objectives.front import hypervolume, non_dominated
from search_spaces.parameters import Categorical, Parameter, Real, active
from search_spaces.space import Config, Space
from search_spaces.values import Scalar

_RATIOS = (0.5, 0.7, 0.85, 1.18, 1.4, 2.0)
"""How far a number's neighbours lie. Of a small whole number the next one is always among them."""

_ALIKE = 0.01
"""Points of a front that differ by less in every objective are looked around once."""

_MARGIN = 0.1
"""The reference point lies this share of the front's extent beyond its worst ends, as is usual: H. Ishibuchi
and others, "How to specify a reference point in hypervolume calculation", Evolutionary Computation 26(3),
2018. A search that finds nothing near the front scores 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """The front of the true worths that meet the SLO."""

    losses: tuple[tuple[float, ...], ...]
    reference: tuple[float, ...]
    volume: float
    evaluated: int
    """Configs that it was found among."""

    @classmethod
    def of(cls, memory: Memory) -> "Attainable":
        """Raises ValueError where no config meets the SLO."""
        front = front_of(
            [worth.losses for _, worth in memory.all() if isinstance(worth, Worth) and worth.feasible]
        )
        if not len(front):
            raise ValueError("no config meets the SLO")
        best, worst = front.min(axis=0), front.max(axis=0)
        reference = tuple(float(value) for value in worst + _MARGIN * (worst - best))
        return cls(
            losses=tuple(tuple(map(float, row)) for row in front),
            reference=reference,
            volume=hypervolume(front, reference),
            evaluated=len(memory),
        )

    def share(self, worths: Sequence[Worth]) -> float:
        """Hypervolume of the true worths that meet the SLO, over the attainable one."""
        kept = [worth.losses for worth in worths if worth.feasible]
        return hypervolume(kept, self.reference) / self.volume if kept else 0.0


def front_of(losses: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """(n, m) non-dominated losses, each once."""
    if not losses:
        return np.empty((0, 0))
    rows = np.unique(np.array(losses, dtype=np.float64), axis=0)
    return rows[non_dominated(rows)]


def explore(
    memory: Memory, space: Space, *, draws: int, most: int, say: Callable[[str], None] = lambda _: None
) -> None:
    """Fill the memory: random configs, then the neighbourhood of the front until it is closed.

    Args:
        draws: random configs.
        most: configs in memory at which the search of the neighbourhood stops.
    """
    rng = np.random.default_rng(0)
    for _ in range(draws):
        memory.true(space.sample(rng))
    looked_at: set[Config] = set()
    while len(memory) < most:
        found = _representatives(memory)
        fresh = [config for config in found if config not in looked_at]
        say(f"{len(memory)} configs, {len(found)} on the front, {len(fresh)} of them new")
        if not fresh:
            return
        for config in fresh:
            looked_at.add(config)
            for other in neighbours(space, config):
                memory.true(other)


def _representatives(memory: Memory) -> list[Config]:
    """Configs of the front, one of those that are alike."""
    met: dict[tuple[float, ...], Config] = {}
    for config, worth in memory.all():
        if isinstance(worth, Worth) and worth.feasible:
            met.setdefault(worth.losses, config)  # the first: others as good are not looked around
    kept: list[tuple[float, ...]] = []
    for row in front_of(list(met)):
        losses = tuple(map(float, row))
        if not any(np.allclose(losses, other, rtol=_ALIKE, atol=0) for other in kept):
            kept.append(losses)
    return [met[losses] for losses in kept]


def neighbours(space: Space, config: Config) -> Iterator[Config]:
    """Valid configs that differ in one parameter; a choice's own parameters start in the middle."""
    for parameter, value in active(space.parameters, config.values):
        for other in _others(parameter, value):
            changed = _changed(space, config, parameter, other)
            if not space.faults(changed):
                yield changed


def _changed(space: Space, config: Config, parameter: Parameter, value: Scalar) -> Config:
    held = {p.key: v for p, v in active(space.parameters, config.values)}

    def choose(asked: Parameter) -> Scalar:
        if asked.key == parameter.key:
            return value
        return held[asked.key] if asked.key in held else _middle(asked)

    return space.walk(choose)


def _middle(parameter: Parameter) -> Scalar:
    if isinstance(parameter, Categorical):
        return parameter.values[0]
    return parameter.snap((parameter.low + parameter.high) / 2)


def _others(parameter: Parameter, value: Scalar) -> Iterator[Scalar]:
    if isinstance(parameter, Categorical):
        yield from (other for other in parameter.values if other != value)
        return
    assert isinstance(value, int | float)
    step = parameter.step or 0.0
    near = {parameter.snap(value + step), parameter.snap(value - step)}
    if not isinstance(parameter, Real):
        near |= {parameter.snap(value * ratio) for ratio in _RATIOS}
    yield from sorted(near - {value})
