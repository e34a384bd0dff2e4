"""The Ray dispatch with an engine that costs nothing: orders in, outcomes out, losses told apart."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.dispatch.on_ray import OnRay
from cluster.node.engine import EngineFailure, Replay
from cluster.order import Cause, Failed, Limits, Measured, Order
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.measurement import Record
from objectives.slo import Slo
from search_spaces.values import Json

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its own sockets and files to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass
class _Endpoint:
    version: str | None = "0"
    hardware: str | None = "none"
    command: tuple[str, ...] = ()
    effective: Mapping[str, Json] = field(default_factory=dict)

    def warm_up(self, workload: Workload) -> None: ...

    def reset_caches(self) -> None: ...

    def play(self, workload: Workload, limits: Limits) -> Replay:
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


class _Scripted:
    """An engine whose behaviour the order's arguments name."""

    name = "scripted"

    @contextmanager
    def serve(self, order: Order, folder: Path) -> Iterator[_Endpoint]:
        match order.arguments.get("act"):
            case "refuse":
                raise EngineFailure(Cause.UNSUPPORTED, "no such scheme")
            case "say niceness":
                raise EngineFailure(Cause.UNSUPPORTED, f"nice {os.nice(0)}")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
        yield _Endpoint()


def _order(number: int, act: str = "serve") -> Order:
    requests = tuple(Request(arrival_s=float(i), input_length=8, output_length=3) for i in range(3))
    return Order(
        study="s",
        number=number,
        model="m",
        arguments={"act": act},
        environment={},
        workload=Workload(trace=Trace(requests=requests)),
        slo=Slo(ttft_s=0.5),
    )


@pytest.fixture(scope="module")
def on_ray() -> Iterator[OnRay]:
    with OnRay(_Scripted()) as dispatch:
        yield dispatch


def test_a_served_order_comes_back_measured_under_its_own_number(on_ray: OnRay) -> None:
    on_ray.submit(_order(7))
    ended = on_ray.next(60)
    assert ended is not None
    number, outcome = ended
    assert number == 7
    assert isinstance(outcome, Measured)
    assert [record.ttft_s for record in outcome.records] == pytest.approx([0.1] * 3)
    assert outcome.ran.engine == "scripted"


def test_a_refused_config_comes_back_failed_with_its_cause(on_ray: OnRay) -> None:
    on_ray.submit(_order(1, "refuse"))
    ended = on_ray.next(60)
    assert ended is not None
    outcome = ended[1]
    assert isinstance(outcome, Failed)
    assert (outcome.cause, outcome.reason) == (Cause.UNSUPPORTED, "no such scheme")


def test_a_worker_that_dies_is_a_lost_node_and_is_not_run_twice_by_ray(on_ray: OnRay) -> None:
    on_ray.submit(_order(2, "die"))
    ended = on_ray.next(60)
    assert ended is not None
    outcome = ended[1]
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.LOST_NODE
    assert not outcome.cause.blames_config


def test_waiting_for_nothing_is_refused(on_ray: OnRay) -> None:
    with pytest.raises(LookupError):
        on_ray.next(0)


def test_one_engine_on_cpus_takes_the_whole_machine_and_gpus_that_are_not_there_fit_nothing(
    on_ray: OnRay,
) -> None:
    assert on_ray.capacity(_order(0)) == 1
    gpus = Order(
        study="s",
        number=0,
        model="m",
        arguments={},
        environment={},
        workload=_order(0).workload,
        slo=Slo(),
        gpus=int(on_ray.inventory.gpus) + 1,
    )
    assert on_ray.capacity(gpus) == 0


def test_a_trial_runs_at_the_drivers_own_priority(on_ray: OnRay) -> None:
    on_ray.submit(_order(3, "say niceness"))
    ended = on_ray.next(60)
    assert ended is not None
    outcome = ended[1]
    assert isinstance(outcome, Failed)
    assert outcome.reason == f"nice {os.nice(0)}"
