"""Trials in the driver's own process, one at a time: for the simulated engine and for tests."""

from collections import deque
from types import TracebackType
from typing import Self

from cluster.dispatch.dispatch import Inventory, Tell
from cluster.node.engine import Engine
from cluster.node.facts import NodeFacts
from cluster.node.model_files import ModelName
from cluster.node.owner import trial_folder
from cluster.node.phases import Phases
from cluster.node.run import run_trial
from cluster.node.simulation.argument_names import check_names
from cluster.node.vllm_arguments import Checked
from cluster.order import Order, Outcome
from search_spaces.values import Json


class InProcess:
    """A Dispatch that runs an order when its outcome is asked for.

    Args:
        tell: told what the order's trial is doing.
    """

    def __init__(self, engine: Engine, tell: Tell | None = None) -> None:
        self._engine = engine
        self._tell = tell
        self._waiting: deque[Order] = deque()

    @property
    def inventory(self) -> Inventory:
        return Inventory(nodes=1, cpus=1, gpus=0)

    def capacity(self, order: Order) -> int:
        return 1

    def nodes(self, order: Order) -> tuple[str, ...]:
        return ()

    def facts(self, models: tuple[ModelName, ...] = ()) -> tuple[NodeFacts, ...]:
        return ()

    def remarks(self) -> tuple[str, ...]:
        return ()

    def submit(self, order: Order) -> None:
        self._waiting.append(order)

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        if not self._waiting:
            raise LookupError("no order is under way")
        order = self._waiting.popleft()
        tell, number = self._tell, order.number
        phases = Phases() if tell is None else Phases(lambda phase: tell(number, None, phase))
        with trial_folder() as folder:
            return number, run_trial(order, self._engine, folder, phases)

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked | None:
        """Names alone, for the simulated engine has no vLLM to ask."""
        return check_names(arguments) if self._engine.name == "simulated" else None

    def cancel(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
