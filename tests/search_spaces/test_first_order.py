import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.measurement import Record
from objectives.steady import steady_window
from search_spaces.accelerators import GIB, accelerator
from search_spaces.deployment import Deployment, Drafted, Misfit, Reader
from search_spaces.first_order import (
    Traffic,
    _latencies,
    capacity_speed,
    decode_batch,
    predicted,
)
from search_spaces.model_shape import ModelShape, known_shape
from search_spaces.roofline import ForwardPass
from search_spaces.schemes import Scheme, scheme_of_name
from search_spaces.settings import Settings
from search_spaces.step_costs import Costs
from search_spaces.values import Json

H100 = accelerator("H100")
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@dataclasses.dataclass(frozen=True)
class _Limits:
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.95


def _describe(model: str) -> tuple[ModelShape, Scheme]:
    return known_shape(model), scheme_of_name(model)


def _read(arguments: Mapping[str, Json], model: str = LLAMA, device: str = "H100") -> Deployment:
    reader = Reader(accelerator(device), _describe)
    return reader.read(Settings(model=model, arguments=arguments))


def _traffic(count: int, rate: float, prompt: int = 1000, output: int = 200, shared: int = 0) -> Traffic:
    return Traffic(
        arrival_s=np.arange(count) / rate,
        input_tokens=np.full(count, float(prompt)),
        output_tokens=np.full(count, float(output)),
        shared_tokens=np.full(count, float(shared)),
    )


def _bare(**changes: float) -> Deployment:
    """Costs that are easily reckoned: 10 ms a pass, 1 µs a token read, 1 ms for 100 tokens computed."""
    target = ForwardPass(
        dense_bytes=10e-3,
        expert_bytes=0.0,
        experts=1,
        experts_per_token=1,
        token_bytes=0.0,
        kv_bytes=1e-6,
        token_flops=1e-5,
        sampled_flops=0.0,
        pair_flops=0.0,
        bandwidth=1.0,
        compute=1.0,
        token_link_s=0.0,
        fixed_link_s=0.0,
    )
    return dataclasses.replace(
        Deployment(
            target=target,
            draft=None,
            depth=0,
            drafted=Drafted(rate=0.0),
            max_num_seqs=100,
            max_num_batched_tokens=4096,
            prefix_caching=False,
            kv_tokens=1e6,
        ),
        **changes,  # type: ignore[arg-type]
    )


FREE = dataclasses.replace(H100, step_s=0.0, sequence_s=0.0, draft_step_s=0.0)


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    whole = _read({"kv_cache_dtype": "auto"})
    halved = _read({"kv_cache_dtype": "fp8"})
    # 131,072 bytes a token in 16 bits (2 · 32 layers · 8 heads · 128 · 2), 65,536 in 8; blocks of 16 tokens.
    assert whole.target.kv_bytes == 131_072
    assert halved.kv_tokens == pytest.approx(2 * whole.kv_tokens, abs=32)


def test_a_pool_that_is_asked_for_holds_so_many_blocks() -> None:
    # 1 GiB / (16 tokens · 131,072 bytes) = 512 blocks = 8,192 tokens; 4,096 tokens need 257 of them.
    deployment = _read({"kv_cache_memory_bytes": GIB, "max_model_len": 4096})
    assert deployment.kv_tokens == 8192


@pytest.mark.parametrize(
    ("arguments", "model", "device", "words"),
    [
        ({"tensor_parallel_size": 1, "max_model_len": 4096}, "meta-llama/Llama-3.3-70B", "H100", "needs"),
        ({"quantization": "fp8"}, "HuggingFaceTB/SmolLM2-135M", "cpu", "does not start"),
        ({"tensor_parallel_size": 3}, LLAMA, "H100", "over 3 ranks"),
        ({"quantization": "fp8"}, f"{LLAMA}-W4A16", "H100", "already"),
        (
            {"speculative_config": {"method": "draft_model", "model": "HuggingFaceTB/SmolLM2-135M"}},
            LLAMA,
            "H100",
            "vocabulary of 49152",
        ),
    ],
)
def test_what_cannot_start_is_a_misfit(
    arguments: Mapping[str, Json], model: str, device: str, words: str
) -> None:
    with pytest.raises(Misfit, match=words):
        _read(arguments, model, device)


def test_the_decode_batch_is_the_fixed_point_of_littles_law() -> None:
    # A step of n sequences of 1,100 tokens takes 10 ms + n · 1.1 ms. At 2 requests/s of 200 tokens
    # n = 2 · 200 · (0.01 + 0.0011 n), so n = 4 / (1 − 0.44) = 7.142857.
    batch = decode_batch(_bare(), FREE, _traffic(10, 2.0), 2.0)
    assert batch == pytest.approx(4 / 0.56)


def test_a_rate_past_saturation_fills_the_slots() -> None:
    assert decode_batch(_bare(), FREE, _traffic(10, 2.0), 1e6) == 100


