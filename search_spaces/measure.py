"""What a trial measures, as a space says it: `measure: capacity`, or a mapping with the kind's own settings.

What a node is told to do is `cluster.order`'s; docs/measurement.md says what comes out.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from search_spaces.bodies import read_body
from search_spaces.document import Node
from search_spaces.faults import Fault, nearest
from search_spaces.sections import Section
from search_spaces.values import Json

_CLOSED = re.compile(r"closed:([1-9][0-9]{0,5})")


class Capacity(Section):
    """One replay at the workload's own speed, then the highest speed at which the SLO holds."""

    kind: Literal["capacity"] = "capacity"
    resolution: float = Field(default=0.05, ge=0.001, le=1, allow_inf_nan=False)
    """Ratio of neighbouring speeds, less 1."""
    lowest: float = Field(default=0.25, gt=0, le=1, allow_inf_nan=False)
    """Lowest speed tried, times the workload's."""
    highest: float = Field(default=16.0, ge=1, allow_inf_nan=False)
    """Highest speed tried, times the workload's."""
    repeats: int = Field(default=1, ge=1, le=100)
    """Of the replay at the workload's own speed."""


class Fixed(Section):
    """The workload at its own speed."""

    kind: Literal["fixed"] = "fixed"
    repeats: int = Field(default=1, ge=1, le=100)
    """Replays within one engine start."""


class Closed(Section):
    """So many requests in flight all the time."""

    kind: Literal["closed"] = "closed"
    concurrency: int = Field(ge=1)


Measure: TypeAlias = Capacity | Fixed | Closed

_KINDS: Mapping[str, type[Capacity] | type[Fixed] | type[Closed]] = {
    "capacity": Capacity,
    "fixed": Fixed,
    "closed": Closed,
}

CAPACITY_ONLY: Mapping[str, str] = {
    "capacity": "goodput",
    "capacity_tokens": "goodput_tokens",
    "capacity_per_gpu": "goodput_per_gpu",
    "capacity_tokens_per_gpu": "goodput_tokens_per_gpu",
}
"""Objectives that only a capacity search measures, and the one of a single load that is nearest."""


def default_objectives(measure: Measure) -> tuple[str, ...]:
    """What counts as better where nobody said."""
    return ("capacity" if isinstance(measure, Capacity) else "goodput", "tpot_p95")


def unmeasured(objectives: tuple[str, ...], measure: Measure) -> tuple[str, ...]:
    """Those of the objectives that this kind does not measure."""
    return (
        () if isinstance(measure, Capacity) else tuple(name for name in objectives if name in CAPACITY_ONLY)
    )


def word_of(measure: Measure) -> str:
    """The measure as a command line has it: "capacity", "fixed", "closed:16"."""
    return f"closed:{measure.concurrency}" if isinstance(measure, Closed) else measure.kind


def measured_as(measure: Measure, word: str) -> Measure:
    """The measure that a word names; this one, with its settings, where the word names its kind.

    Raises ValueError, in one line, for a word that names none.
    """
    closed = _CLOSED.fullmatch(word)
    if closed is not None:
        return Closed(concurrency=int(closed[1]))
    if word == measure.kind and word != "closed":
        return measure
    match word:
        case "capacity":
            return Capacity()
        case "fixed":
            return Fixed()
        case _:
            raise ValueError(f"is capacity, fixed or closed:N with N requests in flight, got {word!r}")


def measure_from(data: Mapping[str, Json]) -> Measure:
    """What `model_dump` made of one. Raises ValueError, in one line."""
    kind = _KINDS.get(str(data.get("kind")))
    if kind is None:
        raise ValueError(f"no such kind of measure: {data.get('kind')!r}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"measure.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_measure(node: Node | None, faults: list[Fault]) -> Measure | None:
    """The `measure:` of a space; capacity where there is none. None, with the faults added, where it is
    at fault."""
    if node is None or node.value is None:
        return Capacity()
    value = node.value if isinstance(node.value, dict) else {"kind": node}
    named = value.get("kind")
    if named is None:
        faults.append(node.fault(f"needs 'kind': {', '.join(_KINDS)}"))
        return None
    kind = _KINDS.get(named.value) if isinstance(named.value, str) else None
    if kind is None:
        faults.append(
            named.fault(f"no such kind of measure as {named.plain!r}{nearest(str(named.plain), _KINDS)}")
        )
        return None
    if kind is Closed and "concurrency" not in value:
        faults.append(node.fault("closed needs the requests in flight: {kind: closed, concurrency: 16}"))
        return None
    foreign = {key: child for key, child in value.items() if _owners(key) and key not in kind.model_fields}
    for key, child in foreign.items():
        own = ", ".join(name for name in kind.model_fields if name != "kind")
        faults.append(child.fault(f"goes with kind {' or '.join(_owners(key))}; {named.value} has {own}"))
    own_part = replace(node, value={key: child for key, child in value.items() if key not in foreign})
    read = read_body(own_part, kind, faults, f"a measure of kind {named.value}")
    return None if foreign else read


def _owners(key: str) -> list[str]:
    """The kinds that have such a setting."""
    return [name for name, kind in _KINDS.items() if key in kind.model_fields]
