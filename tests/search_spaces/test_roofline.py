"""Bytes, FLOPs and memory against figures worked out by hand or published with the models."""

import dataclasses
import json

import numpy as np
import pytest

from search_spaces.accelerators import ACCELERATORS, GIB, accelerator
from search_spaces.model_shape import SHAPES, ModelShape, UnknownShape, known_shape
from search_spaces.roofline import (
    MemoryFit,
    decode_step_s,
    forward_pass,
    kv_bytes_per_token,
    memory_fit,
    prefill_s,
    weight_bytes,
)
from search_spaces.schemes import (
    FP8,
    UNQUANTISED,
    W4A16,
    W8A8,
    W8A16,
    Scheme,
    SchemeMismatch,
    checkpoint_scheme,
    scheme_of_name,
    served_scheme,
)
from search_spaces.values import Json

LLAMA = SHAPES["meta-llama/Llama-3.1-8B"]
MIXTRAL = SHAPES["mistralai/Mixtral-8x7B-v0.1"]
H100 = ACCELERATORS["H100-80G"]


@pytest.mark.parametrize(
    ("model", "parameters"),
    [  # as the hub counts the weights in each model's safetensors
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B", 3_212_749_824),
        ("mistralai/Mistral-7B-v0.3", 7_248_023_552),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
    ],
)
def test_a_shape_counts_the_parameters_its_checkpoint_has(model: str, parameters: int) -> None:
    assert SHAPES[model].parameters == parameters


def test_llama_3_8b_caches_128_kib_a_token() -> None:
    # 2 (K, V) · 32 layers · 8 heads · 128 · 2 bytes = 131 072
    assert kv_bytes_per_token(LLAMA) == 131_072
    assert kv_bytes_per_token(LLAMA, "fp8") == 65_536


def test_weights_by_scheme() -> None:
    assert weight_bytes(LLAMA, UNQUANTISED) == 2 * 8_030_261_248
    # embedding and head stay at 2 bytes: 2 · 128256 · 4096 weights, and 65 norms of 4096
    kept = 2 * (2 * 128_256 * 4096 + 65 * 4096)
    linear = 8_030_261_248 - kept // 2
    assert weight_bytes(LLAMA, FP8) == linear + kept
    # 4 bits, and 16 + 4 bits of scale and zero for each group of 128
    assert weight_bytes(LLAMA, W4A16) == pytest.approx(linear * (4 + 20 / 128) / 8 + kept)


def test_a_config_json_gives_the_shape_in_the_table() -> None:
    config = json.loads(
        """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}"""
    )
    assert ModelShape.from_config(config) == LLAMA


def test_experts_are_read_from_a_config_json() -> None:
    config = json.loads(
        """{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "tie_word_embeddings": false, "max_position_embeddings": 32768, "num_local_experts": 8,
        "num_experts_per_tok": 2}"""
    )
    assert ModelShape.from_config(config) == MIXTRAL


def test_what_is_missing_or_not_modelled_is_said() -> None:
    with pytest.raises(UnknownShape, match=r"model_type 'gpt2': config\.json has no hidden_size"):
        ModelShape.from_config({"model_type": "gpt2", "n_embd": 768})
    with pytest.raises(UnknownShape, match="latent"):
        ModelShape.from_config({"model_type": "deepseek_v3", "kv_lora_rank": 512})


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("org/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "meta-llama/Llama-3.1-8B"),
        ("/models/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M"),
        ("/models/SmolLM2-135M-draft", "SmolLM2-135M-draft"),
    ],
)
def test_copies_of_a_known_model_are_known_by_name(model: str, known: str) -> None:
    assert known_shape(model) is SHAPES[known]


def test_an_unknown_model_is_answered_with_what_is_known() -> None:
    with pytest.raises(UnknownShape, match=r"no dimensions for model 'org/Other-9B'.*Llama-3\.1-8B"):
        known_shape("org/Other-9B")


def test_a_decode_step_of_one_sequence_reads_all_weights_but_the_embedding_once() -> None:
    cost = forward_pass(LLAMA, UNQUANTISED, H100)
    # Without the input embedding, of which one row is read: 8 030 261 248 - 128 256 · 4096 weights
    assert cost.weights_read(1) == 2 * (8_030_261_248 - 128_256 * 4096)
    context = 1000
    seconds = cost.seconds(tokens=1, sampled=1, read=context, pairs=context)
    floor = (cost.weights_read(1) + context * 131_072) / H100.bandwidth
    assert floor < seconds < 1.001 * floor
    step = decode_step_s(cost, H100, sequences=1, context=context)
    assert step == pytest.approx(seconds + H100.step_s + H100.sequence_s)