def test_drafts_multiply_the_tokens_of_a_step_by_their_expected_length() -> None:
    # 1 + 0.5 · (0.8 + 0.64 + 0.512) = 1.976
    assert Drafted(rate=0.8, found=0.5).tokens(3) == pytest.approx(1.976)


def test_a_lone_request_takes_its_prefill_and_a_step_a_token() -> None:
    found = predicted([_bare()], FREE, _traffic(1, 1.0, prompt=1000, output=101), _Limits())
    # Prefill: 1,000 tokens at 10 µs are 10 ms, no longer than the weights' 10 ms, after half a step of
    # waiting. The grid is 1 s / 128 wide, and the flow begins within its first step.
    assert 0.015 <= found["ttft_p50_s"][0] <= 0.015 + 1 / 128
    # A step reads the weights and some 1,050 tokens: 11.05 ms.
    assert found["tpot_p50_s"][0] == pytest.approx(0.01105, rel=0.03)
    assert found["e2e_p50_s"][0] == pytest.approx(found["ttft_p50_s"][0] + 100 * found["tpot_p50_s"][0])


def test_requests_far_apart_wait_for_nobody_however_coarse_the_grid() -> None:
    # One in 10 s for 1,000 s: a step of the grid is 8 s long, a prefill 10 ms after half a step of 10 ms.
    traffic, limits = _traffic(100, 0.1, prompt=1000, output=11), _Limits(ttft_s=0.05)
    found = predicted([_bare()], FREE, traffic, limits)
    assert found["ttft_p99_s"][0] == pytest.approx(0.015, rel=0.1)
    assert found["slo_attainment"][0] == 1.0
    # Served alone it takes 15 ms of the 50; with 100 times as many a second the server is half busy.
    assert capacity_speed([_bare()], FREE, traffic, limits, lowest=1.0, highest=100.0)[0] > 50


def test_a_prompt_of_its_own_length_is_waited_for() -> None:
    # Far apart: half a step of 10 ms, then 1,000 or 4,000 tokens at 10 µs each; what a token adds is taken at
    # the mean prompt, where the first 1,000 are hidden in the weights' 10 ms.
    traffic = _traffic(100, 0.1, output=11)
    prompts = np.where(np.arange(100) % 4 == 0, 4000.0, 1000.0)
    found = predicted([_bare()], FREE, dataclasses.replace(traffic, input_tokens=prompts), _Limits())
    assert found["ttft_p50_s"][0] == pytest.approx(0.015, rel=0.2)
    assert found["ttft_p95_s"][0] == pytest.approx(0.045, rel=0.35)
    assert found["ttft_p95_s"][0] > 1.7 * found["ttft_p50_s"][0]


def test_a_saturated_batch_gives_slots_over_the_time_of_an_answer() -> None:
    # 8 slots, 200 tokens at 10 ms + 8 · 1.1 ms = 18.8 ms: 8 / 3.76 s = 2.13 requests/s, less what prefill
    # (some 10 ms a request) and the batch's beginning and end take.
    many = predicted([_bare(max_num_seqs=8)], FREE, _traffic(400, 100.0), _Limits())
    assert many["throughput_rps"][0] == pytest.approx(2.08, rel=0.06)


def test_where_all_are_served_as_they_come_the_rate_is_that_of_arrivals_and_the_emptying_does_not_count() -> (
    None
):
    # 200 requests at 20/s within 10 s, each of a second or two: a steady state. Until the last token it takes
    # as much longer, until the last first token a tenth of a second.
    found = predicted([_bare(max_num_seqs=256)], FREE, _traffic(200, 20.0, output=50), _Limits())
    assert found["throughput_rps"][0] == pytest.approx(20.0, rel=0.02)


@pytest.mark.parametrize(("rate", "seqs"), [(20.0, 256), (40.0, 64), (100.0, 8)])
def test_rates_are_counted_as_a_replay_s_are(rate: float, seqs: int) -> None:
    """Records of the latencies that were predicted, one a request, in the measurement's own hands."""
    traffic, one = _traffic(90, rate, output=50), _bare(max_num_seqs=seqs)
    seen = _latencies(Costs([one], FREE), traffic)
    records = [
        Record(
            request=index,
            due_s=float(due),
            sent_s=float(due),
            chunk_s=(float(due + seen.ttft[index, 0]), float(due + seen.e2e[index, 0])),
            finished_s=float(due + seen.e2e[index, 0]),
        )
        for index, due in enumerate(traffic.arrival_s)
    ]
    found = predicted([one], FREE, traffic, _Limits())
    assert found["throughput_rps"][0] == pytest.approx(steady_window(records).rate(90), rel=1e-6)


