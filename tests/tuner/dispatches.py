"""Dispatches that run nothing: an outcome is made up when it is asked for."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from cluster.dispatch.dispatch import Inventory
from cluster.node.facts import NodeFacts
from cluster.node.model_files import ModelName
from cluster.node.vllm_arguments import Checked
from cluster.order import Order, Outcome
from search_spaces.values import Json

Answer = Callable[[Order], Outcome]


class FakeDispatch:
    """Answers orders in the order they came, or the last one first.

    Attributes:
        submitted: every order, in order.
        most: most orders that were under way at once.
        cancelled: whether it was told to end what is under way.
    """

    def __init__(self, answer: Answer, *, gpus: int = 1, last_first: bool = False) -> None:
        self._answer = answer
        self._gpus = gpus
        self._last_first = last_first
        self.waiting: deque[Order] = deque()
        self.submitted: list[Order] = []
        self.most = 0
        self.cancelled = False

    @property
    def inventory(self) -> Inventory:
        return Inventory(nodes=1, cpus=8, gpus=self._gpus)

    def capacity(self, order: Order) -> int:
        return self._gpus // max(order.gpus, 1)

    def nodes(self, order: Order) -> tuple[str, ...]:
        return ()

    def facts(self, models: tuple[ModelName, ...] = ()) -> tuple[NodeFacts, ...]:
        return ()

    def remarks(self) -> tuple[str, ...]:
        return ()

    def submit(self, order: Order) -> None:
        self.submitted.append(order)
        self.waiting.append(order)
        self.most = max(self.most, len(self.waiting))

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        if not self.waiting:
            raise LookupError("no order is under way")
        order = self.waiting.pop() if self._last_first else self.waiting.popleft()
        return order.number, self._answer(order)

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked | None:
        return None

    def cancel(self) -> None:
        self.cancelled = True
        self.waiting.clear()

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FakeCluster(FakeDispatch):
    """Nodes by name, each with room for so many orders at once.

    Attributes:
        rooms: may be changed meanwhile: a node that is taken out is gone, one that is put in has come.
        most_on: most orders that were under way at once on each node.
    """

    def __init__(
        self, answer: Answer, rooms: Mapping[str, int], *, facts: tuple[NodeFacts, ...] = ()
    ) -> None:
        super().__init__(answer)
        self.rooms = dict(rooms)
        self.most_on = dict.fromkeys(rooms, 0)
        self._facts = facts

    def nodes(self, order: Order) -> tuple[str, ...]:
        return tuple(name for name in sorted(self.rooms) if order.node in (None, name))

    def capacity(self, order: Order) -> int:
        return sum(self.rooms[name] for name in self.nodes(order))

    def facts(self, models: tuple[ModelName, ...] = ()) -> tuple[NodeFacts, ...]:
        return self._facts

    def submit(self, order: Order) -> None:
        assert order.node in self.rooms
        super().submit(order)
        there = sum(waiting.node == order.node for waiting in self.waiting)
        self.most_on[order.node] = max(self.most_on.get(order.node, 0), there)

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        order = self.waiting[0]
        ended = super().next(timeout_s)
        assert ended is not None
        return order.number, replace(ended[1], ran=replace(ended[1].ran, node=order.node))
