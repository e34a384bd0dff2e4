"""Trials as Ray tasks, on this machine or on a cluster. The only home of ray."""

import logging
import math
import os
import subprocess
import tempfile
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from ray.util.placement_group import (
    NODE_ID_LABEL_KEY as _NODE_ID,
)
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

import cluster
import objectives
import search_spaces
from cluster.dispatch import stop_signals
from cluster.dispatch.address import check_listens
from cluster.dispatch.dispatch import DispatchError, Inventory, Tell
from cluster.dispatch.phase_board import PhaseBoard
from cluster.dispatch.placing import Node, choose, cpus_of, named, room
from cluster.dispatch.preparing import Models, Need, Preparing
from cluster.dispatch.probe import AUTH_MODE, TOKEN_ADVICE, auth_mode, has_token
from cluster.dispatch.reaper import start_reaper
from cluster.node.command import engine_environment
from cluster.node.engine import Engine
from cluster.node.facts import NodeFacts, node_facts
from cluster.node.launcher_client import Launcher
from cluster.node.model_files import ModelMissing, ModelName, ModelState, fetch, models_of, state_of
from cluster.node.owner import mark, trial_folder
from cluster.node.phases import Phases
from cluster.node.run import run_trial
from cluster.node.simulation.argument_names import check_names
from cluster.node.vllm_arguments import Checked, EngineMissing, check_arguments
from cluster.node.vllm_server import VllmEngine
from cluster.order import Cause, Failed, Order, Outcome, Ran
from cluster.phase import Phase, PhaseName
from cluster.traffic.trace import Trace
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


_LOOK_S = 2.0
"""How often it is asked whether the nodes of what is under way still live: Ray leaves a task that waits for a
dead node waiting."""
_HEAR_S = 1.0
"""How often the phases of trials are asked for at most; it is seldomer where nothing else happens."""
_HEARD_S = 0.05
"""How long their answer is waited for: one that is late is taken next time."""
_UNTAKEN = 64
"""Calls that a node may have sent to a board which does not take them; what it tells beyond is dropped."""
_NODES_S = 1.0
"""How long what Ray said of the nodes is taken to hold."""
_DOUBT_S = 90.0
"""How long a node is left out that a trial was lost with, whatever Ray says of it: Ray takes five checks, 3 s
apart and of 10 s each at most, until it knows of a death, and meanwhile sends trials there."""
_FACTS_S = 90.0
"""How long a node may take to say what it has: Ray starts a worker, and unpacks our code for it, first."""

_LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.RaySystemError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.LocalRayletDiedError,
)
"""What Ray raises for a task that died with its worker or node."""
_GONE = (
    ray.exceptions.NodeDiedError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.LocalRayletDiedError,
)
"""Those of them that tell that the node itself is gone."""

_NO_TRACE = Trace(requests=())


