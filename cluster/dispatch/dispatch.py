"""Where a trial runs is the only thing that differs between dispatches; this is what they share."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from cluster.node.facts import NodeFacts
from cluster.node.model_files import ModelName
from cluster.node.vllm_arguments import Checked
from cluster.order import Order, Outcome
from cluster.phase import Phase
from search_spaces.values import Json

Tell = Callable[[int, str | None, Phase], None]
"""Given the number of a trial under way, its node's name where nodes are told apart, and the phase that it is
in. A dispatch calls it from within `next`, and not again for a trial whose outcome it has given."""


class DispatchError(Exception):
    """Nothing can run there; the message says what was needed, what was found, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What the nodes have, summed."""

    nodes: int
    cpus: float
    gpus: float
    accelerators: tuple[str, ...] = ()
    """Names of the accelerator types present, sorted."""


class Dispatch(Protocol):
    """Orders in, outcomes out, several under way at once. Closing it cancels what still runs."""

    @property
    def inventory(self) -> Inventory: ...

    def capacity(self, order: Order) -> int:
        """How many orders of this size can run at once; 0 if not even one can."""
        ...

    def nodes(self, order: Order) -> tuple[str, ...]:
        """Names of the nodes that such an order can run on, in a lasting order.

        Empty where nodes are not told apart: then an order's `node` means nothing."""
        ...

    def facts(self, models: tuple[ModelName, ...] = ()) -> tuple[NodeFacts, ...]:
        """What each node says it has, by name, and what it has of these models.

        Empty where nothing can be said. A node that does not answer is left out."""
        ...

    def remarks(self) -> tuple[str, ...]:
        """What a person should hear of nodes, one sentence each, since this was last asked."""
        ...

    def submit(self, order: Order) -> None: ...

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        """The number and outcome of an order that has ended; None after `timeout_s` without one, or earlier
        where there are remarks.

        Raises:
            LookupError: nothing is under way.
        """
        ...

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked | None:
        """Hold engine arguments against the engine installed where such an order would run.

        None where the engine there has no arguments of its own to check."""
        ...

    def cancel(self) -> None:
        """End what is under way, engines included; its outcomes are not delivered."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