def test_waiting_past_saturation_grows_with_the_backlog() -> None:
    # Arrivals at 10/s, served at about 2.1/s: the last of 400 waits about 400 / 2.1 − 40 = 150 s.
    many = predicted([_bare(max_num_seqs=8)], FREE, _traffic(400, 10.0), _Limits(ttft_s=10.0))
    assert many["ttft_p99_s"][0] == pytest.approx(150, rel=0.1)
    # TTFT passes 10 s where t · (10 / 2.1 − 1) = 10, t = 2.7 s, after 27 of 400.
    assert many["slo_attainment"][0] == pytest.approx(27 / 400, rel=0.4)


def test_prefix_hits_spare_prefill_only() -> None:
    # Prefill of 3,000 tokens takes 30 ms and holds up the batch; of 300 it hides in the weights' 10 ms.
    traffic = _traffic(200, 5.0, prompt=3000, output=20, shared=2700)
    without, cached = _bare(), _bare(prefix_caching=True)
    found = predicted([without, cached], FREE, traffic, _Limits())
    assert found["ttft_p50_s"][1] < found["ttft_p50_s"][0] - 0.015
    assert found["tpot_p50_s"][1] < found["tpot_p50_s"][0]


def test_each_config_is_predicted_alone() -> None:
    traffic = _traffic(300, 12.0)
    some = [
        _read({"max_num_seqs": seqs, "quantization": scheme})
        for seqs in (8, 64, 256)
        for scheme in (None, "fp8")
    ]
    # Some of them twice, as a space with settings that change nothing has them.
    some += [some[4], dataclasses.replace(some[1], ranks=2), some[0]]
    together = predicted(some, H100, traffic, _Limits(ttft_s=0.5, tpot_s=0.02))
    for index, one in enumerate(some):
        alone = predicted([one], H100, traffic, _Limits(ttft_s=0.5, tpot_s=0.02))
        for name, values in alone.items():
            assert values[0] == pytest.approx(together[name][index], rel=1e-12), name


@settings(max_examples=30, deadline=None)
@given(
    seqs=st.integers(1, 300),
    budget=st.integers(300, 16384),
    rate=st.floats(0.2, 60.0),
    faster=st.floats(1.1, 4.0),
    ttft=st.floats(0.05, 5.0),
)
def test_more_bandwidth_and_compute_never_harm_and_shares_are_shares(
    seqs: int, budget: int, rate: float, faster: float, ttft: float
) -> None:
    slow = _bare(max_num_seqs=seqs, max_num_batched_tokens=budget)
    quick = dataclasses.replace(
        slow, target=dataclasses.replace(slow.target, bandwidth=faster, compute=faster)
    )
    found = predicted([slow, quick], FREE, _traffic(150, rate), _Limits(ttft_s=ttft, tpot_s=0.1))
    for name in ("throughput_rps", "goodput_rps"):
        assert found[name][1] >= found[name][0] * 0.9, name
    assert found["e2e_mean_s"][1] <= found["e2e_mean_s"][0] * 1.05
    assert ((found["slo_attainment"] >= 0) & (found["slo_attainment"] <= 1)).all()
    assert (found["goodput_rps"] <= found["throughput_rps"] + 1e-12).all()
    assert all(np.isfinite(values).all() for values in found.values())
    for latency in ("ttft", "tpot", "e2e"):
        assert (found[f"{latency}_p50_s"] <= found[f"{latency}_p99_s"]).all()


def test_a_lower_rate_never_misses_more() -> None:
    traffic, limits = _traffic(300, 40.0), _Limits(ttft_s=0.5, tpot_s=0.03)
    shares = [
        predicted([_read({})], H100, traffic.at_speed(speed), limits)["slo_attainment"][0]
        for speed in (0.25, 0.5, 1.0, 2.0)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0


def test_capacity_is_the_speed_at_which_the_slo_just_holds() -> None:
    traffic, limits = _traffic(300, 40.0), _Limits(ttft_s=0.5, tpot_s=0.03)
    some = [_read({"max_num_seqs": seqs}) for seqs in (16, 64, 256)]
    found = capacity_speed(some, H100, traffic, limits, lowest=0.05, highest=4.0)
    for one, speed in zip(some, found, strict=True):

        def attained(times: float, one: Deployment = one, speed: float = float(speed)) -> float:
            played = predicted([one], H100, traffic.at_speed(speed * times), limits)
            return float(played["slo_attainment"][0])

        assert attained(0.97) >= 0.95 > attained(1.1)


def test_a_capacity_beyond_the_bounds_stops_there() -> None:
    traffic = _traffic(100, 1.0)
    some = [_bare(), _bare()]
    easy = capacity_speed(some, FREE, traffic, _Limits(), lowest=0.25, highest=2.0)
    assert easy == pytest.approx([2.0, 2.0])
    hopeless = capacity_speed(some, FREE, traffic, _Limits(tpot_s=1e-6), lowest=0.25, highest=2.0)
    assert hopeless == pytest.approx([0.125, 0.125])