class _WarmStarts:
    """Keeps a node's launcher, as an actor, for as long as this driver has its Ray open."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._launcher = Launcher(engine_environment(environment, os.environ)).__enter__()

    def engine(self) -> Engine:
        """That starts from the launcher, or says why it does not."""
        return VllmEngine(self._launcher.path, why_cold=self._launcher.problem)


class _Telling:
    """Tells a trial's phases to the driver's board. A board that is gone costs the trial nothing."""

    def __init__(self, board: Any, sending: int) -> None:
        self._call = None if board is None else board.tell.options(num_returns=0)
        self._sending = sending

    def __call__(self, phase: Phase) -> None:
        if self._call is None:
            return
        try:
            # Ray's own threads send it, and nothing comes back.
            self._call.remote(self._sending, phase)
        except ray.exceptions.PendingCallsLimitExceeded:
            return
        except _NO_RAY:
            self._call = None


def _run(order: Order, trace: Trace, engine: Engine, warm_starts: Any, board: Any, sending: int) -> Outcome:
    whole = replace(order, workload=replace(order.workload, trace=trace))
    phases = Phases(_Telling(board, sending))
    phases.starting()
    if warm_starts is not None:
        try:
            # Before the trial begins, so that the first on a node does not have it in its start.
            engine = ray.get(warm_starts.engine.remote())
        except ray.exceptions.TaskCancelledError:
            raise
        except ray.exceptions.RayError as error:
            engine = VllmEngine(why_cold=f"the launcher's keeper died: {_first_line(error)}")
    with trial_folder() as folder:
        return run_trial(whole, engine, folder, phases)


def _missing(models: tuple[ModelName, ...]) -> tuple[ModelName, ...]:
    """Those that this node would have to fetch. Raises ModelMissing for a path that is not here."""
    for model in models:
        if state_of(model) is ModelState.MISSING:
            raise ModelMissing(f"no folder {model} on this node", everywhere=False)
    return tuple(model for model in models if state_of(model) is ModelState.TO_FETCH)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """An order that was sent to a node."""

    order: Order
    node: Node
    group: PlacementGroup | None
    """What reserves its GPUs."""
    sending: int
    """Of an order: it may be sent out again."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A node that was asked what it has of some models, or to fetch them."""

    need: Need
    node: Node
    fetching: bool
    began_s: float


# What loads an engine or a model into its own process has that process to itself. Ray never runs one twice.
_task = ray.remote(max_calls=1, max_retries=0)
# What leaves nothing behind shares workers: starting one takes a second of CPU.
_light_task = ray.remote(max_retries=0)
# Made once: Ray sends out every remote function that is made, to a store that each call then waits for.
_run_with_gpus: Any = _task(_run)  # Ray tells a process of its GPUs by the environment, which stays as it was
_run_on_cpus: Any = _light_task(_run)  # the engine is no part of its process
_actor: Any = ray.remote(max_restarts=0, num_cpus=0)