def test_prefill_is_bound_by_two_flops_a_weight_and_token() -> None:
    cost = forward_pass(LLAMA, UNQUANTISED, H100)
    tokens = 4096
    linear = 2 * (8_030_261_248 - 2 * 128_256 * 4096) * tokens
    # Each query sees half the prompt on average; QK and AV are 2 · 4096 FLOPs a pair each, in 32 layers.
    attention = 32 * 2 * 2 * 4096 * tokens * (tokens + 1) / 2
    expected = (linear + attention) / H100.flops["bf16"]
    assert prefill_s(cost, H100, tokens=tokens) == pytest.approx(expected + H100.step_s, rel=1e-3)


def test_chunks_do_the_same_attention_and_pay_the_overhead_each() -> None:
    cost = forward_pass(LLAMA, UNQUANTISED, H100)
    whole, parts = prefill_s(cost, H100, tokens=8192), prefill_s(cost, H100, tokens=8192, budget=1024)
    assert parts - whole == pytest.approx(7 * (H100.step_s + H100.sequence_s), rel=1e-6)


def test_a_cached_prefix_saves_its_own_work_only() -> None:
    cost = forward_pass(LLAMA, UNQUANTISED, H100)
    saved = prefill_s(cost, H100, tokens=4096) - prefill_s(cost, H100, tokens=4096, cached=2048)
    assert saved == pytest.approx(prefill_s(cost, H100, tokens=2048) - H100.step_s, rel=1e-2)


def test_tensor_parallelism_splits_bytes_and_flops_and_adds_two_all_reduces_a_layer() -> None:
    one, four = forward_pass(LLAMA, W4A16, H100), forward_pass(LLAMA, W4A16, H100, tensor_parallel=4)
    assert four.weights_read(1) == pytest.approx(one.weights_read(1) / 4)
    assert four.token_flops == pytest.approx(one.token_flops / 4)
    assert four.kv_bytes == one.kv_bytes / 4
    assert one.fixed_link_s == one.token_link_s == 0
    assert four.fixed_link_s == pytest.approx(64 * H100.link_latency_s)
    # A ring moves 2 · 3/4 of 4096 values of 2 bytes through each link.
    assert four.token_link_s == pytest.approx(64 * 1.5 * 4096 * 2 / H100.link_bandwidth)


def test_kv_heads_are_copied_once_ranks_outnumber_them() -> None:
    qwen = SHAPES["Qwen/Qwen2.5-7B"]  # 4 KV heads
    by_ranks = [forward_pass(qwen, UNQUANTISED, H100, tensor_parallel=n).kv_bytes for n in (1, 2, 4, 7 * 4)]
    assert np.array(by_ranks) / by_ranks[0] == pytest.approx([1, 0.5, 0.25, 0.25])


def test_a_batch_reads_the_experts_its_tokens_choose() -> None:
    cost = forward_pass(MIXTRAL, UNQUANTISED, H100)
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    # One token reads 2 of 8; two tokens miss an expert with (6/8)² each.
    assert cost.weights_read(1) - cost.dense_bytes == pytest.approx(experts * 2 / 8)
    assert cost.weights_read(2) - cost.dense_bytes == pytest.approx(experts * (1 - 36 / 64))
    assert cost.weights_read(1000) - cost.dense_bytes == pytest.approx(experts)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1"])
@pytest.mark.parametrize("queries", [1, 4])
def test_many_decode_steps_at_once_are_each_what_one_alone_is(name: str, queries: int) -> None:
    cost = forward_pass(SHAPES[name], FP8, H100, kv_dtype="fp8", tensor_parallel=2)
    contexts = np.array([10.0, 5_000.0, 2_000_000.0])
    alone = [
        cost.seconds(tokens=16 * queries, sampled=16 * queries, read=context, pairs=context * queries)
        for context in contexts
    ]
    assert cost.decode_seconds(16, queries, contexts) == pytest.approx(alone)


def test_quantisation_speeds_up_decode_by_its_bytes_and_prefill_by_its_multiplications() -> None:
    def times(device: str, scheme_name: str) -> tuple[float, float]:
        scheme = {"none": UNQUANTISED, "fp8": FP8, "w4a16": W4A16}[scheme_name]
        cost = forward_pass(LLAMA, scheme, ACCELERATORS[device])
        decode = cost.seconds(tokens=1, sampled=1, read=0, pairs=0)
        return decode, cost.seconds(tokens=8192, sampled=1, read=8192, pairs=0)

    decode, prefill = np.array(times("H100-80G", "fp8")) / times("H100-80G", "none")
    assert 0.5 < decode < 0.6
    assert prefill == pytest.approx(989 / 1979, rel=1e-3)
    decode, prefill = np.array(times("H100-80G", "w4a16")) / times("H100-80G", "none")
    assert 0.26 < decode < 0.36
    assert prefill == pytest.approx(1 / 0.85)
    # An A100 has no fp8 arithmetic: the weights are unpacked on the way.
    assert (np.array(times("A100-80G", "fp8")) / times("A100-80G", "none"))[1] == pytest.approx(1 / 0.85)


