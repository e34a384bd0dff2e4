"""What must hold between a space's parameters: `max_num_batched_tokens >= max_num_seqs * (1 + depth)`.

A name is a parameter's path (`speculation.depth`), its last part where only one path ends so (`depth`), or
an engine argument that `engine:` fixes (`max_model_len`). A parameter that is not active, or null, has no
value; a constraint that comes out unknown for want of it holds.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from search_spaces.expression import Kind, Unreadable, Value, evaluate, kind_of, names, read
from search_spaces.faults import nearest
from search_spaces.parameters import Categorical, Parameter, every
from search_spaces.settings import leaves
from search_spaces.values import Json, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One expression that every config must not break. Made by `parse`; equal where text and names are."""

    text: str
    paths: Mapping[str, str]
    """Name as written → path of the parameter meant."""
    fixed: Mapping[str, Scalar]
    """Name as written → value that `engine:` gives it."""
    tree: ast.expr = field(compare=False, repr=False)

    def holds(self, values: Mapping[str, Scalar]) -> bool | None:
        """Whether it holds for these values (by path); None where it cannot be told, which passes."""

        def value_of(name: str) -> Value:
            return self.fixed[name] if name in self.fixed else values.get(self.paths[name])

        truth = evaluate(self.tree, value_of)
        return truth if isinstance(truth, bool) else None

    def sentence(self, values: Mapping[str, Scalar]) -> str:
        """What is broken, with the values that break it."""
        shown = {path: values[path] for path in self.paths.values() if path in values} | dict(self.fixed)
        told = ", ".join(f"{name} = {value}" for name, value in shown.items())
        return f"breaks '{self.text}' ({told})" if told else f"breaks '{self.text}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What names may mean in one space."""

    parameters: Mapping[str, tuple[Parameter, ...]]
    """By path; several where branches share it."""
    fixed: Mapping[str, Scalar]
    """Engine arguments set for all configs, dotted, scalars only."""

    @classmethod
    def of(cls, parameters: tuple[Parameter, ...], engine: Mapping[str, Json]) -> "Scope":
        by_path: dict[str, tuple[Parameter, ...]] = {}
        for parameter in every(parameters):
            by_path[parameter.path] = (*by_path.get(parameter.path, ()), parameter)
        fixed = {path: value for path, value in leaves(engine) if not isinstance(value, list | dict)}
        return cls(parameters=by_path, fixed=fixed)

    def path(self, name: str) -> str | None:
        """The parameter path that the name means; None where it means an engine argument.

        Raises Unreadable where it means nothing, or more than one thing.
        """
        if name in self.parameters:
            return name
        ends = [path for path in self.parameters if path.endswith(f".{name}")]
        if len(ends) > 1:
            raise Unreadable(f"'{name}' is ambiguous: {' or '.join(sorted(ends))}")
        if ends:
            return ends[0]
        if name in self.fixed:
            return None
        known = [*self.parameters, *(path.rsplit(".", 1)[-1] for path in self.parameters), *self.fixed]
        raise Unreadable(f"no parameter or fixed engine argument '{name}'{nearest(name, known)}")

    def kind(self, path: str) -> Kind:
        kinds = {_kind(value) for parameter in self.parameters[path] for value in parameter.corners}
        kinds.discard(None)
        return (
            next((kind for kind in kinds if kind is not None), Kind.MIXED) if len(kinds) == 1 else Kind.MIXED
        )


def parse(text: str, scope: Scope) -> Constraint:
    """The constraint, every name and comparison in it checked. Raises Unreadable, saying what is wrong."""
    tree = read(text)
    paths: dict[str, str] = {}
    fixed: dict[str, Scalar] = {}
    kinds: dict[str, Kind] = {}
    for name in names(tree):
        path = scope.path(name)
        if path is None:
            fixed[name] = scope.fixed[name]
            kinds[name] = _kind(fixed[name]) or Kind.MIXED
        else:
            paths[name] = path
            kinds[name] = scope.kind(path)
    if kind_of(tree, kinds) is not Kind.TRUTH:
        raise Unreadable("is not true or false; compare it with something")
    for name, value in _compared_texts(tree):
        if name in paths:
            _check_choice(name, value, scope.parameters[paths[name]])
    return Constraint(text=text, paths=paths, fixed=fixed, tree=tree)


def _kind(value: Scalar) -> Kind | None:
    match value:
        case None:
            return None
        case bool():
            return Kind.TRUTH
        case str():
            return Kind.TEXT
        case _:
            return Kind.NUMBER


def _compared_texts(tree: ast.expr) -> Iterator[tuple[str, str]]:
    """(name, text) wherever a name is tested for equality with a text: a misspelt choice is never equal."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                continue
            for name, other in ((left, right), (right, left)):
                if isinstance(name, ast.Name | ast.Attribute):
                    for item in other.elts if isinstance(other, ast.List | ast.Tuple) else [other]:
                        if isinstance(item, ast.Constant) and isinstance(item.value, str):
                            yield ast.unparse(name), item.value


def _check_choice(name: str, value: str, parameters: tuple[Parameter, ...]) -> None:
    known = [v for p in parameters if isinstance(p, Categorical) for v in p.values if isinstance(v, str)]
    if value not in known:
        raise Unreadable(f"'{name}' has no choice '{value}'{nearest(value, known)}")
