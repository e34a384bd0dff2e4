"""The Ray dispatch with an engine that costs nothing: orders in, outcomes out, losses told apart."""

import os
from collections.abc import Iterator

import pytest

from cluster.dispatch.dispatch import DispatchError
from cluster.dispatch.on_ray import OnRay
from cluster.order import Cause, Failed, Measured
from tests.cluster.dispatch.scripted import Scripted, order

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its own sockets and files to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def on_ray() -> Iterator[OnRay]:
    with OnRay(Scripted("vllm")) as dispatch:
        yield dispatch


def test_a_served_order_comes_back_measured_under_its_own_number(on_ray: OnRay) -> None:
    on_ray.submit(order(7))
    ended = on_ray.next(60)
    assert ended is not None
    number, outcome = ended
    assert number == 7
    assert isinstance(outcome, Measured)
    assert [record.ttft_s for record in outcome.records] == pytest.approx([0.1] * 3)
    assert outcome.ran.engine == "vllm"


def test_a_refused_config_comes_back_failed_with_its_cause(on_ray: OnRay) -> None:
    on_ray.submit(order(1, "refuse"))
    ended = on_ray.next(60)
    assert ended is not None
    outcome = ended[1]
    assert isinstance(outcome, Failed)
    assert (outcome.cause, outcome.reason) == (Cause.UNSUPPORTED, "no such scheme")


def test_a_worker_that_dies_is_a_lost_node_and_is_not_run_twice_by_ray(on_ray: OnRay) -> None:
    on_ray.submit(order(2, "die"))
    ended = on_ray.next(60)
    assert ended is not None
    outcome = ended[1]
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.LOST_NODE
    assert not outcome.cause.blames_config


def test_trials_without_gpus_follow_each_other_in_one_process(on_ray: OnRay) -> None:
    said = set()
    for number in (3, 4):
        on_ray.submit(order(number, "say process"))
        ended = on_ray.next(60)
        assert ended is not None
        assert isinstance(ended[1], Failed)
        said.add(ended[1].reason)
    assert len(said) == 1


def test_waiting_for_nothing_is_refused(on_ray: OnRay) -> None:
    with pytest.raises(LookupError):
        on_ray.next(0)


def test_one_engine_on_cpus_takes_the_whole_machine_and_gpus_that_are_not_there_fit_nothing(
    on_ray: OnRay,
) -> None:
    assert on_ray.capacity(order(0)) == 1
    assert on_ray.capacity(order(0, gpus=int(on_ray.inventory.gpus) + 1)) == 0


def test_a_second_ray_in_one_process_is_refused_and_the_first_lives_on(on_ray: OnRay) -> None:
    with pytest.raises(DispatchError, match="open already"):
        OnRay(Scripted())
    on_ray.submit(order(4))
    assert on_ray.next(60) is not None


def test_a_trial_runs_at_the_drivers_own_priority(on_ray: OnRay) -> None:
    on_ray.submit(order(3, "say niceness"))
    ended = on_ray.next(60)
    assert ended is not None
    outcome = ended[1]
    assert isinstance(outcome, Failed)
    assert outcome.reason == f"nice {os.nice(0)}"
