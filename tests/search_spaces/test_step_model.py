"""Where a step's time goes, against bytes, FLOPs and seconds worked out by hand."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.accelerators import ACCELERATORS
from search_spaces.model_shape import SHAPES
from search_spaces.roofline import forward_pass
from search_spaces.schemes import FP8, UNQUANTISED, W4A16, Scheme
from search_spaces.step_model import (
    Constants,
    Served,
    StepLoad,
    WorkTable,
    settled_batch,
    step_parts,
    step_work,
    table_constants,
)

H100 = ACCELERATORS["H100-80G"]
LLAMA = SHAPES["meta-llama/Llama-3.1-8B"]
DRAFT = SHAPES["meta-llama/Llama-3.2-1B"]

LINEAR = 6_979_321_856
"""Weights of Llama 3.1 8B in its linear layers: 32 · (2 · 4096² + 2 · 4096 · 1024 + 3 · 4096 · 14336)."""
HEAD = 128_256 * 4096
NORMS = 65 * 4096


def served(scheme: Scheme = UNQUANTISED, kv_dtype: str = "bfloat16") -> Served:
    return Served(target=forward_pass(LLAMA, scheme, H100, kv_dtype=kv_dtype), target_scheme=scheme.name)


def drafting(depth: int) -> Served:
    return dataclasses.replace(
        served(), draft=forward_pass(DRAFT, UNQUANTISED, H100), draft_scheme="none", depth=depth
    )


ROUND = Constants(
    bandwidth=1e12,
    compute={"none": 1e14, "fp8": 2e14, "w4a16": 1e14},
    step_s=1e-3,
    sequence_s=1e-5,
    draft_step_s=5e-4,
    lookup_step_s=3e-4,
    lookup_s=2e-5,
)

TEN = StepLoad(sequences=10, context=10 * 1000)
"""Ten sequences that have a thousand tokens each."""


@pytest.mark.parametrize(
    ("scheme", "a_weight"),
    [
        (UNQUANTISED, 2.0),
        (FP8, 1.0),
        (W4A16, (4 + 20 / 128) / 8),  # 4 bits, and 16 + 4 bits of scale and zero for 128 weights
    ],
)
def test_a_decode_step_reads_every_weight_but_the_embedding(scheme: Scheme, a_weight: float) -> None:
    work = step_work(served(scheme), TEN)
    # head and norms stay at two bytes; the embedding is a look-up
    assert work.target.weights == pytest.approx(LINEAR * a_weight + 2 * (HEAD + NORMS))


@pytest.mark.parametrize(("kv_dtype", "a_value"), [("bfloat16", 2), ("fp8", 1)])
def test_a_gqa_model_reads_eight_heads_of_every_cached_token(kv_dtype: str, a_value: int) -> None:
    work = step_work(served(kv_dtype=kv_dtype), TEN)
    # keys and values · 32 layers · 8 heads of 128 · 10 · 1000 tokens
    assert work.target.kv == 2 * 32 * 8 * 128 * 10_000 * a_value


def test_bytes_a_decode_token_of_an_8b_model() -> None:
    # 15.01 GB of weights for ten sequences, and 131 072 bytes for each of a thousand tokens: 1.501 + 0.131 GB
    work = step_work(served(), TEN)
    assert (work.target.weights + work.target.kv) / 10 == pytest.approx(1.632e9, rel=1e-3)


def test_a_decode_step_by_hand() -> None:
    parts = step_parts(step_work(served(), TEN), ROUND)
    # 15.0099 GB of weights and 1.3107 GB of KV over 1 TB/s; 1 ms, and 10 µs for each of ten sequences
    assert parts.weights_s == pytest.approx(15.0099e-3, rel=1e-4)
    assert parts.kv_s == pytest.approx(1.3107e-3, rel=1e-4)
    assert parts.step_s == 1e-3
    assert parts.sequence_s == pytest.approx(1e-4)
    assert parts.compute_s == 0
    # 2 FLOPs a weight and token, and 4 · 32 layers · 32 heads · 128 for each of 10 000 cached tokens
    flops = 10 * 2 * (LINEAR + HEAD) + 4 * 32 * 32 * 128 * 10_000
    assert parts.hidden_s == pytest.approx(flops / 1e14)
    assert parts.total_s == pytest.approx(
        parts.weights_s + parts.kv_s + parts.activations_s + parts.step_s + parts.sequence_s
    )


def test_a_prompt_is_bound_by_compute_and_hides_the_memory() -> None:
    load = StepLoad(sequences=0, prompts=1, prompt_tokens=2000, prompt_read=2000, prompt_pairs=2_001_000)
    parts = step_parts(step_work(served(), load), ROUND)
    # one token is sampled: the head multiplies once
    flops = 2000 * 2 * LINEAR + 2 * HEAD + 4 * 32 * 32 * 128 * 2_001_000
    assert parts.compute_s == pytest.approx(flops / 1e14)
    assert parts.memory_s == 0
    # 15.01 GB of weights; for each of 2,000 tokens its own keys and values written and read, and 12 values of
    # width 4096 in each of 32 layers
    moved = 2 * (LINEAR + HEAD + NORMS) + 2000 * (2 * 131_072 + 12 * 32 * 4096 * 2)
    assert parts.hidden_s == pytest.approx(moved / 1e12)


def test_a_prefix_hit_removes_prefill_work_and_no_decode_read() -> None:
    # 1,000 tokens, 600 of them cached: 400 are computed, each against the 600 and those before it
    hit = StepLoad(sequences=0, prompts=1, prompt_tokens=400, prompt_read=1000, prompt_pairs=320_200)
    miss = StepLoad(sequences=0, prompts=1, prompt_tokens=1000, prompt_read=1000, prompt_pairs=500_500)
    saved = step_work(served(), miss).target.flops - step_work(served(), hit).target.flops
    assert saved == pytest.approx(600 * 2 * LINEAR + 4 * 32 * 32 * 128 * 180_300)
    # what is read is what is cached, however it came there
    assert step_work(served(), TEN).target.kv / 10_000 == 131_072
    assert step_work(served(), hit).target.kv == step_work(served(), miss).target.kv == 1000 * 131_072


def test_depth_three_at_half_accepted_by_hand() -> None:
    load = dataclasses.replace(TEN, queries=1 + 3)
    work = step_work(drafting(3), load)
    plain = step_work(served(), TEN)
    # four tokens a sequence are verified: weights and cache are read once, FLOPs are four times as many
    assert work.target.weights == plain.target.weights
    assert work.target.kv == plain.target.kv
    assert work.target.flops == pytest.approx(4 * plain.target.flops)
    parts = step_parts(work, ROUND)
    # The draft of 1.236 B tied weights (16 layers, 8 heads of 64) reads 2.47 GB and 32 768 bytes a cached
    # token in each of three passes, and each is launched: 3 · (2.472 + 0.328 + 0.5) ms, and a little more for
    # activations.
    assert parts.draft_s == pytest.approx(3 * (2.4716e-3 + 0.32768e-3 + 0.5e-3), rel=0.01)
    # 1 + 1/2 + 1/4 + 1/8 tokens a step
    tokens = 1.875
    assert parts.total_s / tokens == pytest.approx((15.01 + 1.311 + 1.1 + 9.9) * 1e-3 / tokens, rel=0.01)


def test_lookup_costs_a_moment_a_step_and_sequence_and_no_pass() -> None:
    ngram = dataclasses.replace(served(), depth=4)
    parts = step_parts(step_work(ngram, dataclasses.replace(TEN, queries=2.0)), ROUND)
    assert parts.draft_s == pytest.approx(3e-4 + 10 * 2e-5)


def test_the_table_knows_every_scheme_that_is_served() -> None:
    found = table_constants(H100, [served(FP8), drafting(1)])
    assert found.bandwidth == H100.bandwidth
    assert found.compute == {"fp8": H100.flops["fp8"], "none": H100.flops["bf16"]}


amounts = st.floats(0.0, 5e4)
loads = st.builds(
    StepLoad,
    sequences=st.floats(0.0, 500.0),
    queries=st.floats(1.0, 6.0),
    context=amounts,
    prompts=st.floats(0.0, 8.0),
    prompt_tokens=amounts,
    prompt_read=amounts,
    prompt_pairs=st.floats(0.0, 1e8),
)
configs = st.sampled_from([served(), served(FP8, "fp8"), drafting(1), drafting(4), served(W4A16)])


@given(st.lists(st.tuples(configs, loads), min_size=1, max_size=6))
def test_many_steps_at_once_take_what_their_parts_add_up_to(steps: list[tuple[Served, StepLoad]]) -> None:
    works = [step_work(config, load) for config, load in steps]
    each = [step_parts(work, ROUND).total_s for work in works]
    assert WorkTable(works).seconds(ROUND) == pytest.approx(each)


@given(configs, loads)
def test_a_step_is_memory_or_compute_and_the_hidden_one_is_shorter(config: Served, load: StepLoad) -> None:
    parts = step_parts(step_work(config, load), ROUND)
    assert min(parts.memory_s, parts.compute_s) == 0
    assert parts.hidden_s <= max(parts.memory_s, parts.compute_s)


ONE = StepLoad(sequences=1, context=500, prompts=1, prompt_tokens=300, prompt_read=300, prompt_pairs=45_150)


def test_a_step_of_constant_length_settles_by_littles_law() -> None:
    # 4 requests/s, 100 tokens at 2 a step of 50 ms: 4 · 50 · 0.05 = 10 at once
    settled = settled_batch(lambda load: 0.05, ONE, rate=4, tokens=100, tokens_per_step=2, most=64)
    assert settled == pytest.approx(10)


def test_a_step_that_grows_with_its_batch_settles_higher() -> None:
    # T = 0.02 + 0.001 B: B = 4 · 50 · T = 4 + 0.2 B, so B = 5
    def step_s(load: StepLoad) -> float:
        return 0.02 + 0.001 * load.sequences

    assert settled_batch(step_s, ONE, rate=4, tokens=100, tokens_per_step=2, most=64) == pytest.approx(5)


def test_prompts_that_come_during_a_step_make_it_longer() -> None:
    # T = 0.02 + 0.1 for the step a prompt is in; 2 come a second: T = 0.02 + 0.1 · 2 T, so T = 0.025
    def step_s(load: StepLoad) -> float:
        return 0.02 + 0.1 * load.prompts

    settled = settled_batch(step_s, ONE, rate=2, tokens=100, tokens_per_step=1, most=64)
    assert settled == pytest.approx(2 * 100 * 0.025)


def test_more_than_can_be_served_fills_all_slots() -> None:
    assert settled_batch(lambda load: 1.0, ONE, rate=4, tokens=100, tokens_per_step=1, most=64) == 64
