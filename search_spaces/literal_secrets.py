"""Secrets that a person wrote into a space. It is stored with its study and shown in MLflow, so it may hold
none; the engines that a node starts have the node's environment, and that is where a secret belongs."""

from search_spaces.document import Node
from search_spaces.faults import Fault
from search_spaces.secrets import holds_secret, is_secret, without_passwords

_INSTEAD = (
    "a space is stored with its study; set it in the environment of the node instead, which engines inherit"
)


def secret_faults(root: Node) -> list[Fault]:
    """A fault for each secret in the document, which does not repeat it."""
    faults: list[Fault] = []
    _look(root, "", "", faults)
    return faults


def _look(node: Node, name: str, above: str, faults: list[Fault]) -> None:
    """`name` holds this node, `above` holds that mapping; an item of a list goes by the list's name."""
    match node.value:
        case dict():
            for key, child in node.value.items():
                carrier = _target(name, node.value) if key == "choices" else key
                inside = "environment" if _sets_variable(key, node.value) else name
                _look(child, carrier, inside, faults)
        case list():
            for item in node.value:
                _look(item, name, above, faults)
        case str() as text:
            if holds_secret(name, text):
                faults.append(node.fault(f"is a secret by its name, and {_INSTEAD}"))
            elif without_passwords(text) != text:
                faults.append(node.fault(f"holds a URL with a secret, and {_INSTEAD}"))
        case int() | float() if above == "environment" and is_secret(name) and node.value not in (0, 1):
            faults.append(node.fault(f"is a secret by its name, and {_INSTEAD}"))
        case _:
            pass


def _target(name: str, parameter: dict[str, Node]) -> str:
    """What takes a parameter's value: its own name unless it says other."""
    for key in ("argument", "environment"):
        said = parameter.get(key)
        if said is not None and isinstance(said.value, str):
            return said.value
    return name


def _sets_variable(key: str, mapping: dict[str, Node]) -> bool:
    variable = mapping.get("environment")
    return key == "choices" and variable is not None and isinstance(variable.value, str)
