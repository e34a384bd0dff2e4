"""The mappings of a space file, level by level: which keys each may have, and faults in a person's words.

Each level is checked on its own, without looking below, so that a fault in one place hides none in another.
"""

from typing import TypeVar

from pydantic import Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from search_spaces.document import Node
from search_spaces.faults import Fault, nearest
from search_spaces.sections import Section

_Body = TypeVar("_Body", bound=Section)


class SpaceBody(Section):
    """The file's top level."""

    name: str | None = None
    help: str | None = None
    model: str = Field(min_length=1)
    resources: dict[str, JsonValue] = Field(default_factory=dict)
    engine: dict[str, JsonValue] = Field(default_factory=dict)
    environment: dict[str, str | int | float | bool] = Field(default_factory=dict)
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    constraints: list[str] = Field(default_factory=list)
    traffic: dict[str, JsonValue] = Field(default_factory=dict)
    slo: dict[str, int | float] = Field(default_factory=dict)
    measure: JsonValue = None
    objectives: list[str] | None = Field(default=None, min_length=1)
    budget: dict[str, JsonValue] = Field(default_factory=dict)
    quality: dict[str, JsonValue] = Field(default_factory=dict)
    trust_remote_code: bool = False


class _ParameterBody(Section):
    argument: str | None = Field(default=None, min_length=1)
    environment: str | None = Field(default=None, min_length=1)
    help: str | None = None


class ChoicesBody(_ParameterBody):
    """A parameter that takes one of a few: a list of scalars, or a mapping of named choices."""

    choices: list[JsonValue] | dict[str, JsonValue]


class IntegerBody(_ParameterBody):
    """A parameter that takes a whole number."""

    ends: list[int] = Field(alias="int", min_length=2, max_length=2)
    step: int = Field(default=1, ge=1)
    log: bool = False


class RealBody(_ParameterBody):
    """A parameter that takes a real number."""

    ends: list[float] = Field(alias="float", min_length=2, max_length=2)
    step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    log: bool = False


class ChoiceBody(Section):
    """A named choice."""

    set: dict[str, JsonValue] = Field(default_factory=dict)
    environment: dict[str, str | int | float | bool] = Field(default_factory=dict)
    model: str | None = Field(default=None, min_length=1)
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    help: str | None = None


def read_body(node: Node, body: type[_Body], faults: list[Fault], what: str) -> _Body | None:
    """The mapping as the model; None, with the faults added, where it is not one.

    Args:
        what: how to call it in a fault: "a choice".
    """
    value = {} if node.value is None else node.value
    if not isinstance(value, dict):
        faults.append(node.fault(f"{what} is a mapping of keys, got {node.plain!r}"))
        return None
    try:
        return body.model_validate({key: child.plain for key, child in value.items()})
    except ValidationError as error:
        seen: set[str] = set()
        for detail in error.errors():
            key = str(detail["loc"][0]) if detail["loc"] else ""
            if key not in seen:  # a union tells a fault once a member
                seen.add(key)
                faults.append(_fault(node, value, detail, body, what))
        return None


def _fault(node: Node, value: dict[str, Node], detail: ErrorDetails, body: type[Section], what: str) -> Fault:
    location = [part for part in detail["loc"] if part is not None]
    key = str(location[0]) if location else ""
    known = [field.alias or name for name, field in body.model_fields.items()]
    match detail["type"]:
        case "missing":
            return node.fault(f"{what} needs '{key}'")
        case "extra_forbidden":
            return value[key].fault(f"unknown key in {what}{nearest(key, known)}")
        case _:
            pass
    place = value.get(key, node)
    for part in location[1:]:
        if isinstance(part, int) and isinstance(place.value, list) and part < len(place.value):
            place = place.value[part]
        elif isinstance(place.value, dict) and str(part) in place.value:
            place = place.value[str(part)]
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    got = "" if detail["type"] == "value_error" else f", got {place.plain!r}"
    return place.fault(message + got)
