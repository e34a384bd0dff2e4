"""Small expressions over named values: checked when read, evaluated by a walk over a few node types.

Python's parser reads them, Python's `eval` never sees them. Values are numbers, texts and truths. A name
without a value makes what needs it *unknown* (None), and truths combine by Kleene's strong logic: `unknown
and false` is false, `unknown or true` is true. Also unknown is what cannot be computed: division by zero,
a result beyond 2**1024, text ordered against numbers.

Source: S. C. Kleene, "Introduction to Metamathematics", 1952, §64.
"""

import ast
import enum
import math
from collections.abc import Callable, Iterator, Mapping

Value = bool | int | float | str | None
"""None: unknown."""

LENGTH = 500
"""Most characters of an expression."""
DEPTH = 24
"""Deepest nesting."""
_EXPONENT = 64
_BITS = 1024
_LARGEST = 2**63


class Kind(enum.Enum):
    """What a value is, as far as it can be said before there is one."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"
    MIXED = "one of several kinds"


class Unreadable(Exception):
    """The expression is not one of these; the message says what is wrong and where."""


_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: _power(a, b),
}
_ORDER: Mapping[type[ast.cmpop], Callable[[float | str, float | str], bool]] = {
    ast.Lt: lambda a, b: a < b,  # type: ignore[operator]
    ast.LtE: lambda a, b: a <= b,  # type: ignore[operator]
    ast.Gt: lambda a, b: a > b,  # type: ignore[operator]
    ast.GtE: lambda a, b: a >= b,  # type: ignore[operator]
}
_REDUCE: Mapping[str, Callable[[list[float]], float]] = {"min": min, "max": max}


def read(text: str) -> ast.expr:
    """The expression's tree, bounded in size, names not yet looked at. Raises Unreadable."""
    if len(text) > LENGTH:
        raise Unreadable(f"is longer than {LENGTH} characters")
    if "\\" in text or not text.isprintable():
        raise Unreadable("holds a backslash or an unprintable character")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise Unreadable(f"cannot be read: {error.msg} at character {error.offset or 0}") from None
    except (RecursionError, MemoryError, ValueError):
        raise Unreadable("cannot be read: nested too deep") from None
    level = [tree]
    for _ in range(DEPTH):
        level = [
            child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
        ]
        if not level:
            return tree
    raise Unreadable(f"is nested deeper than {DEPTH} levels")


def names(tree: ast.expr) -> Iterator[str]:
    """Every name written, dotted ones whole, in the order of the text."""
    if isinstance(tree, ast.Name | ast.Attribute):
        yield dotted(tree)
    elif isinstance(tree, ast.Call):
        for argument in tree.args:
            yield from names(argument)
    else:
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, ast.expr):
                yield from names(child)