def fit_of(
    *,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    draft_weights: float = 0.0,
    eager: bool = False,
) -> MemoryFit:
    return memory_fit(
        LLAMA,
        UNQUANTISED,
        H100,
        utilisation=0.92,
        max_model_len=8192,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=16,
        draft_weights=draft_weights,
        eager=eager,
    )


def test_memory_adds_up_to_what_is_allowed() -> None:
    fit = fit_of()
    assert fit.fits
    assert fit.weights == 2 * 8_030_261_248
    assert fit.block == 16 * 131_072
    assert fit.weights + fit.activations + fit.graphs + fit.rest + fit.kv == pytest.approx(0.92 * H100.memory)
    assert fit.blocks == int(fit.kv / (16 * 131_072))
    assert fit.least_blocks == 8192 // 16 + 1


@pytest.mark.parametrize(
    "wider",
    [
        fit_of(max_num_seqs=1024),
        fit_of(max_num_batched_tokens=16384),
        fit_of(draft_weights=2.0 * GIB),
    ],
)
def test_wider_limits_leave_less_for_the_cache(wider: MemoryFit) -> None:
    assert wider.kv < fit_of().kv


def test_graphs_take_memory_unless_eager_or_on_a_cpu() -> None:
    assert fit_of(eager=True).graphs == 0
    assert fit_of().graphs > 0


def test_70b_in_bf16_needs_more_than_one_gpu_and_says_how_much() -> None:
    def fit(tensor_parallel: int) -> MemoryFit:
        return memory_fit(
            SHAPES["meta-llama/Llama-3.1-70B"],
            UNQUANTISED,
            H100,
            utilisation=0.92,
            max_model_len=8192,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            block_size=16,
            tensor_parallel=tensor_parallel,
        )

    assert not fit(1).fits
    assert fit(1).blocks == 0
    # 70 553 706 496 · 2 bytes = 131.42 GiB; 513 blocks · 16 · 80 · 2 · 8 · 128 · 2 bytes = 2.50 GiB
    assert "weights 131.42, KV for one longest sequence 2.50" in fit(1).shortfall
    assert "has 72.77 of 79.10 GiB" in fit(1).shortfall
    assert fit(4).fits


def test_accelerators_go_by_rays_names_too() -> None:
    assert accelerator("H100") is accelerator("h100-80g") is ACCELERATORS["H100-80G"]
    assert accelerator("A100-80G").name == "A100-80G"
    with pytest.raises(ValueError, match=r"no figures for accelerator 'TPU-V5P'; known: H100-80G"):
        accelerator("TPU-V5P")


def test_calibrated_constants_replace_the_rough_ones() -> None:
    slower = dataclasses.replace(H100, bandwidth=H100.bandwidth / 2)
    times = [
        forward_pass(LLAMA, UNQUANTISED, device).seconds(tokens=1, sampled=1, read=0, pairs=0)
        for device in (H100, slower)
    ]
    assert times[1] == pytest.approx(2 * times[0])


@pytest.mark.parametrize(
    ("quantisation", "scheme"),
    [
        (None, UNQUANTISED),
        ({"quant_method": "fp8"}, FP8),
        ({"quant_method": "awq", "bits": 4}, W4A16),
        ({"quant_method": "gptq", "bits": 8}, W8A16),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int"}, "input_activations": None}
                },
            },
            W4A16,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int"},
                        "input_activations": {"num_bits": 8},
                    }
                },
            },
            W8A8,
        ),
    ],
)
def test_a_checkpoint_says_how_it_is_quantised(quantisation: Json, scheme: Scheme) -> None:
    assert checkpoint_scheme({"quantization_config": quantisation}) is scheme


def test_argument_and_checkpoint_must_agree() -> None:
    assert served_scheme("fp8", UNQUANTISED) is FP8
    assert served_scheme("awq_marlin", W4A16) is W4A16
    assert served_scheme(None, W8A8) is W8A8
    with pytest.raises(SchemeMismatch, match="already w4a16"):
        served_scheme("fp8", W4A16)
    with pytest.raises(SchemeMismatch, match="not quantised"):
        served_scheme("awq", UNQUANTISED)
    with pytest.raises(KeyError):
        served_scheme("torchao", UNQUANTISED)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("org/Llama-3.1-8B-Instruct-W4A16", W4A16),
        ("org/Llama-3.1-8B-Instruct-AWQ", W4A16),
        ("org/Llama-3.1-8B-Instruct-FP8", FP8),
        ("org/Llama-3.1-8B-Instruct-quantized.w8a8", W8A8),
        ("meta-llama/Llama-3.1-8B-Instruct", UNQUANTISED),
    ],
)
def test_a_hub_id_hints_at_its_scheme(name: str, scheme: Scheme) -> None:
    assert scheme_of_name(name) is scheme
