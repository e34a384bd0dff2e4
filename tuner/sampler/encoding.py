"""Configs as rows of numbers for a Gaussian process: choices one-hot, numbers scaled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Categorical, Parameter, active, every
from search_spaces.space import Config, Space

Array = NDArray[np.float64]

_INACTIVE = 0.5
"""Where a number stands that is not active: it then says nothing, and its branch's choice says all."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A parameter's share of a row. Each branch has its own: what depth does to a draft tells nothing of
    n-grams."""

    key: str
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
        parameters: how many there are, those with one value left out.
        groups: (columns,) for each column, the number of its parameter: they share a length scale.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        columns = [_column(parameter) for parameter in every(space.parameters)]
        self._columns = [column for column in columns if column is not None]
        self.parameters = len(self._columns)
        widths = [column.width for column in self._columns]
        self.groups = np.repeat(np.arange(self.parameters), np.array(widths, dtype=np.intp))

    def rows(self, configs: Sequence[Config]) -> Array:
        """(n, columns). Two choices of a parameter are at distance 1, as both ends of a range are."""
        rows = np.zeros((len(configs), len(self.groups)))
        for row, config in zip(rows, configs, strict=True):
            held = {p.key: value for p, value in active(self._space.parameters, config.values)}
            start = 0
            for column in self._columns:
                absent = column.key not in held
                if not column.values:
                    row[start] = _INACTIVE if absent else column.place(held[column.key])
                elif not absent:
                    row[start + column.values.index(held[column.key])] = math.sqrt(0.5)
                start += column.width
        return rows


def _column(parameter: Parameter) -> _Column | None:
    """None where there is nothing to tell apart."""
    if isinstance(parameter, Categorical):
        values = tuple(parameter.values)
        return _Column(parameter.key, values, 0.0, 1.0, False) if len(values) > 1 else None
    low, high = float(parameter.low), float(parameter.high)
    return _Column(parameter.key, (), low, high, parameter.log) if low < high else None
