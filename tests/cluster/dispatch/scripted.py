"""An engine that costs nothing and does as its order says; importable on a Ray worker."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ray

from cluster.node.engine import EngineFailure, Replay
from cluster.node.phases import Phases
from cluster.order import Cause, Limits, Order
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.allowance import Allowance
from objectives.measurement import Record
from objectives.slo import Slo
from search_spaces.values import Json

_HERE = str(Path(__file__).parent)
"""A folder that every node has, for a model."""


HOLD = "hold "
"""Begins an act that warms up until the file that follows is there."""


def wait_for(path: Path) -> None:
    """Other processes can tell this one nothing but by a file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


@dataclass
class ScriptedEndpoint:
    version: str | None = "0"
    hardware: str | None = "none"
    command: tuple[str, ...] = ()
    effective: Mapping[str, Json] = field(default_factory=dict)
    launch: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    until: Path | None = None
    """Warms up until this is there."""

    def warm_up(self, workload: Workload) -> None:
        if self.until is not None:
            wait_for(self.until)

    def reset_caches(self) -> None: ...

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        return self.play(workload, limits)

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        records = tuple(
            Record(
                request=index,
                due_s=float(index),
                sent_s=float(index),
                chunk_s=(index + 0.1, index + 0.3),
                chunk_tokens=(1, 3),
                finished_s=index + 0.3,
                tokens_in=request.input_length,
                tokens_out=3,
                tokens_asked=3,
            )
            for index, request in enumerate(workload.trace.requests)
        )
        return Replay(records=records, samples=())


class Scripted:
    """An engine whose behaviour the order's arguments name, under any engine's name."""

    def __init__(self, name: str = "scripted") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> Iterator[ScriptedEndpoint]:
        match order.arguments.get("act"):
            case "refuse":
                raise EngineFailure(Cause.UNSUPPORTED, "no such scheme")
            case "say where and when":
                began = time.monotonic()
                time.sleep(0.3)
                node = ray.get_runtime_context().get_node_id()
                raise EngineFailure(Cause.UNSUPPORTED, f"{node} {began} {time.monotonic()}")
            case "say devices":
                began = time.monotonic()
                time.sleep(2.0)
                visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                raise EngineFailure(Cause.UNSUPPORTED, f"{visible} {began} {time.monotonic()} {folder}")
            case "wait":
                Path(os.environ["TUNER_TEST_FLAG"]).touch()
                time.sleep(600)
            case "say process":
                raise EngineFailure(Cause.UNSUPPORTED, f"process {os.getpid()}")
            case "say niceness":
                raise EngineFailure(Cause.UNSUPPORTED, f"nice {os.nice(0)}")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case str(act) if act.startswith(HOLD):
                yield ScriptedEndpoint(until=Path(act.removeprefix(HOLD)))
                return
            case _:
                pass
        yield ScriptedEndpoint()


def order(
    number: int,
    act: str = "serve",
    *,
    gpus: int = 0,
    cpus: int = 1,
    accelerator: str | None = None,
    model: str | None = None,
    node: str | None = None,
) -> Order:
    requests = tuple(Request(arrival_s=float(i), input_length=8, output_length=3) for i in range(3))
    return Order(
        study="s",
        number=number,
        model=model or _HERE,
        arguments={} if act == "serve" else {"act": act},
        environment={},
        workload=Workload(trace=Trace(requests=requests)),
        slo=Slo(ttft_s=0.5),
        gpus=gpus,
        cpus=cpus,
        accelerator=accelerator,
        node=node,
    )
