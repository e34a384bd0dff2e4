"""Which node has the models of which orders, and who waits until it has them. Pure: Ray asks and fetches.

A node is asked once for every set of models, and fetches once, however many trials wait for it.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from cluster.node.model_files import ModelName
from cluster.order import Order

Models = tuple[ModelName, ...]

_TRIES = 2
"""How often a node's worker may die over a need before the node counts as unfit for it."""


@dataclass(frozen=True, slots=True)
class Need:
    """A node's id, and what an order needs there."""

    node: str
    models: Models


@dataclass(slots=True)
class Preparing:
    """What is known so far."""

    ready: set[Need] = field(default_factory=set)
    unfit: dict[Need, str] = field(default_factory=dict)
    """Needs that a node cannot meet, and why."""
    waiting: dict[Need, list[Order]] = field(default_factory=lambda: defaultdict(list))
    losses: Counter[Need] = field(default_factory=Counter)

    def wait(self, need: Need, order: Order) -> bool:
        """Have an order wait; whether it is the first one, so that the node has to be asked."""
        self.waiting[need].append(order)
        return len(self.waiting[need]) == 1

    def met(self, need: Need) -> list[Order]:
        """The node has it all: the orders that may go there now."""
        self.ready.add(need)
        return self.waiting.pop(need, [])

    def failed(self, need: Need, reason: str) -> list[Order]:
        """The node cannot get it: the orders that have to go elsewhere."""
        self.unfit[need] = reason
        return self.waiting.pop(need, [])

    def lost(self, need: Need, reason: str) -> list[Order]:
        """The node died meanwhile, or its worker: the orders that have to go elsewhere, or there again."""
        self.losses[need] += 1
        if self.losses[need] >= _TRIES:
            return self.failed(need, reason)
        return self.waiting.pop(need, [])

    def reason(self, models: Models) -> str | None:
        """Why a node that was asked cannot run an order with these models; None where none was at fault."""
        return next((reason for need, reason in self.unfit.items() if need.models == models), None)
