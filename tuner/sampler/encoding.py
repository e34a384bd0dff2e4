"""Configs as rows of numbers for a Gaussian process: choices one-hot, numbers scaled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Categorical, Parameter, every
from search_spaces.space import Config, Space

Array = NDArray[np.float64]

_INACTIVE = 0.5
"""Where a number stands that is not active: it then says nothing, and its branch's choice says all."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A path's share of a row. Branches that share a path share it: a draft's depth and an n-gram's."""

    path: str
    values: tuple[object, ...]
    """Of a choice, one column each; empty for a number."""
    low: float
    high: float
    log: bool

    @property
    def width(self) -> int:
        return len(self.values) or 1

    def place(self, value: object) -> float:
        """0 to 1 for a number of the range."""
        assert isinstance(value, int | float)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Encoding:
    """Rows for one space's configs.

    Attributes:
        parameters: how many there are, those with one value and those that share another's path left out.
        groups: (columns,) for each column, the number of its parameter: they share a length scale.
    """

    def __init__(self, space: Space) -> None:
        by_path: dict[str, list[Parameter]] = {}
        for parameter in every(space.parameters):
            by_path.setdefault(parameter.path, []).append(parameter)
        columns = [_column(path, parameters) for path, parameters in by_path.items()]
        self._columns = [column for column in columns if column is not None]
        self.parameters = len(self._columns)
        widths = [column.width for column in self._columns]
        self.groups = np.repeat(np.arange(self.parameters), np.array(widths, dtype=np.intp))

    def rows(self, configs: Sequence[Config]) -> Array:
        """(n, columns). Two choices of a parameter are at distance 1, as both ends of a range are."""
        rows = np.zeros((len(configs), len(self.groups)))
        start = 0
        for column in self._columns:
            for row, config in zip(rows, configs, strict=True):
                absent = column.path not in config.values
                value = config.get(column.path)
                if not column.values:
                    row[start] = _INACTIVE if absent else column.place(value)
                elif not absent:
                    row[start + column.values.index(value)] = math.sqrt(0.5)
            start += column.width
        return rows


def _column(path: str, parameters: Sequence[Parameter]) -> _Column | None:
    """None where there is nothing to tell apart."""
    if any(isinstance(parameter, Categorical) for parameter in parameters):
        values = dict.fromkeys(value for parameter in parameters for value in _listed(parameter))
        return _Column(path, tuple(values), 0.0, 1.0, False) if len(values) > 1 else None
    numbers = [parameter for parameter in parameters if not isinstance(parameter, Categorical)]
    low, high = float(min(p.low for p in numbers)), float(max(p.high for p in numbers))
    log = all(parameter.log for parameter in numbers)
    return _Column(path, (), low, high, log) if low < high else None


def _listed(parameter: Parameter) -> tuple[object, ...]:
    if isinstance(parameter, Categorical) or parameter.size is not None:
        return tuple(parameter.values)
    return (parameter.low, parameter.high)
