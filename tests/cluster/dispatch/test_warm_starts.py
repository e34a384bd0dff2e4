"""Trials on a Ray of our own, with a stand-in for vLLM: a launcher of the node starts their engines."""

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from cluster.dispatch import on_ray
from cluster.dispatch.on_ray import OnRay
from cluster.node.vllm_arguments import Checked
from cluster.node.vllm_server import VllmEngine
from cluster.order import Limits, Measured, Order
from cluster.traffic.request import Request
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.values import Json

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its own sockets and files to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    package = tmp_path / "path" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    standin = Path(__file__).parents[1] / "node" / "fake_vllm_server.py"
    shutil.copy(standin, package / "api_server.py")
    model = tmp_path / "model"
    model.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(model / "tokenizer.json"))
    requests = tuple(Request(arrival_s=0.01 * at, input_length=10, output_length=4) for at in range(4))
    return Order(
        study="s",
        number=0,
        model=str(model),
        arguments={},
        environment={"PYTHONPATH": str(tmp_path / "path"), "FAKE_VLLM": json.dumps({"child": True})},
        workload=Workload(trace=Trace(requests=requests), tokenizer=str(model)),
        slo=Slo(),
        limits=Limits(stop_s=2.0),
    )


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
