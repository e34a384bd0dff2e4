"""Trials as Ray tasks, on this machine or on a cluster. The only home of ray."""

import logging
import os
import tempfile
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Without it Ray empties CUDA_VISIBLE_DEVICES of tasks that ask for no GPU, with a warning each.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
import ray.exceptions

import cluster
import objectives
import search_spaces
from cluster.dispatch.dispatch import DispatchError, Inventory
from cluster.dispatch.reaper import start_reaper
from cluster.node.engine import Engine
from cluster.node.run import run_trial
from cluster.node.vllm_arguments import Checked, EngineMissing, check_arguments
from cluster.order import Cause, Failed, Order, Outcome
from search_spaces.values import Json

_OBJECT_STORE_BYTES = 256 * 2**20
"""Local Ray's own share of memory: outcomes are a few megabytes, and the engine needs the rest."""

_CANCEL_S = 30.0
"""How long a trial may take to stop its engine politely before its worker is killed."""


def _run(order: Order, engine: Engine) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tuner-trial-") as folder:
        return run_trial(order, engine, Path(folder))


# A fresh process each: nothing of one trial is left in the next, and Ray itself never runs one twice.
_task = ray.remote(max_calls=1, max_retries=0)


class OnRay:
    """A Dispatch over Ray. Each trial is one task that reserves its GPUs, or CPUs where it has none.

    Args:
        engine: what serves; pickled to the nodes.
        address: a running cluster ("auto", "host:port", "ray://…"); None starts a Ray of its own on
            this machine and stops it on closing.

    Raises:
        DispatchError: no Ray at that address.
    """

    def __init__(self, engine: Engine, address: str | None = None) -> None:
        self._engine = engine
        self._local = address is None
        self._under_way: dict[ray.ObjectRef[Outcome], int] = {}
        self._reaper = start_reaper() if self._local else None
        shared: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }
        try:
            if self._local:
                # It says at every start that its tokens are on, which is as it should be.
                logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
                ray.init(
                    address="local",
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    # Ray's workers yield to everything else (nice 15), and the engine would inherit that.
                    _system_config={"worker_niceness": 0},
                    **shared,
                )
            else:
                modules: list[ModuleType] = [cluster, objectives, search_spaces]
                # What runs on the nodes is what was sent, whatever they have installed.
                ray.init(address=address, runtime_env={"py_modules": modules}, **shared)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            self.close()
            where = "on this machine" if self._local else f"at {address}"
            raise DispatchError(f"no Ray {where}: {_first_line(error)}") from error

    @property
    def inventory(self) -> Inventory:
        total = _resources()
        prefix = "accelerator_type:"
        return Inventory(
            nodes=len(_nodes()),
            cpus=total.get("CPU", 0.0),
            gpus=total.get("GPU", 0.0),
            accelerators=tuple(sorted(n.removeprefix(prefix) for n in total if n.startswith(prefix))),
        )

    def capacity(self, order: Order) -> int:
        fitting = 0
        for has in _nodes():
            if order.accelerator and f"accelerator_type:{order.accelerator}" not in has:
                continue
            slots = [has.get("CPU", 0.0) // self._cpus(order, has.get("CPU", 0.0))]
            if order.gpus:
                slots.append(has.get("GPU", 0.0) // order.gpus)
            fitting += int(min(slots))
        return fitting

    def _cpus(self, order: Order, node_cpus: float) -> float:
        # An engine on CPUs spreads over every core it sees, so two on one machine would measure each other.
        return max(order.cpus, node_cpus) if self._local and not order.gpus else max(order.cpus, 1)

    def _options(self, order: Order) -> dict[str, Any]:
        options: dict[str, Any] = {
            "num_cpus": self._cpus(order, _resources().get("CPU", 1.0)),
            "num_gpus": order.gpus,
        }
        if order.accelerator:
            options["accelerator_type"] = order.accelerator
        return options

    def submit(self, order: Order) -> None:
        task = _task(_run).options(**self._options(order))
        self._under_way[task.remote(order, self._engine)] = order.number

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        if not self._under_way:
            raise LookupError("no order is under way")
        done, _ = ray.wait(list(self._under_way), num_returns=1, timeout=timeout_s)
        if not done:
            return None
        number = self._under_way.pop(done[0])
        return number, _outcome(done[0])

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked | None:
        if self._engine.name != "vllm":
            return None
        # The GPUs are asked for, so that it is the vLLM of a node where trials run that answers.
        task = _task(check_arguments).options(**self._options(order))
        try:
            checked: Checked = ray.get(task.remote(arguments))
        except EngineMissing as missing:  # Ray raises a task's exception as a subclass of its type
            raise DispatchError(_first_line(missing.__cause__ or missing)) from missing
        return checked

    def cancel(self) -> None:
        waiting = list(self._under_way)
        self._under_way.clear()
        for ref in waiting:
            ray.cancel(ref)
        _, stubborn = ray.wait(waiting, num_returns=len(waiting), timeout=_CANCEL_S) if waiting else ([], [])
        for ref in stubborn:
            # Its worker dies; the guard beside the engine sees that and ends the engine.
            ray.cancel(ref, force=True)

    def close(self) -> None:
        if ray.is_initialized():
            self.cancel()
            ray.shutdown()
        if self._reaper is not None:
            self._reaper.communicate()
            self._reaper = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _nodes() -> list[dict[str, float]]:
    """The resources of every node alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _resources() -> dict[str, float]:
    """What all nodes have together."""
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return total


def _outcome(ref: "ray.ObjectRef[Outcome]") -> Outcome:
    """What the task returned, or what its death says. A fault of our own is raised as it is."""
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.TaskCancelledError:
        return Failed(cause=Cause.CANCELLED, reason="the trial was cancelled")
    except ray.exceptions.OutOfMemoryError as error:
        return Failed(cause=Cause.OUT_OF_MEMORY, reason=f"the node ran out of memory: {_first_line(error)}")
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.RaySystemError,
        ray.exceptions.TaskUnschedulableError,
        ray.exceptions.LocalRayletDiedError,
    ) as error:
        return Failed(cause=Cause.LOST_NODE, reason=f"the node or its worker died: {_first_line(error)}")
    return outcome


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
