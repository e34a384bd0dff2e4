"""Read back from what two starts of vLLM 0.32 (CPU build) answered, trimmed to the parts that are read."""

from pathlib import Path

import pytest

from cluster.node.effective import differences, effective_settings
from search_spaces.values import Json

DATA = Path(__file__).with_name("data")


def read(name: str) -> dict[str, Json]:
    return effective_settings(
        (DATA / f"server_info_{name}.json").read_text(),
        (DATA / f"metrics_{name}.txt").read_text(),
        (DATA / f"log_{name}.txt").read_text(),
    )


NGRAM_ASKED: dict[str, Json] = {
    "max_model_len": 1024,
    "kv_cache_memory_bytes": 268435456,
    "dtype": "bfloat16",
    "enable_prompt_tokens_details": True,
    "enable_mfu_metrics": True,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
}
"""The command line of the first start, but for a quantisation scheme that did nothing."""

DRAFT_ASKED: dict[str, Json] = {
    "max_model_len": 1024,
    "kv_cache_memory_bytes": 268435456,
    "dtype": "bfloat16",
    "enable_prefix_caching": False,
    "kv_cache_dtype": "fp8",
    "speculative_config": {
        "method": "draft_model",
        "model": "/models/SmolLM2-135M-draft",
        "num_speculative_tokens": 2,
    },
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
}


def test_settings_have_the_arguments_own_names_and_the_engines_values() -> None:
    found = read("ngram")
    expected = {
        # 268435456 bytes / (128 tokens · 2 · 30 layers · 3 heads · 64 · 2 bytes = 2949120) = 91.02
        "kv_blocks": 91,
        "kv_tokens": 91 * 128,
        "kv_cache_bytes": 268435456,
        "block_size": 128,
        "enable_prefix_caching": True,
        "kv_cache_dtype": "auto",
        "dtype": "bfloat16",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "max_model_len": 1024,
        "tensor_parallel_size": 1,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "scheduling_policy": "fcfs",
        "kv_offloading_size": None,
        "enforce_eager": False,
        "quantization": "int8_per_channel_weight_only",
        "quantized_layers": 0,
    }
    assert {name: found[name] for name in expected} == expected
    speculation = found["speculative_config"]
    assert isinstance(speculation, dict)
    assert (speculation["method"], speculation["num_speculative_tokens"]) == ("ngram", 3)


def test_an_fp8_cache_has_more_blocks_in_the_same_memory() -> None:
    found = read("draft")
    assert found["kv_cache_dtype"] == "fp8"
    assert found["kv_cache_bytes"] == 268435456
    # Half the bytes a value, for target and draft: 268435456 / (128 · 2 · (30 + 6) · 3 · 64) = 151.7
    assert found["kv_blocks"] == 151


@pytest.mark.parametrize(("name", "asked"), [("ngram", NGRAM_ASKED), ("draft", DRAFT_ASKED)])
def test_what_was_asked_and_is_in_effect_does_not_differ(name: str, asked: dict[str, Json]) -> None:
    assert differences(asked, read(name)) == ()


def test_a_scheme_that_quantises_no_layer_is_not_in_effect() -> None:
    """This one is for experts alone (vllm/config/quantization.py), and a dense model has none."""
    (fault,) = differences({"quantization": "int8_per_channel_weight_only"}, read("ngram"))
    assert fault == (
        "asked quantization=int8_per_channel_weight_only, in effect none: "
        "this scheme found no layer of this model to quantise"
    )


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"enable_prefix_caching": True}, "asked enable_prefix_caching=true, in effect false"),
        ({"max_num_seqs": 16}, "asked max_num_seqs=16, in effect 8"),
        ({"quantization": "fp8"}, "asked quantization=fp8, in effect none"),
        ({"kv_cache_dtype": "bfloat16"}, "asked kv_cache_dtype=bfloat16, in effect fp8"),
        ({"kv_offloading_size": 16}, "asked kv_offloading_size=16, in effect none"),
        (
            {"speculative_config": {"num_speculative_tokens": 4}},
            "asked speculative_config.num_speculative_tokens=4, in effect 2",
        ),
        (
            {"speculative_config": {"method": "eagle3"}},
            "asked speculative_config.method=eagle3, in effect draft_model",
        ),
    ],
)
def test_a_difference_names_both_sides(asked: dict[str, Json], fault: str) -> None:
    assert differences(asked, read("draft")) == (fault,)


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        ({"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}),
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"dtype": "auto", "kv_cache_dtype": "auto"}, {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}),
        ({"max_num_seqs": None, "max_model_len": -1}, {"max_num_seqs": 256, "max_model_len": 8192}),
        (
            {"max_model_len": "8k", "max_num_batched_tokens": "8K"},
            {"max_model_len": 8000, "max_num_batched_tokens": 8192},
        ),
        ({"kv_cache_memory_bytes": "1.5g"}, {"kv_cache_memory_bytes": 1_500_000_000}),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.90000001}),
        ({"quantization": "awq"}, {"quantization": "awq_marlin"}),
        ({"speculative_config": {"method": "deepseek_mtp"}}, {"speculative_config": {"method": "mtp"}}),
        ({"some_new_argument": 3}, {}),
        ({"attention_backend": "flash_attn"}, {"attention_backend": "FLASH_ATTN"}),
    ],
)
def test_aliases_units_and_what_was_left_open_do_not_differ(
    asked: dict[str, Json], effective: dict[str, Json]
) -> None:
    assert differences(asked, effective) == ()


def test_true_is_not_one() -> None:
    assert differences({"enable_chunked_prefill": True}, {"enable_chunked_prefill": 1})


def test_speculation_that_is_off_differs_from_speculation_asked_for() -> None:
    asked: dict[str, Json] = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert len(differences(asked, {"speculative_config": None})) == 1
    assert differences(asked, {}) == ()  # not told


def test_without_server_info_the_metrics_still_tell_of_the_cache() -> None:
    found = effective_settings("Not Found", (DATA / "metrics_draft.txt").read_text())
    assert found["kv_blocks"] == 151
    assert found["enable_prefix_caching"] is False
    assert found["kv_cache_dtype"] == "fp8"
    assert found["kv_offloading_size"] is None
    assert "max_num_seqs" not in found
    assert "speculative_config" not in found


def test_the_pools_of_data_parallel_engines_add_up() -> None:
    row = 'vllm:cache_config_info{{engine="{}",num_gpu_blocks="100"}} 1.0\n'
    assert effective_settings("", row.format(0) + row.format(1))["kv_blocks"] == 200


def test_a_gpu_log_tells_the_backend_and_the_memory() -> None:
    log = (
        "INFO 11-30 09:00:00 [cuda.py:1] Using FLASH_ATTN attention backend out of potential backends: …\n"
        "INFO 11-30 09:00:00 [gpu_worker.py:1] Available KV cache memory: 12.50 GiB\n"
    )
    found = effective_settings("", "", log)
    assert found == {"attention_backend": "FLASH_ATTN", "kv_cache_bytes": 13421772800}  # 12.5 · 2^30
