"""Which node an order goes to, and who waits for what."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.dispatch.placing import Node, choose, named, room
from cluster.dispatch.preparing import Need, Preparing
from cluster.node.model_files import ModelName
from cluster.order import Order
from tests.cluster.dispatch.scripted import order

_H100 = "accelerator_type:H100"


def node(name: str, **has: float) -> Node:
    return Node(id=f"id-{name}", name=name, has=has)


@pytest.mark.parametrize(
    ("has", "asked", "alone", "fits"),
    [
        ({"CPU": 16.0, "GPU": 8.0, _H100: 1.0}, order(0, gpus=2, cpus=2), True, 4),
        ({"CPU": 4.0, "GPU": 8.0}, order(0, gpus=2, cpus=2), True, 2),
        ({"CPU": 16.0, "GPU": 8.0}, order(0, gpus=1, accelerator="H100"), True, 0),
        ({"CPU": 16.0, "GPU": 8.0, _H100: 1.0}, order(0, gpus=1, accelerator="H100"), True, 8),
        ({"CPU": 16.0}, order(0, cpus=4), True, 1),
        ({"CPU": 16.0}, order(0, cpus=4), False, 4),
        ({"CPU": 2.0}, order(0, cpus=4), True, 0),
        ({"CPU": 2.0}, order(0, node="other"), False, 0),
    ],
)
def test_room_is_what_cpus_gpus_type_and_name_leave(
    has: dict[str, float], asked: Order, alone: bool, fits: int
) -> None:
    assert room(asked, node("here", **has), alone=alone) == fits


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_orders_fill_every_node_before_any_has_more_than_it_runs_at_once(gpus: list[int], count: int) -> None:
    nodes = [node(f"n{place}", CPU=64.0, GPU=float(has)) for place, has in enumerate(gpus)]
    taken: defaultdict[str, float] = defaultdict(float)
    for number in range(min(count, sum(gpus))):
        found = choose(order(number, gpus=1), nodes, taken, alone=True)
        assert found is not None
        taken[found[0].id] += found[1]
        assert taken[found[0].id] <= 1 + 1e-9
    if count >= sum(gpus):
        assert all(taken[one.id] == pytest.approx(1.0) for one in nodes)


def test_names_tell_nodes_apart_and_a_hosts_name_outlasts_its_address() -> None:
    rows: list[tuple[str, str, str, dict[str, float]]] = [
        ("aaaaaaaaaa", "10.0.0.1", "host-a", {}),
        ("bbbbbbbbbb", "gpu-7", "host-b", {}),
        ("cccccccccc", "", "host-c", {}),
        ("dddddddddd", "10.0.0.4", "host-c", {}),
    ]
    assert [one.name for one in named(rows)] == ["gpu-7", "host-a", "host-c/cccccccc", "host-c/dddddddd"]


def test_a_node_is_asked_once_and_all_that_wait_for_it_go_on_together() -> None:
    preparing, need = Preparing(), Need("a", (ModelName("org/m"),))
    orders = [order(number) for number in range(3)]
    assert [preparing.wait(need, one) for one in orders] == [True, False, False]
    assert preparing.met(need) == orders
    assert need in preparing.ready
    assert preparing.wait(need, orders[0])


def test_a_worker_that_dies_over_a_model_twice_makes_its_node_unfit_for_it() -> None:
    preparing, need = Preparing(), Need("a", (ModelName("org/m"),))
    for times in (1, 2):
        preparing.wait(need, order(0))
        assert len(preparing.lost(need, "died")) == 1
        assert (need in preparing.unfit) == (times == 2)
    assert preparing.reason(need.models) == "died"
    assert preparing.reason((ModelName("org/other"),)) is None
