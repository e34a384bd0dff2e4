"""From a file's `parameters:` to the tree of parameters, with every fault found on the way."""

import keyword
import math
import re

from search_spaces.bodies import ChoiceBody, ChoicesBody, IntegerBody, RealBody, read_body
from search_spaces.document import Node
from search_spaces.faults import Fault, nearest
from search_spaces.parameters import Categorical, Choice, Integer, Parameter, Real
from search_spaces.settings import environment_text, touched
from search_spaces.values import Json, Scalar

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CHOICE = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_KINDS = ("choices", "int", "float")
_OWN_KEYS = {
    "model": "'model:' of the space or of a choice",
    "trust_remote_code": "'trust_remote_code:' of the space",
}
"""Engine arguments that have a place of their own in a space."""


def read_parameters(
    node: Node | None, faults: list[Fault], *, above_path: str = "", above_key: str = ""
) -> tuple[Parameter, ...]:
    """The parameters of one mapping and all below them; those at fault are left out."""
    if node is None or node.value is None:
        return ()
    if not isinstance(node.value, dict):
        faults.append(node.fault("parameters are a mapping from name to parameter"))
        return ()
    found: list[Parameter] = []
    for name, child in node.value.items():
        if _NAME.fullmatch(name) is None or keyword.iskeyword(name):
            message = (
                "a parameter's name is letters, digits and _, and no word of Python's, as constraints use it"
            )
            faults.append(child.fault(message))
            continue
        parameter = _parameter(child, f"{above_path}{name}", f"{above_key}{name}", faults)
        if parameter is not None:
            found.append(parameter)
            _check_owner(parameter, found[:-1], child, faults)
    return tuple(found)


def check_argument(name: str, node: Node, faults: list[Fault]) -> None:
    """Add a fault where this cannot be the name of an engine argument that a space may set."""
    top = name.partition(".")[0]
    if top in _OWN_KEYS:
        faults.append(node.fault(f"'{top}' is set by {_OWN_KEYS[top]}"))
    elif not all(_NAME.fullmatch(part) for part in name.split(".")):
        plain = name.removeprefix("--").replace("-", "_")
        hint = f"; did you mean '{plain}'?" if _NAME.fullmatch(plain) else ""
        faults.append(node.fault(f"'{name}' is no name of an engine argument{hint}"))


def read_environment(node: Node | None, faults: list[Fault]) -> dict[str, str]:
    """The variables as text, their names checked; `read_body` reports values that are no scalars."""
    children = {} if node is None else _children(node)
    found: dict[str, str] = {}
    for name, child in children.items():
        _check_variable(name, child, faults)
        if isinstance(child.value, bool | int | float | str):
            found[name] = environment_text(child.value)
    return found


def read_arguments(node: Node | None, faults: list[Fault]) -> dict[str, Json]:
    """Engine arguments as `engine:` and `set:` hold them, their names checked."""
    if node is None or not isinstance(node.value, dict):
        return {}
    for name, child in node.value.items():
        if "." in name:
            first, rest = name.split(".", 1)
            faults.append(child.fault(f"nest it instead: {first}: {{{rest}: …}}"))
        else:
            check_argument(name, child, faults)
    return {name: child.plain for name, child in node.value.items()}


def _parameter(node: Node, path: str, key: str, faults: list[Fault]) -> Parameter | None:
    if not isinstance(node.value, dict):
        faults.append(
            node.fault(f"a parameter is a mapping with one of {', '.join(_KINDS)}; got {node.plain!r}")
        )
        return None
    kinds = [kind for kind in _KINDS if kind in node.value]
    if len(kinds) != 1:
        slips = [nearest(name, _KINDS) for name in node.value if "mean" in nearest(name, _KINDS)]
        hint = "" if kinds else slips[0] if slips else f"; it has {', '.join(node.value) or 'nothing'}"
        faults.append(node.fault(f"a parameter has exactly one of {', '.join(_KINDS)}{hint}"))
        return None
    before = len(faults)
    parameter = _READERS[kinds[0]](node, path, key, faults)
    return parameter if len(faults) == before else None


def _categorical(node: Node, path: str, key: str, faults: list[Fault]) -> Parameter | None:
    body = read_body(node, ChoicesBody, faults, "a parameter with choices")
    choices_node = _children(node)["choices"]
    if body is None:
        return None
    if not choices_node.value:
        faults.append(choices_node.fault("needs at least one choice"))
        return None
    if isinstance(choices_node.value, list):
        scalars = _scalars(choices_node.value, faults)
        argument, environment = _target(node, body, path, faults)
        return Categorical(
            path=path, key=key, choices=scalars, argument=argument, environment=environment, help=body.help
        )
    for name in ("argument", "environment"):
        if getattr(body, name) is not None:
            message = "does not go with named choices, which say what they set with 'set:' and 'environment:'"
            faults.append(_children(node)[name].fault(message))
    named = [_choice(name, child, path, key, faults) for name, child in _children(choices_node).items()]
    return Categorical(path=path, key=key, choices=tuple(filter(None, named)), help=body.help)