class OnRay:
    """A Dispatch over Ray. Each trial is one task on a node that is picked here: it reserves its GPUs there
    by a placement group, or takes the whole node where a real engine has none.

    Args:
        engine: what serves; pickled to the nodes.
        address: a running cluster ("auto", "host:port", "ray://…"); None starts a Ray of its own on
            this machine and stops it on closing.
        tell: told what trials are doing; None: nobody asks them.

    Raises:
        DispatchError: no Ray at that address, or this process has one open already.
    """

    def __init__(self, engine: Engine, address: str | None = None, tell: Tell | None = None) -> None:
        if ray.is_initialized():
            # Ray keeps one connection a process: closing ours would close the other.
            raise DispatchError("this process has a Ray open already; close that one first")
        self._engine = engine
        self._local = address is None
        self._under_way: dict[ray.ObjectRef[Outcome], _UnderWay] = {}
        self._asked: dict[ray.ObjectRef[Any], _Asked] = {}
        self._preparing = Preparing()
        self._taken: defaultdict[str, float] = defaultdict(float)
        self._shares: dict[int, tuple[str, float]] = {}
        self._ended: deque[tuple[int, Outcome]] = deque()
        self._said: list[str] = []
        self._heard = 0
        self._sent_trace: tuple[Trace, ray.ObjectRef[Trace]] | None = None
        self._seen: tuple[float, tuple[Node, ...]] | None = None
        self._doubted: dict[str, float] = {}
        self._warm_starts: dict[str, Any] = {}
        self._tell = tell
        self._sendings = 0
        self._board: Any = None
        self._taking: ray.ObjectRef[dict[int, tuple[Phase, ...]]] | None = None
        self._asked_s = -math.inf
        self._untold: list[tuple[Order, Node, Phase]] = []
        self._reaper: subprocess.Popen[bytes] | None = None
        # It says at every start that tokens are on, which is as it should be.
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        # Of a worker that died it tells standard output, where --json goes, whatever log_to_driver says.
        ray._private.worker._worker_logs_enabled = False
        self._open = True
        try:
            with stop_signals.kept():
                if address is None:
                    self._start()
                else:
                    self._join(address)
        except Exception as error:
            self.close()
            # A daemon that does not come up in time is a bare Exception of Ray's.
            if not isinstance(error, _NO_RAY) and type(error) is not Exception:
                raise
            where = "on this machine" if address is None else f"at {address}"
            raise DispatchError(f"no Ray {where}: {_first_line(error)}") from error

    def _start(self) -> None:
        """A Ray of our own, whatever else runs on this machine or RAY_ADDRESS names."""
        # Ray's default folder is shared by all on a machine, down to a link to "the" latest session.
        folder = Path(tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR")))
        mark(folder)
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
            nodes=len(self._nodes()),
            cpus=total.get("CPU", 0.0),
            gpus=total.get("GPU", 0.0),
            accelerators=tuple(sorted(n.removeprefix(prefix) for n in total if n.startswith(prefix))),
        )

    def capacity(self, order: Order) -> int:
        return sum(self._room(order, node) for node in self._nodes())

    def nodes(self, order: Order) -> tuple[str, ...]:
        return tuple(node.name for node in self._nodes() if self._room(order, node))

    def facts(self, models: tuple[ModelName, ...] = ()) -> tuple[NodeFacts, ...]:
        nodes = self._nodes()
        if self._local:
            return tuple(_known(node_facts(models), node) for node in nodes)
        task: Any = _light_task(node_facts)
        asked = {task.options(**_at(node)).remote(models): node for node in nodes}
        done, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_FACTS_S)
        for ref in silent:
            ray.cancel(ref, force=True)
            self._said.append(f"node {asked[ref].name} does not answer")
        found = []
        for ref in done:
            try:
                found.append(_known(ray.get(ref), asked[ref]))
            except ray.exceptions.RayError as error:
                self._said.append(f"node {asked[ref].name} cannot say what it has: {_first_line(error)}")
        return tuple(sorted(found, key=lambda facts: facts.name))

    def remarks(self) -> tuple[str, ...]:
        said, self._said, self._heard = tuple(self._said), [], 0
        return said

    def _nodes(self) -> tuple[Node, ...]:
        """Every node alive."""
        now = time.monotonic()
        if self._seen is None or now - self._seen[0] > _NODES_S:
            self._seen = (now, _nodes())
        return tuple(one for one in self._seen[1] if self._doubted.get(one.id, now) <= now)

    def _room(self, order: Order, node: Node) -> int:
        if Need(node.id, self._models(order)) in self._preparing.unfit:
            return 0
        return room(order, node, alone=self._is_vllm)

    @property
    def _is_vllm(self) -> bool:
        # vLLM on CPUs spreads over every core it sees, so two on one node would measure each other.
        return self._engine.name == "vllm"

    def _models(self, order: Order) -> Models:
        """What a node must have for it; nothing for an engine that loads no model."""
        return models_of(order.model, order.arguments) if self._is_vllm else ()

    def submit(self, order: Order) -> None:
        nodes = [node for node in self._nodes() if self._room(order, node)]
        chosen = choose(order, nodes, self._taken, alone=self._is_vllm)
        if chosen is None:
            self._ended.append((order.number, self._nowhere(order)))
            return
        node, share = chosen
        self._shares[order.number] = (node.id, share)
        self._taken[node.id] += share
        need = Need(node.id, self._models(order))
        if not need.models or need in self._preparing.ready or self._is_here(need.models):
            self._launch(order, node)
            return
        fetching = any(asked.need == need and asked.fetching for asked in self._asked.values())
        self._enters(order, node, PhaseName.FETCHING if fetching else PhaseName.SENT)
        if self._preparing.wait(need, order):
            self._ask(need, node)

    def _is_here(self, models: Models) -> bool:
        """Whether this machine, all of our own Ray, surely has them."""
        return self._local and all(model.is_path and Path(model.name).is_dir() for model in models)

    def _nowhere(self, order: Order) -> Failed:
        reason = self._preparing.reason(self._models(order))
        if reason is not None:
            return Failed(cause=Cause.INVALID_ARGUMENT, reason=reason)
        where = f"node {order.node} is gone" if order.node else "no node has room for it"
        return Failed(cause=Cause.LOST_NODE, reason=where, ran=Ran(node=order.node), begun=False)

    def _launch(self, order: Order, node: Node) -> None:
        """Send it to the node, which has the models."""
        options, group = self._reserved(order, node)
        task = _run_with_gpus if order.gpus and self._is_vllm else _run_on_cpus
        sent = replace(order, workload=replace(order.workload, trace=_NO_TRACE))
        warm = self._warm_starts_at(node, order)
        self._sendings += 1
        ref = task.options(**options).remote(
            sent, self._trace(order), self._engine, warm, self._phase_board(), self._sendings
        )
        self._under_way[ref] = _UnderWay(order, node, group, self._sendings)
        self._enters(order, node, PhaseName.SENT)

    def _enters(self, order: Order, node: Node, name: PhaseName) -> None:
        """Have it told of an order, when `next` is called again."""
        if self._tell is not None:
            self._untold.append((order, node, Phase(name=name)))

    def _phase_board(self) -> Any:
        """Where nodes tell phases."""
        if self._board is None and self._tell is not None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            # One that dies is begun again by Ray, empty, and whoever knew it knows it still.
            options = {"scheduling_strategy": here, "max_pending_calls": _UNTAKEN, "max_restarts": -1}
            self._board = _actor(PhaseBoard).options(**options).remote()
        return self._board

    def _hear(self) -> None:
        """Tell what is known of phases. Whatever is wrong with the board, the trials are not."""
        if self._tell is None:
            return
        untold, self._untold = self._untold, []
        for order, node, phase in untold:
            if order.number in self._shares:  # it may have ended meanwhile
                self._tell(order.number, node.name, phase)
        if self._board is None or time.monotonic() - self._asked_s < _HEAR_S:
            return
        self._asked_s = time.monotonic()
        try:
            self._taking = self._taking or self._board.take.remote()
            if not ray.wait([self._taking], timeout=_HEARD_S)[0]:
                return
            told = ray.get(self._taking)
        except _NO_RAY:
            told = {}
        self._taking = None
        for flight in self._under_way.values():
            for phase in told.get(flight.sending, ()):
                self._tell(flight.order.number, flight.node.name, phase)

    def _warm_starts_at(self, node: Node, order: Order) -> Any:
        """The node's launcher of real engines, with the first order's environment."""
        if not isinstance(self._engine, VllmEngine):
            return None
        if node.id not in self._warm_starts:
            made = _actor(_WarmStarts).options(**_at(node)).remote(dict(order.environment))
            self._warm_starts[node.id] = made
        return self._warm_starts[node.id]

    def _reserved(self, order: Order, node: Node) -> tuple[dict[str, Any], PlacementGroup | None]:
        """Task options that give it what it takes of the node."""
        if not order.gpus:
            # All CPUs of a node are asked for, so that the trial waits for other people's work there to end.
            return _at(node, cpus=node.cpus if self._is_vllm else cpus_of(order)), None
        bundle = {"CPU": cpus_of(order), "GPU": float(order.gpus)}
        group = placement_group([bundle], "STRICT_PACK", bundle_label_selector=[{_NODE_ID: node.id}])
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        asked = {"num_cpus": cpus_of(order), "num_gpus": order.gpus, "scheduling_strategy": strategy}
        return asked, group

    def _trace(self, order: Order) -> "ray.ObjectRef[Trace]":
        """The order's trace where every node finds it: all orders of a study have the same one."""
        trace = order.workload.trace
        if self._sent_trace is None or self._sent_trace[0] is not trace:
            self._sent_trace = (trace, ray.put(trace))
        return self._sent_trace[1]

    def _ask(self, need: Need, node: Node) -> None:
        ref = _light_task(_missing).options(**_at(node)).remote(need.models)
        self._asked[ref] = _Asked(need, node, False, time.monotonic())

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._ended:
                return self._ended.popleft()
            self._hear()
            waiting = [*self._under_way, *self._asked]
            if not waiting:
                raise LookupError("no order is under way")
            left = deadline - time.monotonic()
            done, _ = ray.wait(waiting, num_returns=1, timeout=max(min(left, _LOOK_S), 0.0))
            if done and done[0] in self._under_way:
                return self._landed(done[0])
            if done:
                self._answered(done[0])
            else:
                self._look_for_the_dead()
            news = len(self._said) > self._heard
            self._heard = len(self._said)
            if not self._ended and (news or time.monotonic() >= deadline):
                return None

    def _landed(self, ref: "ray.ObjectRef[Outcome]", outcome: Outcome | None = None) -> tuple[int, Outcome]:
        """Take an order off its node, with what came of it or what is known without asking."""
        flight = self._under_way.pop(ref)
        self._give_back(flight.order)
        if flight.group is not None:
            remove_placement_group(flight.group)
        found, gone = _outcome(ref) if outcome is None else (outcome, False)
        if gone:
            self._doubted[flight.node.id] = time.monotonic() + _DOUBT_S
        return flight.order.number, replace(found, ran=replace(found.ran, node=flight.node.name))

    def _give_back(self, order: Order) -> None:
        node, share = self._shares.pop(order.number)
        self._taken[node] -= share

    def _look_for_the_dead(self) -> None:
        alive = {node.id for node in self._nodes()}
        lost = Failed(cause=Cause.LOST_NODE, reason="its node died")
        for ref, flight in list(self._under_way.items()):
            if flight.node.id not in alive and not ray.wait([ref], timeout=0)[0]:
                ray.cancel(ref, force=True)
                self._ended.append(self._landed(ref, lost))
        for ref, asked in list(self._asked.items()):
            if asked.node.id not in alive and not ray.wait([ref], timeout=0)[0]:
                ray.cancel(ref, force=True)
                del self._asked[ref]
                self._elsewhere(self._preparing.lost(asked.need, "its node died"))

    def _answered(self, ref: "ray.ObjectRef[Any]") -> None:
        """A node has said what it lacks, or has fetched it."""
        asked = self._asked.pop(ref)
        need, node = asked.need, asked.node
        try:
            lacking: Models | None = ray.get(ref)
        except ModelMissing as raised:
            # Ray raises a subclass of a task's exception, with the exception itself as `cause`.
            self._cannot_get(asked, getattr(raised, "cause", raised))
            return
        except ray.exceptions.RayError as error:
            self._elsewhere(
                self._preparing.lost(need, f"node {node.name} died over it: {_first_line(error)}")
            )
            return
        if lacking:
            self._said.append(f"node {node.name} fetches {', '.join(map(str, lacking))}")
            for order in self._preparing.waiting.get(need, ()):
                self._enters(order, node, PhaseName.FETCHING)
            fetching = _task(fetch).options(**_at(node)).remote(need.models)
            self._asked[fetching] = _Asked(need, node, True, time.monotonic())
            return
        if asked.fetching:
            took_s = time.monotonic() - asked.began_s
            self._said.append(
                f"node {node.name} has {', '.join(map(str, need.models))}, after {took_s:.0f} s"
            )
        for order in self._preparing.met(need):
            self._launch(order, node)

    def _cannot_get(self, asked: _Asked, missing: ModelMissing) -> None:
        orders = self._preparing.failed(asked.need, str(missing))
        if not missing.everywhere:
            self._said.append(f"node {asked.node.name} is not used for it: {missing}")
            self._elsewhere(orders)
            return
        for order in orders:
            self._give_back(order)
            self._ended.append((order.number, Failed(cause=Cause.INVALID_ARGUMENT, reason=str(missing))))

    def _elsewhere(self, orders: list[Order]) -> None:
        for order in orders:
            self._give_back(order)
            self.submit(order)

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked | None:
        if self._engine.name == "simulated":
            return check_names(arguments)
        if not self._is_vllm:
            return None
        # It is the vLLM of a node where trials run that answers.
        nodes = [node for node in self._nodes() if self._room(order, node)]
        if not nodes:
            raise DispatchError("no node has room for a trial")
        # Both import vLLM, which takes most of a small model's start: the first trials need not wait for it.
        for node in nodes:
            self._warm_starts_at(node, order)
        task = _task(check_arguments).options(**_at(nodes[0], cpus=cpus_of(order)))
        try:
            checked: Checked = ray.get(task.remote(arguments))
        except EngineMissing as missing:  # Ray raises a task's exception as a subclass of its type
            raise DispatchError(_first_line(missing.__cause__ or missing)) from missing
        return checked

    def cancel(self) -> None:
        waiting = list(self._under_way)
        groups = [flight.group for flight in self._under_way.values() if flight.group is not None]
        asked = list(self._asked)
        self._under_way.clear()
        self._asked.clear()
        self._ended.clear()
        self._preparing.waiting.clear()
        self._shares.clear()
        self._taken.clear()
        self._untold.clear()
        for ref in waiting:
            ray.cancel(ref)
        for ref in asked:
            ray.cancel(ref, force=True)
        _, stubborn = ray.wait(waiting, num_returns=len(waiting), timeout=_CANCEL_S) if waiting else ([], [])
        for ref in stubborn:
            # Its worker dies; the guard beside the engine sees that and ends the engine.
            ray.cancel(ref, force=True)
        # Last: Ray kills the workers of a group that is removed. One of a driver that dies goes with it.
        for group in groups:
            remove_placement_group(group)

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


