"""Which node an order goes to. Pure.

The driver picks the node itself: Ray can't be asked for "all CPUs of a node, however many they are", and what
a trial is compared with was measured on nodes that are known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.order import Order

_TYPE = "accelerator_type:"
"""How the resource begins by which Ray tells an accelerator's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node alive, as Ray has it."""

    id: str
    """Ray's own, hexadecimal; a new one at every start."""
    name: str
    """What people and records call it."""
    has: Mapping[str, float]
    """Resources by Ray's names, whoever uses them now."""

    @property
    def cpus(self) -> float:
        return self.has.get("CPU", 0.0)

    @property
    def gpus(self) -> float:
        return self.has.get("GPU", 0.0)

    @property
    def accelerator_type(self) -> str | None:
        found = sorted(name.removeprefix(_TYPE) for name in self.has if name.startswith(_TYPE))
        return found[0] if found else None


def named(rows: Iterable[tuple[str, str, str, Mapping[str, float]]]) -> tuple[Node, ...]:
    """Nodes with names that tell them apart, by name.

    Args:
        rows: id, name, host and resources of each. Ray's name is the address where nobody gave one, and a
            host's name outlasts its address.
    """
    kept = [(id_, host if _is_address(name) else name, has) for id_, name, host, has in rows]
    names = [name for _, name, _ in kept]
    return tuple(
        sorted(
            (
                Node(id=id_, name=name if names.count(name) == 1 else f"{name}/{id_[:8]}", has=has)
                for id_, name, has in kept
            ),
            key=lambda node: (node.name, node.id),
        )
    )


def _is_address(name: str) -> bool:
    return not name or ":" in name or all(part.isdecimal() for part in name.split("."))


def cpus_of(order: Order) -> float:
    """CPUs that a trial asks for."""
    return max(order.cpus, 1)


def room(order: Order, node: Node, *, alone: bool) -> int:
    """How many such orders run on this node at once.

    Args:
        alone: whether an order without GPUs takes a whole node.
    """
    if order.node not in (None, node.name):
        return 0
    if order.accelerator is not None and f"{_TYPE}{order.accelerator}" not in node.has:
        return 0
    by_cpus = int(node.cpus // cpus_of(order))
    if order.gpus:
        return min(by_cpus, int(node.gpus // order.gpus))
    return min(by_cpus, 1) if alone else by_cpus


def choose(
    order: Order, nodes: Iterable[Node], taken: Mapping[str, float], *, alone: bool
) -> tuple[Node, float] | None:
    """The node that has most left for the order, and what share of it the order takes.

    None where no node has room even if nothing else ran.

    Args:
        taken: share of each node, by its id, that is taken.
    """
    fitting = [(node, 1 / fits) for node in nodes if (fits := room(order, node, alone=alone))]
    return min(fitting, key=lambda pair: (taken.get(pair[0].id, 0.0) + pair[1], pair[0].name), default=None)