def _scalars(nodes: list[Node], faults: list[Fault]) -> tuple[Scalar, ...]:
    found: list[Scalar] = []
    for node in nodes:
        value = node.value
        if isinstance(value, list | dict):
            faults.append(node.fault("is no plain value; give the choices names, and this under 'set:'"))
        elif value in found:
            faults.append(node.fault(f"is listed before; {value!r} equals {found[found.index(value)]!r}"))
        elif isinstance(value, float) and not math.isfinite(value):
            faults.append(node.fault(f"must be finite, got {value!r}"))
        else:
            found.append(value)
    return tuple(found)


def _choice(name: str, node: Node, path: str, key: str, faults: list[Fault]) -> Choice | None:
    if _CHOICE.fullmatch(name) is None:
        faults.append(
            node.fault("a choice's name begins with a letter or digit, then letters, digits and _ . + -")
        )
    body = read_body(node, ChoiceBody, faults, "a choice")
    if body is None:
        return None
    children = _children(node)
    return Choice(
        name=name,
        set=read_arguments(children.get("set"), faults),
        environment=read_environment(children.get("environment"), faults),
        model=body.model,
        parameters=read_parameters(
            children.get("parameters"), faults, above_path=f"{path}.", above_key=f"{key}.{name}."
        ),
        help=body.help,
    )


def _integer(node: Node, path: str, key: str, faults: list[Fault]) -> Parameter | None:
    body = read_body(node, IntegerBody, faults, "a parameter with int")
    if body is None:
        return None
    low, high = body.ends
    argument, environment = _target(node, body, path, faults)
    if not _check_range(_children(node)["int"], low, high, body.log, faults):
        return None
    parameter = Integer(
        path=path,
        key=key,
        low=low,
        high=high,
        step=body.step,
        log=body.log,
        argument=argument,
        environment=environment,
        help=body.help,
    )
    return _on_step(parameter, node, faults)


def _real(node: Node, path: str, key: str, faults: list[Fault]) -> Parameter | None:
    body = read_body(node, RealBody, faults, "a parameter with float")
    if body is None:
        return None
    low, high = (float(end) for end in body.ends)
    argument, environment = _target(node, body, path, faults)
    if not _check_range(_children(node)["float"], low, high, body.log, faults):
        return None
    parameter = Real(
        path=path,
        key=key,
        low=low,
        high=high,
        step=None if body.step is None else float(body.step),
        log=body.log,
        argument=argument,
        environment=environment,
        help=body.help,
    )
    return _on_step(parameter, node, faults)


_READERS = {"choices": _categorical, "int": _integer, "float": _real}


def _check_range(node: Node, low: float, high: float, log: bool, faults: list[Fault]) -> bool:
    if not (math.isfinite(low) and math.isfinite(high)):
        faults.append(node.fault(f"must be finite, got [{low}, {high}]"))
    elif low > high:
        faults.append(node.fault(f"goes from low to high, got [{low}, {high}]"))
    elif log and low <= 0:
        faults.append(node.fault(f"with log the range must begin above 0, got {low}"))
    else:
        return True
    return False


def _on_step(parameter: Integer | Real, node: Node, faults: list[Fault]) -> Parameter:
    last = parameter.corners[-1]
    if last != parameter.high:
        message = f"steps of {parameter.step} lead from {parameter.low} to {last}, not to {parameter.high}"
        faults.append(_children(node)["step"].fault(message))
    return parameter


def _target(
    node: Node, body: ChoicesBody | IntegerBody | RealBody, path: str, faults: list[Fault]
) -> tuple[str | None, str | None]:
    """(argument, environment variable) that takes the value: its own name unless it says other."""
    if body.argument is not None and body.environment is not None:
        faults.append(node.fault("sets an engine argument or an environment variable, not both"))
    if body.environment is not None:
        _check_variable(body.environment, _children(node)["environment"], faults)
        return None, body.environment
    argument = body.argument or path.rsplit(".", 1)[-1]
    check_argument(argument, _children(node).get("argument", node), faults)
    return argument, None


def _check_variable(name: str, node: Node, faults: list[Fault]) -> None:
    if _NAME.fullmatch(name) is None:
        faults.append(node.fault(f"'{name}' is no name of an environment variable"))


def _check_owner(parameter: Parameter, before: list[Parameter], node: Node, faults: list[Fault]) -> None:
    """Two parameters that are active together must not decide one setting: the later would win unseen."""
    for other in before:
        taken = touched(other)
        faults += [
            node.fault(f"sets {mine}, which '{other.path}' sets too")
            for mine in sorted(touched(parameter))
            if any(f"{mine}.".startswith(f"{theirs}.") or theirs.startswith(f"{mine}.") for theirs in taken)
        ]


def _children(node: Node) -> dict[str, Node]:
    return node.value if isinstance(node.value, dict) else {}