def _nodes() -> tuple[Node, ...]:
    """Every node alive."""
    rows = ray.nodes()  # type: ignore[no-untyped-call]
    return named(
        (row["NodeID"], row.get("NodeName", ""), row["NodeManagerHostname"], row["Resources"])
        for row in rows
        if row["Alive"]
    )


def _at(node: Node, *, cpus: float = 0.0) -> dict[str, Any]:
    """Options of a task that runs on this node or not at all."""
    return {"num_cpus": cpus, "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}


def _known(facts: NodeFacts, node: Node) -> NodeFacts:
    """With what Ray knows of the node."""
    return replace(
        facts, name=node.name, cpus=node.cpus, gpus=node.gpus, accelerator_type=node.accelerator_type
    )


def _resources() -> dict[str, float]:
    """What all nodes have together."""
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return total


def _outcome(ref: "ray.ObjectRef[Outcome]") -> tuple[Outcome, bool]:
    """What the task returned, or what its death says, and whether its node is gone.

    A fault of our own is raised as it is."""
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.TaskCancelledError:
        return Failed(cause=Cause.CANCELLED, reason="the trial was cancelled"), False
    except ray.exceptions.OutOfMemoryError as error:
        reason = f"the node ran out of memory: {_first_line(error)}"
        return Failed(cause=Cause.OUT_OF_MEMORY, reason=reason), False
    except ray.exceptions.TaskUnschedulableError:
        reason = "its node was gone before it could begin there"
        return Failed(cause=Cause.LOST_NODE, reason=reason, begun=False), True
    except _LOST as error:
        # What follows the first sentence are Ray's own commands, to find out more.
        reason = f"the node or its worker died: {_first_line(error).partition('. ')[0]}"
        return Failed(cause=Cause.LOST_NODE, reason=reason), isinstance(error, _GONE)
    return outcome, False


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
