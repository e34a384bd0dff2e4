"""What `tuner nodes` makes of a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.node.facts import Accelerator, NodeFacts
from cluster.node.model_files import ModelState
from cluster.order import Order
from tests.tuner import stories
from tests.tuner.dispatches import FakeCluster
from tuner import nodes_usecases
from tuner.cli import main
from tuner.nodes_usecases import SeenNodes, nodes, nodes_json, nodes_lines, why_not

_H100 = Accelerator(name="NVIDIA H100 80GB HBM3", memory_mib=81559, driver="550.54.15")
_SPACE = """
name: s
model: org/m
resources: {gpus: 4, cpus: 2, accelerator: H100}
parameters:
  tensor_parallel_size: {choices: [1, 2, 4]}
slo: {ttft_p95_ms: 500}
"""


def facts(name: str = "a", *, gpus: int = 8) -> NodeFacts:
    return NodeFacts(
        name=name,
        hardware="a CPU, 64 cores",
        accelerators=(_H100,) * gpus,
        accelerator_type="H100" if gpus else None,
        gpus=gpus,
        cpus=64,
        memory_bytes=512 * 2**30,
        python="3.12.3",
        ray="2.60.0",
        vllm="0.32.0",
        models={"org/m": ModelState.TO_FETCH},
    )


def order(gpus: int = 1, cpus: int = 2, accelerator: str | None = "H100") -> Order:
    return replace(stories.order(), gpus=gpus, cpus=cpus, accelerator=accelerator)


@pytest.mark.parametrize(
    ("has", "asked", "told"),
    [
        (facts(), order(), None),
        (replace(facts(), vllm=None), order(), "vLLM is not installed there"),
        (replace(facts(), accelerator_type="A100"), order(), "has A100, and the space asks for H100"),
        (facts(gpus=0), order(accelerator=None), "Ray gives out 0 GPUs there, and a trial takes 1"),
        (facts(), order(cpus=65), "Ray gives out 64 CPUs there, and a trial takes 65"),
        (replace(facts(), models={"/m": ModelState.MISSING}), order(), "no folder /m there"),
    ],
)
def test_why_a_node_runs_no_trial(has: NodeFacts, asked: Order, told: str | None) -> None:
    reasons = why_not(has, asked)
    assert (reasons == ()) if told is None else (len(reasons) == 1 and reasons[0].startswith(told))


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeenNodes:
    (tmp_path / "s.yaml").write_text(_SPACE)
    monkeypatch.chdir(tmp_path)
    has = (
        facts("a"),
        facts("b"),
        replace(facts("c"), vllm="0.31.0"),
        replace(facts("d"), gpus=2.0),
        facts("e", gpus=0),
    )
    rooms = {"a": 8, "b": 8, "c": 8, "d": 2, "e": 0}
    cluster = FakeCluster(lambda order: stories.failed(), rooms, facts=has)
    monkeypatch.setattr(nodes_usecases, "dispatch_for", lambda engine, address: cluster)
    return nodes("10.0.0.1:6379", "s.yaml", lambda line: None)


def test_nodes_that_cannot_run_a_trial_or_be_compared_say_why(seen: SeenNodes) -> None:
    a, _, c, d, e = seen.nodes
    assert (a.at_once, a.why_not, a.notes) == (8, (), ("org/m is to be fetched",))
    assert c.why_not == ("has vLLM 0.31.0, and most nodes would measure with vLLM 0.32.0",)
    assert d.why_not == ()
    assert "its configs of 4 GPUs have no room there" in d.notes
    assert len(e.why_not) == 2  # no H100, no GPU


def test_lines_and_json_tell_the_same(seen: SeenNodes) -> None:
    lines = nodes_lines(seen)
    assert lines[0] == (
        "a: 8 × NVIDIA H100 80GB HBM3 (80 GiB, driver 550.54.15); Ray gives out 64 CPUs and 8 GPUs; "
        "512 GiB memory; vLLM 0.32.0, Python 3.12.3, Ray 2.60.0"
    )
    assert "  8 trials of s.yaml at once" in lines
    told = nodes_json(seen)
    assert isinstance(told["nodes"], list)
    first = told["nodes"][0]
    assert isinstance(first, dict)
    assert (first["name"], first["trials_at_once"], first["models"]) == ("a", 8, {"org/m": "to be fetched"})


def test_an_address_where_nothing_listens_is_one_line() -> None:
    done = CliRunner().invoke(main, ["nodes", "--ray", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert "error: no Ray at 127.0.0.1:1: connection refused" in done.stderr
    assert "Traceback" not in done.output
