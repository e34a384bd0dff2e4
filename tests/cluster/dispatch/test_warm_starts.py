"""Trials on a Ray of our own, with a stand-in for vLLM: a launcher of the node starts their engines."""

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cluster.dispatch import on_ray
from cluster.dispatch.on_ray import OnRay
from cluster.node.vllm_arguments import Checked
from cluster.node.vllm_server import VllmEngine
from cluster.order import Measured, Order
from search_spaces.values import Json
from tests.cluster.dispatch import fake_vllm

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its own sockets and files to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    fake_vllm.install(tmp_path)
    return fake_vllm.order(tmp_path, script={"child": True})


def below() -> set[psutil.Process]:
    return set(psutil.Process(os.getpid()).children(recursive=True))


def is_launcher(one: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it may have ended just now
        return "cluster.node.launcher" in one.cmdline()
    return False


def test_a_nodes_launcher_starts_its_engines_and_goes_with_the_dispatch(order: Order) -> None:
    before = below()
    other = {**order.environment, "NOBODY_KNOWS": "1"}
    with OnRay(VllmEngine()) as dispatch:
        launches = []
        for asked in (order, replace(order, number=1), replace(order, number=2, environment=other)):
            dispatch.submit(asked)
            landed = None
            while landed is None:
                landed = dispatch.next(timeout_s=120)
            number, outcome = landed
            assert number == asked.number
            assert isinstance(outcome, Measured), outcome
            launches.append(outcome.ran.launch)
        launchers = [one for one in below() - before if is_launcher(one)]
        assert len(launchers) == 1
    assert launches[:2] == ["warm", "warm"]
    assert launches[2] == "cold: not from the launcher: it was started with another NOBODY_KNOWS"
    _, alive = psutil.wait_procs(launchers, timeout=30)
    assert not alive


def no_fault(arguments: list[dict[str, Json]]) -> Checked:
    """In place of vLLM's own parser."""
    return Checked(version="0", faults=())


def test_a_launcher_comes_up_while_arguments_are_checked(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "check_arguments", no_fault)
    before = below()
    with OnRay(VllmEngine()) as dispatch:
        assert dispatch.check_arguments(order, [{}]) == no_fault([])
        deadline = time.monotonic() + 120
        while not any(map(is_launcher, below() - before)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        dispatch.submit(order)
        while (landed := dispatch.next(timeout_s=120)) is None:
            continue
        assert landed[1].ran.launch == "warm"
