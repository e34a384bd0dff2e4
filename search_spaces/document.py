"""A YAML file as plain values that know their line and key, so that a fault can say where it is.

Scalars follow YAML 1.2's core schema and not PyYAML's 1.1: only `true` and `false` are truths, `1e-3` is a
number, `12:30` and dates are text. Keys are always text, so that a choice may be called `off`. An unquoted
`yes`, `no`, `on` or `off` as a *value* is refused, since the two versions of YAML disagree on it.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from search_spaces.faults import Fault
from search_spaces.values import Json, Scalar

_NODES = 20_000
"""Most values in a file, aliases written out: a few lines of YAML can name billions."""
_DEPTH = 40
_TAG = "tag:yaml.org,2002:"
_AMBIGUOUS = re.compile(r"[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value of the file and what is below it."""

    place: str
    """"file:line key.path", for faults."""
    line: int
    path: str
    value: "Scalar | list[Node] | dict[str, Node]"

    @property
    def plain(self) -> Json:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain for node in self.value]
        return self.value

    def fault(self, message: str) -> Fault:
        return Fault(self.place, message, self.line)


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with YAML 1.2's rules for plain scalars."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:[Tt]rue|TRUE|[Ff]alse|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    f"{_TAG}int",
    re.compile(r"^(?:[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)

_YamlNode: TypeAlias = yaml.Node


def read_document(text: str, source: str) -> tuple[Node | None, list[Fault]]:
    """The file's values with their places, and what is wrong with the file as YAML.

    None where it holds no values or cannot be parsed at all.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark else source
        hint = (
            "; quote a text that begins or ends with a quote"
            if error.problem and "scalar" in error.problem
            else ""
        )
        return None, [Fault(place, f"is no YAML: {error.problem or error.context}{hint}")]
    except yaml.YAMLError as error:
        return None, [Fault(source, f"is no YAML: {' '.join(str(error).split())}")]
    except RecursionError:
        return None, [Fault(source, "is nested too deep")]
    if root is None:
        return None, [Fault(source, "is empty")]
    reading = _Reading(source)
    node = reading.node(root, "", root.start_mark.line + 1, 0)
    return node, reading.faults


class _Reading:
    """One pass over the parser's nodes, collecting faults."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self._read = 0

    def node(self, node: _YamlNode, path: str, line: int, depth: int) -> Node:
        place = f"{self.source}:{line} {path}".rstrip()
        self._read += 1
        if self._read > _NODES or depth > _DEPTH:
            if self._read <= _NODES + 1:
                self.faults.append(Fault(place, "the file holds too many values or is nested too deep", line))
                self._read = _NODES + 1
            return Node(place=place, line=line, path=path, value=None)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self.faults.append(Fault(place, f"tags are not supported: {node.tag}", line))
        match node:
            case yaml.MappingNode():
                return Node(place=place, line=line, path=path, value=self._mapping(node, path, depth))
            case yaml.SequenceNode():
                items = [
                    self.node(item, f"{path}[{index}]", item.start_mark.line + 1, depth + 1)
                    for index, item in enumerate(node.value)
                ]
                return Node(place=place, line=line, path=path, value=items)
            case _:
                return Node(place=place, line=line, path=path, value=self._scalar(node, place, line))

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Node]:
        values: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.faults.append(
                    Fault(f"{self.source}:{line} {path}".rstrip(), "a key must be plain text", line)
                )
                continue
            name = str(key.value)
            here = f"{path}.{name}" if path else name
            if name in values:
                message = f"is there twice; first in line {lines[name]}"
                self.faults.append(Fault(f"{self.source}:{line} {here}", message, line))
                continue
            lines[name] = line
            values[name] = self.node(value, here, line, depth + 1)
        return values

    def _scalar(self, node: _YamlNode, place: str, line: int) -> Scalar:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" | "float" as kind:
                number = _number(text, kind)
                if number is None:
                    self.faults.append(Fault(place, f"is no number: '{text}'", line))
                return number
            case "str":
                plain = getattr(node, "style", None) is None
                if plain and _AMBIGUOUS.fullmatch(text):
                    self.faults.append(
                        Fault(place, f"'{text}' may mean two things: write true or false, or quote it", line)
                    )
                return text
            case _:
                self.faults.append(Fault(place, f"tags are not supported: {node.tag}", line))
                return None


def _number(text: str, kind: str) -> int | float | None:
    bare = text.replace("_", "")
    try:
        if kind == "float":
            return float(re.sub(r"\.(inf|nan)$", r"\1", bare.lower()))
        base = {"0o": 8, "0x": 16}.get(bare[:2].lower(), 10)
        return int(bare, base)
    except ValueError:
        return None
