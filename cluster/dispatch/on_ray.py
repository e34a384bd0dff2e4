"""Trials as Ray tasks, on this machine or on a cluster. The only home of ray."""

import logging
import os
import subprocess
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Without it Ray empties CUDA_VISIBLE_DEVICES of tasks that ask for no GPU, with a warning each.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# What runs on the nodes is what was sent; under `uv run` Ray would build the driver's environment there too.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

import ray
import ray._private.worker
import ray.exceptions
from ray._raylet import Config  # type: ignore[attr-defined]  # its stub is not whole
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import cluster
import objectives
import search_spaces
from cluster.dispatch.address import check_listens
from cluster.dispatch.dispatch import DispatchError, Inventory
from cluster.dispatch.probe import AUTH_MODE, TOKEN_ADVICE, auth_mode, has_token
from cluster.dispatch.reaper import start_reaper
from cluster.node.engine import Engine
from cluster.node.run import run_trial
from cluster.node.simulation.argument_names import check_names
from cluster.node.vllm_arguments import Checked, EngineMissing, check_arguments
from cluster.order import Cause, Failed, Order, Outcome
from search_spaces.values import Json

_OBJECT_STORE_BYTES = 256 * 2**20
"""Local Ray's own share of memory: outcomes are a few megabytes, and the engine needs the rest."""

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}

# Paths, since Ray Client pickles the modules themselves and cannot.
_SENT = [str(Path(path)) for package in (cluster, objectives, search_spaces) for path in package.__path__]
"""What runs on the nodes is what was sent, whatever they have installed."""

_MODE_ASKED = os.environ.get(AUTH_MODE)
"""What the user said. A Ray of our own changes the variable for all that the process does afterwards."""

_NO_RAY = (OSError, RuntimeError, ValueError, ray.exceptions.RayError)
"""What Ray raises where it can't start or be reached (ConnectionError and TimeoutError are OSErrors)."""

_CANCEL_S = 30.0
"""How long a trial may take to stop its engine politely before its worker is killed."""


def _run(order: Order, engine: Engine) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tuner-trial-") as folder:
        return run_trial(order, engine, Path(folder))


@dataclass(frozen=True, slots=True)
class _Node:
    id: str
    """Ray's own, hexadecimal."""
    has: dict[str, float]
    """Resources by Ray's names, whoever uses them now."""

    @property
    def cpus(self) -> float:
        return self.has.get("CPU", 0.0)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    number: int
    node: str | None
    """The node that the trial has to itself; None where Ray picks one."""


# A fresh process each: nothing of one trial is left in the next, and Ray itself never runs one twice.
_task = ray.remote(max_calls=1, max_retries=0)


