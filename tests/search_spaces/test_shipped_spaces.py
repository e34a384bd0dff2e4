"""The spaces that come with the tuner say what they are for."""

from pathlib import Path

import pytest

from search_spaces.arguments import render, render_control
from search_spaces.load import load_space, parse_space, shipped_spaces
from search_spaces.parameters import Categorical, every
from search_spaces.settings import at


def test_these_are_shipped() -> None:
    assert shipped_spaces() == ("spaces/70b.yaml", "spaces/8b.yaml", "spaces/smollm2-135m.yaml")


@pytest.mark.parametrize("name", shipped_spaces())
def test_every_choice_and_both_ends_can_be_reached(name: str) -> None:
    space = load_space(name)
    seen = {(path, value) for config in space.covering() for path, value in config.values.items()}
    for parameter in every(space.parameters):
        assert {(parameter.path, corner) for corner in parameter.corners} <= seen
    assert (space.count().configs or 0) > 1_000_000


@pytest.mark.parametrize("name", shipped_spaces())
def test_capacity_is_measured_on_requests_enough_and_another_measure_may_be_asked_for(name: str) -> None:
    space = load_space(name)
    assert space.measure.kind == "capacity"
    assert space.objectives == ("capacity", "tpot_p95")
    assert space.named_objectives == ()  # so that they follow
    requests = (space.traffic.make or {})["requests"]
    assert isinstance(requests, int)
    assert requests >= 59  # for p95: ln 0.05 / ln 0.95


def test_8b_is_one_gpu_with_every_optimisation() -> None:
    space = load_space("spaces/8b.yaml")
    rendered = [render(space, config) for config in space.covering()]
    assert {r.gpus for r in rendered} == {1}
    assert {r.model for r in rendered} == {
        "meta-llama/Llama-3.1-8B-Instruct",
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
    }
    assert {at(r.arguments, "speculative_config.method") for r in rendered} == {
        None,
        "ngram",
        "draft_model",
        "eagle3",
    }
    assert {r.arguments.get("kv_offloading_size") for r in rendered} == {None, 16, 64}


def test_70b_takes_the_gpus_of_its_tensor_parallel_size() -> None:
    space = load_space("spaces/70b.yaml")
    rendered = [render(space, config) for config in space.covering()]
    assert {(r.gpus, r.arguments["tensor_parallel_size"]) for r in rendered} == {(2, 2), (4, 4), (8, 8)}
    assert render_control(space).gpus == 8
    # 70.6 billion weights of two bytes do not fit on two GPUs of 80 GB.
    values = {**space.covering()[0].values, "quantisation": "bf16", "tensor_parallel_size": 2}
    assert any("tensor_parallel_size >= 4" in fault for fault in space.faults(space.config(values)))


def test_smollm2_runs_without_a_gpu_and_keeps_the_controls_pool_small() -> None:
    space = load_space("spaces/smollm2-135m.yaml")
    control = render_control(space)
    assert control.gpus == 0
    assert control.arguments == {
        "max_model_len": 2048,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 2**30,
    }
    quantisation = next(p for p in space.parameters if p.path == "quantisation")
    assert isinstance(quantisation, Categorical)
    assert quantisation.values == ("full", "int8", "fp8")
    # A pool must hold one request of full length: 2048 tokens of 2 · 30 · 3 · 64 · 2 = 23,040 bytes.
    pools = [r.arguments["kv_cache_memory_bytes"] for r in (render(space, c) for c in space.covering())]
    assert set(pools) == {2**26, 2**30}
    assert min(pool for pool in pools if isinstance(pool, int)) > 2048 * 23_040


def test_the_example_in_the_documentation_is_a_space() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spaces.md").read_text(encoding="utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    space = parse_space(example, "docs/spaces.md")
    assert space.covering()