def dotted(node: ast.expr) -> str:
    """The dotted name. Raises Unreadable for what is not one."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{dotted(inner)}.{name}"
        case _:
            raise Unreadable(f"'{ast.unparse(node)}' is not a name")


def kind_of(tree: ast.expr, known: Mapping[str, Kind]) -> Kind:
    """What the expression gives, checking every part on the way. Raises Unreadable.

    Args:
        tree: from `read`.
        known: kind of each name that may occur; a name not in it is at fault.
    """
    match tree:
        case ast.Constant(value=bool()):
            return Kind.TRUTH
        case ast.Constant(value=int() | float() as number) if abs(number) <= _LARGEST:
            return Kind.NUMBER
        case ast.Constant(value=str()):
            return Kind.TEXT
        case ast.Name() | ast.Attribute():
            return known[dotted(tree)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _expect(Kind.TRUTH, known, operand)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _expect(Kind.NUMBER, known, operand)
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _BINARY:
            return _expect(Kind.NUMBER, known, left, right)
        case ast.BoolOp(values=parts):
            return _expect(Kind.TRUTH, known, *parts)
        case ast.Compare(left=left, ops=operators, comparators=rights):
            for before, comparison, after in zip([left, *rights], operators, rights, strict=False):
                _check_comparison(before, comparison, after, known)
            return Kind.TRUTH
        case ast.IfExp(test=test, body=body, orelse=other):
            _expect(Kind.TRUTH, known, test)
            return _common(known, body, other)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            return _call_kind(function, arguments, known)
        case _:
            raise Unreadable(f"'{ast.unparse(tree)}' is not allowed in a constraint")


def _call_kind(function: str, arguments: list[ast.expr], known: Mapping[str, Kind]) -> Kind:
    match function, arguments:
        case "min" | "max", [_, _, *_]:
            return _expect(Kind.NUMBER, known, *arguments)
        case "abs", [argument]:
            return _expect(Kind.NUMBER, known, argument)
        case "default", [ast.Name() | ast.Attribute() as name, value]:
            return _common(known, name, value)
        case "present", [ast.Name() | ast.Attribute()]:
            return Kind.TRUTH
        case "min" | "max" | "abs" | "default" | "present", _:
            raise Unreadable(
                f"'{function}' takes other arguments: min(a, b, …), max(a, b, …), abs(a), "
                "default(name, value), present(name)"
            )
        case _:
            raise Unreadable(f"no function '{function}': there are min, max, abs, default and present")


def _expect(kind: Kind, known: Mapping[str, Kind], *parts: ast.expr) -> Kind:
    for part in parts:
        found = kind_of(part, known)
        if found not in (kind, Kind.MIXED):
            raise Unreadable(f"'{ast.unparse(part)}' is {found.value}, where {kind.value} is needed")
    return kind


def _common(known: Mapping[str, Kind], one: ast.expr, other: ast.expr) -> Kind:
    kinds = {kind_of(one, known), kind_of(other, known)}
    return kinds.pop() if len(kinds) == 1 else Kind.MIXED


def _check_comparison(
    left: ast.expr, operator: ast.cmpop, right: ast.expr, known: Mapping[str, Kind]
) -> None:
    kind = kind_of(left, known)
    if isinstance(operator, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple) or not all(
            isinstance(item, ast.Constant) for item in right.elts
        ):
            raise Unreadable(f"'in' needs a list of plain values, got '{ast.unparse(right)}'")
        others = [(item, kind_of(item, known)) for item in right.elts]
    elif type(operator) in _ORDER or isinstance(operator, ast.Eq | ast.NotEq):
        others = [(right, kind_of(right, known))]
    else:
        raise Unreadable("'is' is not allowed in a constraint; write == or !=")
    for other, other_kind in others:
        if Kind.MIXED not in (kind, other_kind) and kind is not other_kind:
            one, two = f"'{ast.unparse(left)}' ({kind.value})", f"'{ast.unparse(other)}' ({other_kind.value})"
            raise Unreadable(f"compares {one} with {two}")
        if type(operator) in _ORDER and Kind.TRUTH in (kind, other_kind):
            raise Unreadable(f"'{ast.unparse(left)}' is true or false, which has no order")


def evaluate(tree: ast.expr, value_of: Callable[[str], Value]) -> Value:
    """The expression's value; None where it is unknown.

    Args:
        tree: passed by `kind_of`.
        value_of: value of a dotted name, None where it has none.
    """
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name() | ast.Attribute():
            return value_of(dotted(tree))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(evaluate(operand, value_of))
            return None if truth is None else not truth
        case ast.UnaryOp(op=operator, operand=operand):
            number = _number(evaluate(operand, value_of))
            return None if number is None else -number if isinstance(operator, ast.USub) else number
        case ast.BinOp(op=operator, left=left, right=right):
            return _compute(_BINARY[type(operator)], evaluate(left, value_of), evaluate(right, value_of))
        case ast.BoolOp(op=operator, values=parts):
            return _kleene(parts, value_of, decides=isinstance(operator, ast.Or))
        case ast.Compare(left=left, ops=operators, comparators=rights):
            return _chain(left, operators, rights, value_of)
        case ast.IfExp(test=test, body=body, orelse=other):
            truth = _truth(evaluate(test, value_of))
            return None if truth is None else evaluate(body if truth else other, value_of)
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return _call(function, arguments, value_of)
        case _:
            raise AssertionError(f"kind_of let {ast.dump(tree)} pass")


def _call(function: str, arguments: list[ast.expr], value_of: Callable[[str], Value]) -> Value:
    first = evaluate(arguments[0], value_of)
    if function == "present":
        return first is not None
    if function == "default":
        return evaluate(arguments[1], value_of) if first is None else first
    found = [_number(evaluate(argument, value_of)) for argument in arguments]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(found):
        return None
    return abs(numbers[0]) if function == "abs" else _REDUCE[function](numbers)


def _kleene(parts: list[ast.expr], value_of: Callable[[str], Value], *, decides: bool) -> bool | None:
    """`and` (decides=False) or `or` (decides=True): one deciding part settles it, whatever is unknown."""
    truths = [_truth(evaluate(part, value_of)) for part in parts]
    if decides in truths:
        return decides
    return None if None in truths else not decides


def _chain(
    left: ast.expr, operators: list[ast.cmpop], rights: list[ast.expr], value_of: Callable[[str], Value]
) -> bool | None:
    """`a < b < c` is `a < b and b < c`."""
    before = evaluate(left, value_of)
    links: list[bool | None] = []
    for operator, right in zip(operators, rights, strict=True):
        if isinstance(right, ast.List | ast.Tuple):
            listed = [evaluate(item, value_of) for item in right.elts]
            found = None if before is None else before in listed
            links.append(found if found is None or isinstance(operator, ast.In) else not found)
            continue
        after = evaluate(right, value_of)
        links.append(_compare(before, operator, after))
        before = after
    return False if False in links else None if None in links else True


def _compare(left: Value, operator: ast.cmpop, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(operator, ast.Eq):
        return left == right
    if isinstance(operator, ast.NotEq):
        return left != right
    if isinstance(left, str) is not isinstance(right, str):
        return None
    return _ORDER[type(operator)](left, right)


def _compute(operation: Callable[[float, float], float], left: Value, right: Value) -> float | None:
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return None
    try:
        result = operation(a, b)
    except (ZeroDivisionError, OverflowError):
        return None
    if isinstance(result, int):
        return result if result.bit_length() <= _BITS else None
    return result if math.isfinite(result) else None


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > _EXPONENT or (base < 0 and exponent != int(exponent)):
        raise OverflowError  # beyond what a constraint needs, or complex
    return float(base**exponent) if exponent < 0 else base**exponent


def _number(value: Value) -> float | None:
    return None if isinstance(value, bool | str) else value


def _truth(value: Value) -> bool | None:
    return value if isinstance(value, bool) else None