class OnRay:
    """A Dispatch over Ray. Each trial is one task that reserves its GPUs, or a whole node where it has none.

    Args:
        engine: what serves; pickled to the nodes.
        address: a running cluster ("auto", "host:port", "ray://…"); None starts a Ray of its own on
            this machine and stops it on closing.

    Raises:
        DispatchError: no Ray at that address, or this process has one open already.
    """

    def __init__(self, engine: Engine, address: str | None = None) -> None:
        if ray.is_initialized():
            # Ray keeps one connection a process: closing ours would close the other.
            raise DispatchError("this process has a Ray open already; close that one first")
        self._engine = engine
        self._local = address is None
        self._under_way: dict[ray.ObjectRef[Outcome], _UnderWay] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        # It says at every start that tokens are on, which is as it should be.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        # Of a worker that died it tells standard output, where --json goes, whatever log_to_driver says.
        ray._private.worker._worker_logs_enabled = False
        self._open = True
        try:
            if address is None:
                self._start()
            else:
                self._join(address)
        except _NO_RAY as error:
            self.close()
            where = "on this machine" if address is None else f"at {address}"
            raise DispatchError(f"no Ray {where}: {_first_line(error)}") from error

    def _start(self) -> None:
        """A Ray of our own, whatever else runs on this machine or RAY_ADDRESS names."""
        # Ray's default folder is shared by all on a machine, down to a link to "the" latest session.
        folder = Path(tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR")))
        self._reaper = start_reaper(folder)
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            # Ray's workers yield to everything else (nice 15), and the engine would inherit that.
            _system_config={"worker_niceness": 0},
            **_QUIET,
        )

    def _join(self, address: str) -> None:
        """Become a driver of the cluster there, with our own code for its nodes."""
        if address == "auto":
            address = os.environ.get("RAY_ADDRESS") or address
        check_listens(address)
        client = "://" in address
        if client:
            # Its driver's side has no server that a node without tokens would have to reach.
            _show_token(has_token() and _MODE_ASKED != "disabled")
        else:
            _show_token(auth_mode(address, _MODE_ASKED) == "token")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they say is in the error that follows
                ray.init(address=address, runtime_env={"py_modules": _SENT}, **_QUIET)
        except ConnectionError as error:
            if client and not has_token():
                raise DispatchError(
                    f"no Ray at {address}: {_first_line(error)}; if it asks for a token, {TOKEN_ADVICE}"
                ) from error
            raise

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
        return sum(self._room(order, node) for node in _nodes())

    def _room(self, order: Order, node: _Node) -> int:
        """How many such orders run on this node at once."""
        if order.accelerator and f"accelerator_type:{order.accelerator}" not in node.has:
            return 0
        by_cpus = int(node.cpus // _cpus(order))
        if order.gpus:
            return min(by_cpus, int(node.has.get("GPU", 0.0) // order.gpus))
        return min(by_cpus, 1) if self._needs_a_node(order) else by_cpus

    def _needs_a_node(self, order: Order) -> bool:
        # vLLM on CPUs spreads over every core it sees, so two on one node would measure each other.
        return self._engine.name == "vllm" and not order.gpus

    def _place(self, order: Order) -> tuple[dict[str, Any], str | None]:
        """Task options, and the node that the task has to itself.

        A task can't ask Ray for "all CPUs of a node, however many they are", so the node is picked here:
        the one where fewest of our own trials are or wait. All of its CPUs are then asked for, so that
        the trial waits for other people's work there to end.
        """
        options: dict[str, Any] = {"num_cpus": _cpus(order), "num_gpus": order.gpus}
        if order.accelerator:
            options["accelerator_type"] = order.accelerator
        if not self._needs_a_node(order):
            return options, None
        fitting = [node for node in _nodes() if self._room(order, node)]
        if not fitting:
            raise DispatchError(f"no node of the cluster has {_cpus(order):g} CPUs for a trial")
        taken = Counter(flight.node for flight in self._under_way.values())
        node = min(fitting, key=lambda node: taken[node.id])
        options["num_cpus"] = node.cpus
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return options, node.id

    def submit(self, order: Order) -> None:
        options, node = self._place(order)
        ref = _task(_run).options(**options).remote(order, self._engine)
        self._under_way[ref] = _UnderWay(order.number, node)

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        if not self._under_way:
            raise LookupError("no order is under way")
        done, _ = ray.wait(list(self._under_way), num_returns=1, timeout=timeout_s)
        if not done:
            return None
        number = self._under_way.pop(done[0]).number
        return number, _outcome(done[0])

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked | None:
        if self._engine.name == "simulated":
            return check_names(arguments)
        if self._engine.name != "vllm":
            return None
        # What a trial takes is asked for, so that it is the vLLM of a node where trials run that answers.
        options, _ = self._place(order)
        task = _task(check_arguments).options(**options)
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
        if self._open and ray.is_initialized():
            self.cancel()
            ray.shutdown()
        self._open = False
        if self._reaper is not None:
            self._reaper.communicate()
            self._reaper = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _show_token(on: bool) -> None:
    """Whether this process shows Ray its token. Where an address is given Ray leaves that open."""
    mode = "token" if on else "disabled"
    if os.environ.get(AUTH_MODE, "disabled") != mode:
        os.environ[AUTH_MODE] = mode
        Config.initialize("")  # reads the environment again, as Ray does itself for "auto"


def _cpus(order: Order) -> float:
    return max(order.cpus, 1)


def _nodes() -> list[_Node]:
    """Every node alive."""
    rows = ray.nodes()  # type: ignore[no-untyped-call]
    return [_Node(row["NodeID"], row["Resources"]) for row in rows if row["Alive"]]


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
