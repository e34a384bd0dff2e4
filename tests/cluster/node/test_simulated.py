"""The simulated engine against closed forms, and its side of the contract with a trial."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.node.engine import LOG_NAME, Endpoint, Engine, EngineFailure, Replay
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.node.simulation.speculation import Acceptance, mean_length_rates
from cluster.order import Cause, Limits, Measured, Order
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.accelerators import ACCELERATORS
from search_spaces.model_shape import SHAPES
from search_spaces.roofline import decode_step_s, forward_pass, prefill_s
from search_spaces.schemes import UNQUANTISED
from search_spaces.values import Json

LLAMA = "meta-llama/Llama-3.1-8B"
H100 = ACCELERATORS["H100-80G"]
COST = forward_pass(SHAPES[LLAMA], UNQUANTISED, H100)


def request(at: float, prompt: int, output: int, ids: tuple[int, ...] = ()) -> Request:
    return Request(arrival_s=at, input_length=prompt, output_length=output, hash_ids=ids)


def order(
    *requests: Request,
    model: str = LLAMA,
    number: int = 0,
    gpus: int = 1,
    accelerator: str | None = "H100",
    environment: dict[str, str] | None = None,
    speed: float = 1.0,
    given: Mapping[str, Json] | None = None,
    **arguments: Json,
) -> Order:
    """Arguments by keyword, or as `given`."""
    return Order(
        study="simulated",
        number=number,
        model=model,
        arguments={"max_model_len": 8192, **arguments, **(given or {})},
        environment=environment or {},
        workload=Workload(trace=Trace(requests=requests), speed=speed, seed=1),
        slo=Slo(ttft_s=1.0),
        gpus=gpus,
        accelerator=accelerator,
    )


def play(given: Order, folder: Path, assumptions: Assumptions | None = None) -> Replay:
    with SimulatedEngine(assumptions or Assumptions()).serve(given, folder) as endpoint:
        return endpoint.play(given.workload, Limits())


def effective(given: Order, folder: Path) -> dict[str, Json]:
    with SimulatedEngine().serve(given, folder) as endpoint:
        return dict(endpoint.effective)


def failure(given: Order, folder: Path) -> EngineFailure:
    with pytest.raises(EngineFailure) as caught, SimulatedEngine().serve(given, folder):
        pass
    return caught.value


def test_a_lone_request_takes_its_prefill_and_then_its_decode_steps(tmp_path: Path) -> None:
    record = play(order(request(0.0, 1000, 50)), tmp_path).records[0]
    assert record.ttft_s == pytest.approx(prefill_s(COST, H100, tokens=1000))
    steps = [decode_step_s(COST, H100, sequences=1, context=1000 + i) for i in range(1, 50)]
    assert np.diff(record.chunk_s) == pytest.approx(steps)
    assert record.chunk_tokens == tuple(range(1, 51))


def test_a_long_prompt_is_prefilled_in_chunks_of_the_token_budget(tmp_path: Path) -> None:
    given = order(request(0.0, 5000, 1), max_num_batched_tokens=1024, max_num_seqs=8)
    record = play(given, tmp_path).records[0]
    assert record.ttft_s == pytest.approx(prefill_s(COST, H100, tokens=5000, budget=1024))


def test_the_batch_decodes_at_one_step_for_all_its_sequences(tmp_path: Path) -> None:
    batch, prompt, output = 32, 64, 100
    replay = play(order(*[request(0.0, prompt, output)] * batch, max_num_seqs=batch), tmp_path)
    steps = [decode_step_s(COST, H100, sequences=batch, context=prompt + i) for i in range(1, output)]
    for record in replay.records:
        assert np.diff(record.chunk_s) == pytest.approx(steps)


def test_a_saturated_batch_emits_its_width_in_tokens_a_step(tmp_path: Path) -> None:
    batch, prompt, output = 16, 16, 200
    replay = play(order(*[request(0.0, prompt, output)] * (batch * 40), max_num_seqs=batch), tmp_path)
    rate = batch * 40 * output / replay.records[-1].chunk_s[-1]
    mean_step = np.mean(
        [decode_step_s(COST, H100, sequences=batch, context=prompt + i) for i in range(output)]
    )
    # One step in 200 also prefills, which the closed form leaves out.
    assert rate == pytest.approx(batch / mean_step, rel=0.02)


def single_server(count: int, load: float, seed: int) -> tuple[list[Request], float]:
    """Poisson arrivals of equal requests for a server of one at a time, and the time one takes."""
    service = prefill_s(COST, H100, tokens=200)
    service += sum(decode_step_s(COST, H100, sequences=1, context=200 + i) for i in range(1, 20))
    gaps = np.random.default_rng(seed).exponential(service / load, count)
    arrivals = np.cumsum(gaps) - gaps[0]
    return [request(float(at), 200, 20) for at in arrivals], service


def test_one_slot_is_a_queue_with_one_server(tmp_path: Path) -> None:
    requests, service = single_server(300, load=0.9, seed=0)
    replay = play(order(*requests, max_num_seqs=1), tmp_path)
    wait, before = 0.0, 0.0
    for record in replay.records:  # Lindley: the wait is what is left of the work when a request comes
        wait = max(0.0, wait - (record.due_s - before))
        assert record.e2e_s == pytest.approx(wait + service)
        wait, before = wait + service, record.due_s


def test_waiting_for_one_slot_is_that_of_m_d_1(tmp_path: Path) -> None:
    load = 0.7
    requests, service = single_server(8_000, load=load, seed=1)
    replay = play(order(*requests, max_num_seqs=1), tmp_path)
    wait = np.mean([record.e2e_s for record in replay.records]) - service
    # Pollaczek–Khinchine for constant service: ρ s / (2 (1 - ρ))
    assert wait == pytest.approx(load * service / (2 * (1 - load)), rel=0.05)


def test_a_prefix_hit_removes_prefill_work_and_only_that(tmp_path: Path) -> None:
    ids = (1, 2, 3)
    given = order(request(0.0, 1536, 10, ids), request(10.0, 1536, 10, ids))
    first, second = play(given, tmp_path).records
    # The last token is always computed, so of 96 full blocks the last is not taken from the cache.
    assert (first.cached_tokens, second.cached_tokens) == (0, 95 * 16)
    assert second.ttft_s == pytest.approx(prefill_s(COST, H100, tokens=1536, cached=95 * 16))
    assert second.tpot_s == pytest.approx(first.tpot_s)


def test_prompts_share_what_their_leading_ids_say(tmp_path: Path) -> None:
    given = order(
        request(0.0, 1100, 1, (1, 2, 3)),
        request(1.0, 1400, 1, (1, 2, 4)),  # shares 1024 tokens
        request(2.0, 1400, 1, (9, 2, 3)),  # shares none: the ids' prefix differs
        request(3.0, 1060, 1, (1, 2, 3)),  # 1060 tokens of the first's 1100: 66 full blocks
    )
    assert [record.cached_tokens for record in play(given, tmp_path).records] == [0, 1024, 0, 1056]


@pytest.mark.parametrize(
    ("caching", "reset", "cached"), [(True, False, 496), (True, True, 0), (False, False, 0)]
)
def test_the_prefix_cache_outlives_a_replay_until_it_is_reset(
    tmp_path: Path, caching: bool, reset: bool, cached: int
) -> None:
    given = order(request(0.0, 512, 4, (1,)), enable_prefix_caching=caching)
    with SimulatedEngine().serve(given, tmp_path) as endpoint:
        endpoint.play(given.workload, Limits())
        if reset:
            endpoint.reset_caches()
        assert endpoint.play(given.workload, Limits()).records[0].cached_tokens == cached


def test_the_least_recently_used_prefix_is_evicted(tmp_path: Path) -> None:
    # 32 usable blocks of 16 tokens: room for two prompts of 256 tokens, not for three.
    def ask(at: float, block: int) -> Request:
        return request(at, 256, 1, (block,))

    given = order(
        *(ask(float(i), block) for i, block in enumerate([1, 2, 1, 3, 1, 2])),
        max_model_len=512,
        num_gpu_blocks_override=33,
    )
    # 3 evicts 2, which was used before 1.
    assert [r.cached_tokens for r in play(given, tmp_path).records] == [0, 0, 240, 0, 240, 0]


def test_a_batch_short_of_blocks_preempts_and_computes_again(tmp_path: Path) -> None:
    given = order(*[request(0.0, 100, 300)] * 4, max_model_len=512, num_gpu_blocks_override=60)
    replay = play(given, tmp_path)
    assert all(record.tokens_out == 300 for record in replay.records)
    assert (replay.samples[-1].preemptions_total or 0) >= 1


def test_speed_divides_arrival_times(tmp_path: Path) -> None:
    requests = [request(0.0, 10, 1), request(3.0, 10, 1)]
    assert [r.due_s for r in play(order(*requests, speed=2.0), tmp_path).records] == [0.0, 1.5]


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
def test_accepted_tokens_a_step_follow_the_acceptance(tmp_path: Path, method: str) -> None:
    rate, depth = 0.6, 3
    speculation: dict[str, Json] = {"method": method, "num_speculative_tokens": depth}
    if method != "ngram":
        speculation["model"] = "meta-llama/Llama-3.2-1B"
    assumed = Assumptions(acceptance={method: Acceptance(rate=rate)})
    given = order(*[request(0.0, 50, 500)] * 40, speculative_config={**speculation, "prompt_lookup_min": 2})
    replay = play(given, tmp_path, assumed)
    last = replay.samples[-1]
    assert last.drafts_total
    assert last.accepted_tokens_total is not None
    # 1 + r + r² + r³
    expected = (1 - rate ** (depth + 1)) / (1 - rate)
    assert 1 + last.accepted_tokens_total / last.drafts_total == pytest.approx(expected, rel=0.02)
    assert last.accepted_per_position_total is not None
    per_position = np.array(last.accepted_per_position_total) / last.drafts_total
    assert per_position == pytest.approx([rate, rate**2, rate**3], rel=0.05)
    chunks = sum(len(record.chunk_s) - 1 for record in replay.records)
    assert chunks == last.drafts_total


@pytest.mark.parametrize(
    "given", [{"synthetic_acceptance_rates": [0.9, 0.5]}, {"synthetic_acceptance_length": 2.4}]
)
def test_synthetic_acceptance_is_what_it_says(tmp_path: Path, given: dict[str, Json]) -> None:
    speculation: dict[str, Json] = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        **given,
    }
    replay = play(order(*[request(0.0, 50, 500)] * 40, speculative_config=speculation), tmp_path)
    last = replay.samples[-1]
    assert last.drafts_total
    assert 1 + (last.accepted_tokens_total or 0) / last.drafts_total == pytest.approx(2.4, rel=0.02)


def test_a_deeper_draft_never_accepts_less_at_the_same_step(tmp_path: Path) -> None:
    def chunks(depth: int) -> int:
        speculation: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": depth}
        replay = play(order(*[request(0.0, 50, 200)] * 5, speculative_config=speculation), tmp_path)
        return sum(len(record.chunk_s) for record in replay.records)

    counts = [chunks(depth) for depth in (1, 2, 4, 8)]
    assert counts == sorted(counts, reverse=True)


def test_speculation_pays_in_a_small_batch_and_costs_in_a_large_one(tmp_path: Path) -> None:
    def duration(batch: int, **arguments: Json) -> float:
        replay = play(order(*[request(0.0, 32, 100)] * batch, given=arguments), tmp_path)
        return max(record.chunk_s[-1] for record in replay.records)

    draft: dict[str, Json] = {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.2-1B",
        "num_speculative_tokens": 5,
    }
    assert duration(1, speculative_config=draft) < duration(1)
    assert duration(1000, speculative_config=draft) > duration(1000)


def test_what_the_engine_does_not_tell_is_unknown(tmp_path: Path) -> None:
    given = order(request(0.0, 10, 10), enable_mfu_metrics=False, enable_prompt_tokens_details=False)
    replay = play(given, tmp_path)
    last = replay.samples[-1]
    assert replay.records[0].cached_tokens is None
    assert last.drafts_total is last.draft_tokens_total is last.accepted_tokens_total is None
    assert last.accepted_per_position_total is None
    assert last.flops_total is last.read_bytes_total is last.write_bytes_total is None


def test_work_is_counted_as_the_model_has_it(tmp_path: Path) -> None:
    last = play(order(request(0.0, 1000, 100)), tmp_path).samples[-1]
    # Two FLOPs a weight outside embedding and head, for each of 1000 + 99 tokens; attention adds some
    # per cent.
    linear = 2 * (SHAPES[LLAMA].parameters - 2 * SHAPES[LLAMA].head_weights) * 1099
    assert last.flops_total is not None
    assert 1.0 < last.flops_total / linear < 1.1
    assert last.read_bytes_total is not None
    assert last.read_bytes_total == pytest.approx(100 * COST.weights_read(1), rel=0.02)


def test_samples_come_once_a_virtual_second_and_at_the_end(tmp_path: Path) -> None:
    requests = [request(0.3 * i, 500, 300) for i in range(10)]
    replay = play(order(*requests), tmp_path)
    end = max(record.chunk_s[-1] for record in replay.records)
    assert [sample.at_s for sample in replay.samples] == [*range(math.ceil(end)), end]
    for sample in replay.samples[1:-1]:
        live = [r for r in replay.records if r.due_s <= sample.at_s < r.chunk_s[-1]]
        assert sample.running is not None
        # The gauge is that of the last step, the records are of this moment.
        assert abs(sample.running - len(live)) <= 1


def test_waiting_requests_are_seen_waiting(tmp_path: Path) -> None:
    replay = play(order(*[request(0.0, 100, 400)] * 5, max_num_seqs=2), tmp_path)
    assert [(s.running, s.waiting) for s in replay.samples[1:3]] == [(2, 3), (2, 3)]


def test_run_noise_is_one_factor_on_all_times_and_differs_by_trial(tmp_path: Path) -> None:
    noisy = Assumptions(run_noise=0.05)
    plain = play(order(request(0.0, 500, 100)), tmp_path).records[0].chunk_s
    factors = []
    for number in range(30):
        times = play(order(request(0.0, 500, 100), number=number), tmp_path, noisy).records[0].chunk_s
        ratio = np.array(times) / plain
        assert ratio == pytest.approx(ratio[0])
        factors.append(ratio[0])
    assert 0.03 < np.std(np.log(factors)) < 0.08


def test_a_request_longer_than_the_model_is_refused_and_the_others_are_served(tmp_path: Path) -> None:
    replay = play(order(request(0.0, 500, 20), request(0.0, 480, 20), max_model_len=512), tmp_path)
    refused, served = replay.records
    assert refused.error == "HTTP 400: 500 prompt and 20 output tokens are more than max_model_len=512"
    assert refused.e2e_s == math.inf
    assert served.ok


def test_nothing_asked_leaves_one_idle_sample(tmp_path: Path) -> None:
    replay = play(order(), tmp_path)
    assert replay.records == ()
    assert [(s.at_s, s.running, s.target_steps_total) for s in replay.samples] == [(0.0, 0.0, 0.0)]


def test_settings_are_told_under_the_real_engines_names_with_its_defaults(tmp_path: Path) -> None:
    told = effective(order(), tmp_path)
    # vLLM 0.32 on an H100, OpenAI server
    assert told["max_num_seqs"] == 1024
    assert told["max_num_batched_tokens"] == 8192
    assert told["gpu_memory_utilization"] == 0.92
    assert told["block_size"] == 16
    assert told["enable_prefix_caching"] is True
    assert told["enable_chunked_prefill"] is True
    assert told["speculative_config"] is None
    assert told["quantization"] is None
    assert (told["dtype"], told["kv_cache_dtype"]) == ("bfloat16", "auto")
    assert told["kv_tokens"] == 16 * (int(str(told["kv_blocks"])) - 1)
    assert "not_modelled" not in told


def test_what_is_asked_for_is_in_effect(tmp_path: Path) -> None:
    asked: dict[str, Json] = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.8,
        "block_size": 32,
        "enable_prefix_caching": False,
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "max_model_len": 4096,
        "tensor_parallel_size": 2,
        "num_gpu_blocks_override": 500,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
    }
    told = effective(order(gpus=2, given=asked), tmp_path)
    speculation = told.pop("speculative_config")
    del asked["speculative_config"]
    assert told.items() >= asked.items()
    assert told["kv_blocks"] == 500
    assert speculation == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 4,
        "prompt_lookup_max": 4,
    }


def test_an_argument_without_a_meaning_here_is_named(tmp_path: Path) -> None:
    told = effective(order(kv_offloading_size=16, seed=3, async_scheduling=None), tmp_path)
    assert told["not_modelled"] == ["kv_offloading_size"]


def test_smaller_weights_and_values_leave_and_make_more_blocks(tmp_path: Path) -> None:
    draft: Json = {"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 2}
    configs: dict[str, dict[str, Json]] = {
        "plain": {},
        "fp8": {"quantization": "fp8"},
        "fp8 cache": {"kv_cache_dtype": "fp8"},
        "draft": {"speculative_config": draft},
    }
    blocks = {
        name: int(str(effective(order(given=arguments), tmp_path)["kv_blocks"]))
        for name, arguments in configs.items()
    }
    assert blocks["fp8 cache"] == pytest.approx(2 * blocks["plain"], abs=1)
    assert blocks["draft"] < blocks["plain"] < blocks["fp8"]


def test_the_cpu_takes_its_kv_space_from_the_environment(tmp_path: Path) -> None:
    told = effective(
        order(
            model="/models/SmolLM2-135M-Instruct",
            accelerator=None,
            gpus=0,
            environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
        ),
        tmp_path,
    )
    # 128 tokens · 2 · 30 layers · 3 heads · 64 · 2 bytes = 2 949 120 bytes a block
    assert (told["block_size"], told["kv_blocks"]) == (128, 2**30 // 2_949_120)
    assert (told["max_num_seqs"], told["max_num_batched_tokens"]) == (128, 2048)


def test_a_local_folder_describes_itself(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = effective(order(model=str(tmp_path), max_model_len=None), tmp_path)
    assert told["max_model_len"] == 256


def test_a_model_that_does_not_fit_says_what_it_needed_and_had(tmp_path: Path) -> None:
    failed = failure(order(model="meta-llama/Llama-3.1-70B"), tmp_path)
    assert failed.cause is Cause.OUT_OF_MEMORY
    assert "weights 131.42" in failed.reason
    assert "has 72.77 of 79.10 GiB" in failed.reason
    assert "\n" not in failed.reason


def test_a_context_longer_than_the_cache_is_out_of_memory_unless_it_may_shrink(tmp_path: Path) -> None:
    tight: dict[str, Json] = {"gpu_memory_utilization": 0.3, "max_num_seqs": 64}
    failed = failure(order(max_model_len=131072, given=tight), tmp_path)
    assert failed.cause is Cause.OUT_OF_MEMORY
    told = effective(order(max_model_len="auto", given=tight), tmp_path)
    assert told["max_model_len"] == told["kv_tokens"]


@pytest.mark.parametrize(
    ("arguments", "cause", "words"),
    [
        (
            {"max_num_seqs": 512, "max_num_batched_tokens": 256},
            Cause.INVALID_ARGUMENT,
            "at least max_num_seqs",
        ),
        ({"tensor_parallel_size": 3}, Cause.INVALID_ARGUMENT, "does not divide"),
        ({"tensor_parallel_size": 2}, Cause.INVALID_ARGUMENT, "needs 2 GPUs, the trial has 1"),
        ({"max_model_len": 200_000}, Cause.INVALID_ARGUMENT, "above the model's 131072"),
        ({"gpu_memory_utilization": 1.5}, Cause.INVALID_ARGUMENT, "at most 1"),
        ({"max_num_seqs": "many"}, Cause.INVALID_ARGUMENT, "whole number"),
        ({"quantization": "awq"}, Cause.INVALID_ARGUMENT, "not quantised"),
        (
            {"quantization": "int8_per_channel_weight_only"},
            Cause.SETTINGS_DIFFER,
            "quantises experts only",
        ),
        ({"quantization": "torchao"}, Cause.UNSUPPORTED, "no figures for quantization='torchao'"),
        ({"kv_cache_dtype": "nvfp4"}, Cause.UNSUPPORTED, "no figures for kv_cache_dtype='nvfp4'"),
        ({"pipeline_parallel_size": 2}, Cause.UNSUPPORTED, "pipeline_parallel_size=1 only"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
            Cause.INVALID_ARGUMENT,
            "without chunked prefill",
        ),
        (
            {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
            Cause.UNSUPPORTED,
            "no speculative method 'suffix'",
        ),
        (
            {"speculative_config": {"model": "HuggingFaceTB/SmolLM2-135M", "num_speculative_tokens": 3}},
            Cause.INVALID_ARGUMENT,
            "vocabulary of 49152, the target one of 128256",
        ),
        ({"speculative_config": {"method": "ngram"}}, Cause.INVALID_ARGUMENT, "num_speculative_tokens"),
        (
            {
                "tensor_parallel_size": 1,
                "speculative_config": {
                    "model": "meta-llama/Llama-3.2-1B",
                    "num_speculative_tokens": 3,
                    "draft_tensor_parallel_size": 4,
                },
            },
            Cause.INVALID_ARGUMENT,
            "draft_tensor_parallel_size",
        ),
        ({"kv_cache_memory_bytes": 80 * 2**30}, Cause.OUT_OF_MEMORY, "80.00 GiB of KV cache asked for"),
    ],
)
def test_what_vllm_refuses_is_refused_with_the_same_cause(
    tmp_path: Path, arguments: dict[str, Json], cause: Cause, words: str
) -> None:
    failed = failure(order(given=arguments), tmp_path)
    assert failed.cause is cause
    assert words in failed.reason


def test_the_cpu_refuses_fp8_weights(tmp_path: Path) -> None:
    failed = failure(
        order(model="SmolLM2-135M-Instruct", accelerator=None, gpus=0, quantization="fp8"), tmp_path
    )
    assert (failed.cause, failed.reason) == (Cause.UNSUPPORTED, "quantization='fp8' does not start on cpu")


@pytest.mark.parametrize(("model", "accelerator"), [("org/Other-9B", "H100"), (LLAMA, "TPU-V5P")])
def test_what_there_are_no_figures_for_is_said(tmp_path: Path, model: str, accelerator: str) -> None:
    failed = failure(order(model=model, accelerator=accelerator), tmp_path)
    assert failed.cause is Cause.INVALID_ARGUMENT
    assert "no " in failed.reason
    assert "known" in failed.reason or "one of" in failed.reason


def test_it_is_an_engine_like_the_real_one_and_marked_as_simulated(tmp_path: Path) -> None:
    engine: Engine = SimulatedEngine()
    given = order(gpus=2, tensor_parallel_size=2)
    with engine.serve(given, tmp_path) as endpoint:
        served: Endpoint = endpoint
        served.warm_up(given.workload)
        served.reset_caches()
        assert served.version is None
        assert served.command == ()
        assert served.hardware == "2 × H100-80G (simulated)"
    assert engine.name == "simulated"
    log = (tmp_path / LOG_NAME).read_text()
    assert log.startswith("Simulated engine: nothing below was measured.")
    assert "max_num_seqs = 1024" in log


def test_a_trial_on_it_is_measured_like_any_other(tmp_path: Path) -> None:
    requests = [request(0.05 * i, 300, 50, (i % 3,)) for i in range(60)]
    outcome = run_trial(order(*requests), SimulatedEngine(), tmp_path)
    assert isinstance(outcome, Measured)
    assert outcome.ran.engine == "simulated"
    assert outcome.measurement.requests == 60
    assert outcome.measurement.failed_requests == 0
    assert (outcome.measurement.value("prefix_hit_rate") or 0) > 0.5


TURNS = tuple(request(0.1 * n, 200 + 30 * n, 10 + 7 * n) for n in range(8))


@pytest.mark.parametrize("concurrency", [1, 3, 1000])
def test_a_closed_loop_keeps_so_many_in_flight_and_starts_the_next_as_one_ends(
    concurrency: int, tmp_path: Path
) -> None:
    given = order(*TURNS)
    requests = given.workload.trace.requests
    with SimulatedEngine().serve(given, tmp_path) as endpoint:
        records = endpoint.play_closed(given.workload, concurrency, given.limits).records
    assert [record.request for record in records] == list(range(len(requests)))
    assert all(record.ok for record in records)
    ends = sorted(record.chunk_s[-1] for record in records)
    # Turns come in order, the first ones at once, each further one with the end of some request.
    assert [record.due_s for record in records] == pytest.approx(
        [0.0] * min(concurrency, len(records)) + ends[: max(0, len(records) - concurrency)]
    )


def test_a_refused_request_gives_its_turn_away(tmp_path: Path) -> None:
    given = order(*TURNS)
    first, *rest = given.workload.trace.requests
    trace = replace(given.workload.trace, requests=(replace(first, input_length=10**6), *rest))
    with SimulatedEngine().serve(given, tmp_path) as endpoint:
        records = endpoint.play_closed(replace(given.workload, trace=trace), 1, given.limits).records
    assert not records[0].ok
    assert records[1].due_s == records[0].due_s == 0.0
    assert all(record.ok for record in records[1:])


@given(st.integers(1, 8).flatmap(lambda depth: st.tuples(st.just(depth), st.floats(1.0, depth + 1.0))))
def test_a_synthetic_length_is_accepted_with_as_little_spread_as_can_be(case: tuple[int, float]) -> None:
    depth, length = case
    rates = mean_length_rates(length, depth)
    # The mean of 1 + accepted is the sum of the chances to get so far; all but one of them are certain.
    assert 1 + sum(rates) == pytest.approx(length)
    assert len(rates) == depth
    assert sum(0 < rate < 1 for rate in rates) <= 1
    assert list(rates) == sorted(rates, reverse=True)
