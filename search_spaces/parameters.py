"""One thing that may be varied: a choice among a few, a whole number, a real number; and the tree they form.

A choice can bring further parameters with it, which are *active* only where that choice is taken.
Nothing here knows constraints or files.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from search_spaces.values import Json, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One named alternative of a parameter, with what it sets and what it makes active."""

    name: str
    set: Mapping[str, Json] = field(default_factory=dict)
    """Engine arguments, merged deep into the others; null takes an argument away."""
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    """Another checkpoint to serve in place of the space's model; None: the space's own."""
    parameters: "tuple[Parameter, ...]" = ()
    help: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical:
    """One of a few alternatives: all of them named choices, or all of them scalars.

    Attributes (of all three kinds of parameter):
        path: the short name a person uses, choices left out: "speculation.depth". Unique among
            parameters that can be active together; branches of one parameter may share it.
        key: unique in the whole tree, choices included: "speculation.ngram.depth".
        argument: engine argument that takes the value, dotted into nested ones; None where named
            choices say what they set, or where an environment variable takes it.
        environment: environment variable that takes the value.
    """

    path: str
    key: str
    choices: tuple[Choice | Scalar, ...]
    argument: str | None = None
    environment: str | None = None
    help: str | None = None
    values: tuple[Scalar, ...] = field(init=False, repr=False, compare=False)
    """What a config may hold: the names of named choices, the scalars themselves otherwise."""
    _named: Mapping[Scalar, Choice] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Kept, since a search asks for them some thousand times a proposal.
        named = {choice.name: choice for choice in self.choices if isinstance(choice, Choice)}
        values = tuple(choice.name if isinstance(choice, Choice) else choice for choice in self.choices)
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "values", values)

    @property
    def named(self) -> bool:
        return isinstance(self.choices[0], Choice)

    @property
    def size(self) -> int:
        return len(self.choices)

    @property
    def corners(self) -> tuple[Scalar, ...]:
        """The values that a check of all arguments must see: every one."""
        return self.values

    def choice(self, value: Scalar) -> Choice | None:
        """The named choice of that name; None for a scalar."""
        return self._named.get(value)

    def check(self, value: Scalar) -> Scalar:
        """The value as the space writes it. Raises ValueError, saying what is allowed."""
        for known in self.values:
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return known
        raise ValueError(f"must be one of {', '.join(map(repr, self.values))}, got {value!r}")

    def draw(self, rng: np.random.Generator) -> Scalar:
        return self.values[int(rng.integers(len(self.choices)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """A whole number from `low` to `high`, both included, in steps from `low`.

    With `log`, small values are drawn as often as large ones (log-uniform), then snapped to the step.
    """

    path: str
    key: str
    low: int
    high: int
    step: int = 1
    log: bool = False
    argument: str | None = None
    environment: str | None = None
    help: str | None = None

    @property
    def size(self) -> int:
        return (self.high - self.low) // self.step + 1

    @property
    def values(self) -> range:
        return range(self.low, self.high + 1, self.step)

    @property
    def corners(self) -> tuple[int, ...]:
        """Both ends, once each."""
        return tuple(dict.fromkeys((self.low, self.values[-1])))

    def snap(self, value: float) -> int:
        """The nearest value on the step within the range."""
        return self.low + self.step * min(max(round((value - self.low) / self.step), 0), self.size - 1)

    def check(self, value: Scalar) -> int:
        """The value as an int. Raises ValueError, saying what is allowed."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
            raise ValueError(f"must be a whole number, got {value!r}")
        if int(value) not in self.values:
            raise ValueError(f"must be {described(self)}, got {value!r}")
        return int(value)

    def draw(self, rng: np.random.Generator) -> int:
        if self.log:
            return self.snap(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return self.values[int(rng.integers(self.size))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A real number from `low` to `high`, both included; in steps from `low` where there is a step."""

    path: str
    key: str
    low: float
    high: float
    step: float | None = None
    log: bool = False
    argument: str | None = None
    environment: str | None = None
    help: str | None = None

    @property
    def size(self) -> int | None:
        """How many values; None: a continuum."""
        if self.step is None:
            return 1 if self.low == self.high else None
        return int((_decimal(self.high) - _decimal(self.low)) // _decimal(self.step)) + 1

    @property
    def values(self) -> tuple[float, ...]:
        """All values. Raises ValueError for a continuum."""
        if self.size is None:
            raise ValueError(f"{self.path} has no steps to list")
        return tuple(self._at(index) for index in range(self.size))

    @property
    def corners(self) -> tuple[float, ...]:
        """Both ends, once each."""
        return tuple(dict.fromkeys((self.low, self.high if self.size is None else self._at(self.size - 1))))

    def snap(self, value: float) -> float:
        """The nearest value within the range, on the step if there is one."""
        if self.step is None or self.size is None:
            return min(max(value, self.low), self.high)
        return self._at(min(max(round((value - self.low) / self.step), 0), self.size - 1))

    def check(self, value: Scalar) -> float:
        """The value as a float. Raises ValueError, saying what is allowed."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"must be a number, got {value!r}")
        snapped = self.snap(value)
        # What JSON or a database gives back may be off in the last digit.
        if not math.isclose(snapped, value, rel_tol=1e-12, abs_tol=1e-12 * (self.step or 1)):
            raise ValueError(f"must be {described(self)}, got {value!r}")
        return snapped

    def draw(self, rng: np.random.Generator) -> float:
        if self.log:
            return self.snap(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        if self.size is not None:
            return self._at(int(rng.integers(self.size)))
        return float(rng.uniform(self.low, self.high))

    def _at(self, index: int) -> float:
        # In decimal, as a person wrote it: 0.8 + 0.05 is 0.85, not 0.8500000000000001.
        return float(_decimal(self.low) + index * _decimal(self.step or 0.0))


Parameter: TypeAlias = Categorical | Integer | Real


def described(parameter: Parameter) -> str:
    """The range in words: "16 to 512 in steps of 16, log"."""
    if isinstance(parameter, Categorical):
        return " | ".join("null" if value is None else str(value) for value in parameter.values)
    words = f"{parameter.low} to {parameter.high}"
    if parameter.step not in (None, 1) or (isinstance(parameter, Real) and parameter.step is not None):
        words += f" in steps of {parameter.step}"
    return f"{words}, log" if parameter.log else words


def chosen(parameter: Parameter, value: Scalar) -> Choice | None:
    """The named choice that the value takes; None where the parameter has none."""
    return parameter.choice(value) if isinstance(parameter, Categorical) else None


def active(
    parameters: tuple[Parameter, ...], values: Mapping[str, Scalar]
) -> Iterator[tuple[Parameter, Scalar]]:
    """The active parameters with their values (by path), in tree order: a choice's own follow it."""
    for parameter in parameters:
        value = values[parameter.path]
        yield parameter, value
        choice = chosen(parameter, value)
        if choice is not None and choice.parameters:
            yield from active(choice.parameters, values)


def every(parameters: tuple[Parameter, ...]) -> Iterator[Parameter]:
    """All parameters of the tree, active together or not, in tree order."""
    for parameter in parameters:
        yield parameter
        if isinstance(parameter, Categorical):
            for choice in parameter.choices:
                if isinstance(choice, Choice):
                    yield from every(choice.parameters)


@lru_cache(maxsize=4096)
def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))
