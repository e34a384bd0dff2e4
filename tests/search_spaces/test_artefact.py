import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.artefact import artefact
from search_spaces.values import Json

NGRAM: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


def fingerprint(
    arguments: Mapping[str, Json] = MappingProxyType({}),
    *,
    model: str = "m",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    return artefact(model, arguments, environment).fingerprint


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_num_seqs": 4},
        {"max_num_batched_tokens": 512},
        {"gpu_memory_utilization": 0.8},
        {"kv_cache_memory_bytes": 1 << 30},
        {"max_model_len": 1024},
        {"kv_cache_dtype": "auto"},
        {"dtype": None},
        {"tensor_parallel_size": 1},
    ],
)
def test_batch_limits_memory_and_what_the_engine_does_anyway_make_no_other_artefact(
    arguments: dict[str, Json],
) -> None:
    assert fingerprint(arguments) == fingerprint()


@pytest.mark.parametrize(
    "arguments",
    [
        {"kv_cache_dtype": "fp8"},
        {"quantization": "fp8"},
        {"dtype": "float16"},
        {"revision": "abc"},
        {"enable_prefix_caching": True},
        {"speculative_config": NGRAM},
        {"attention_backend": "FLASHINFER"},
        {"a_setting_nobody_has_heard_of": 1},
    ],
)
def test_whatever_else_is_set_makes_another_one(arguments: dict[str, Json]) -> None:
    assert fingerprint(arguments) != fingerprint()


def test_so_do_the_checkpoint_and_variables_that_are_not_known_to_be_neutral() -> None:
    assert fingerprint(model="other") != fingerprint()
    assert fingerprint(environment={"VLLM_ATTENTION_BACKEND": "X"}) != fingerprint()
    assert fingerprint(environment={"VLLM_CPU_KVCACHE_SPACE": "4", "HF_HOME": "/x"}) == fingerprint()


def test_depth_and_lookup_of_speculation_are_one_artefact_and_method_and_draft_are_not() -> None:
    base = fingerprint({"speculative_config": NGRAM})
    assert fingerprint({"speculative_config": {**NGRAM, "num_speculative_tokens": 6}}) == base
    assert fingerprint({"speculative_config": {"method": "eagle", "model": "d"}}) != base


def test_what_must_change_no_answer_is_told_from_what_may() -> None:
    found = artefact(
        "m", {"kv_cache_dtype": "fp8", "speculative_config": NGRAM, "enable_prefix_caching": True}, {}
    )
    assert [name for name, _ in found.lossy] == ["kv_cache_dtype", "model"]
    assert [name for name, _ in found.lossless] == ["enable_prefix_caching", "speculative_config"]
    assert found.speculates
    control = artefact("m", {"enforce_eager": True}, {})
    assert found.beside(control) == artefact("m", {"kv_cache_dtype": "fp8", "enforce_eager": True}, {})


def test_a_draft_accepted_otherwise_than_by_its_probability_may_change_answers() -> None:
    found = artefact("m", {"speculative_config": {**NGRAM, "rejection_sample_method": "synthetic"}}, {})
    assert [name for name, _ in found.lossy] == ["model", "speculative_config"]
    plain = artefact("m", {"speculative_config": {**NGRAM, "rejection_sample_method": "standard"}}, {})
    assert plain == artefact("m", {"speculative_config": NGRAM}, {})


@given(
    st.dictionaries(st.sampled_from(["dtype", "quantization", "seed", "x", "y"]), st.integers() | st.text())
)
def test_the_order_of_settings_does_not_count(arguments: dict[str, Json]) -> None:
    backwards = dict(reversed(list(arguments.items())))
    assert artefact("m", arguments, {}) == artefact("m", backwards, {})
    again = json.loads(json.dumps(arguments))
    assert artefact("m", again, {}).fingerprint == artefact("m", arguments, {}).fingerprint
