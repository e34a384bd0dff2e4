"""What differs between a control and a config, grouped; and configs with some of it taken back."""

from collections.abc import Mapping
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.factors import Differences, Factor, differences, without
from search_spaces.load import load_space
from search_spaces.settings import Settings
from search_spaces.space import Space
from search_spaces.values import Json, Scalar

LLAMA = load_space("spaces/8b.yaml")
SMALL = load_space("spaces/smollm2-135m.yaml")

STACKED: Mapping[str, Scalar] = {
    "quantisation": "fp8",
    "kv_cache_dtype": "fp8",
    "prefix_cache": "on",
    "prefix_cache.gpu_memory_utilization": 0.88,
    "prefix_cache.kv_offloading_size": 16,
    "speculation": "ngram",
    "speculation.depth": 3,
    "speculation.prompt_lookup_max": 4,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
}


def found(
    space: Space, values: Mapping[str, Scalar], effective: Mapping[str, Json] | None = None
) -> Differences:
    config = space.settings(space.config(values))
    return differences(
        space.common, config, space.parameters, control_effective=effective or {}, config_effective={}
    )


def settings_by_factor(seen: Differences) -> dict[str, set[str]]:
    return {factor.name: {change.setting for change in factor.changes} for factor in seen.factors}


def test_settings_are_grouped_by_what_they_are_about() -> None:
    assert settings_by_factor(found(LLAMA, STACKED)) == {
        "quantisation": {"quantization"},
        "kv-dtype": {"kv_cache_dtype"},
        # The space puts the memory under the cache.
        "prefix-cache": {"enable_prefix_caching", "gpu_memory_utilization", "kv_offloading_size"},
        "speculation": {
            "speculative_config.method",
            "speculative_config.prompt_lookup_min",
            "speculative_config.prompt_lookup_max",
            "speculative_config.num_speculative_tokens",
        },
        # Two parameters, one thing.
        "batch-limits": {"max_num_seqs", "max_num_batched_tokens"},
    }


def test_another_checkpoint_is_quantisation() -> None:
    assert settings_by_factor(found(LLAMA, {**STACKED, "quantisation": "w4a16"}))["quantisation"] == {"model"}


def test_what_the_engine_does_anyway_is_no_factor() -> None:
    seen = found(
        LLAMA, STACKED, {"enable_prefix_caching": True, "max_num_seqs": 64, "kv_cache_dtype": "auto"}
    )
    assert {change.setting for change in seen.same} == {"enable_prefix_caching", "max_num_seqs"}
    assert settings_by_factor(seen)["batch-limits"] == {"max_num_batched_tokens"}


def test_a_cache_that_only_gets_other_memory_is_not_called_a_switched_cache() -> None:
    values: Mapping[str, Scalar] = {
        "quantisation": "full",
        "kv_cache_dtype": "auto",
        "prefix_cache": "on",
        "prefix_cache.kv_cache_memory_bytes": 67108864,
        "speculation": "off",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
    }
    in_effect: Mapping[str, Json] = {"enable_prefix_caching": True}
    assert settings_by_factor(found(SMALL, values, in_effect)) == {
        "kv_cache_memory_bytes": {"kv_cache_memory_bytes"},
        "batch-limits": {"max_num_seqs", "max_num_batched_tokens"},
    }


def test_the_engines_word_for_its_default_is_no_difference() -> None:
    seen = found(LLAMA, {**STACKED, "kv_cache_dtype": "auto"})
    assert "kv-dtype" not in settings_by_factor(seen)
    assert [change.setting for change in seen.same] == ["kv_cache_dtype"]


def test_one_equals_true_is_still_a_difference() -> None:
    seen = differences(
        Settings(model="m"),
        Settings(model="m", arguments={"enable_prefix_caching": True}),
        (),
        control_effective={"enable_prefix_caching": 1},
        config_effective={},
    )
    assert settings_by_factor(seen) == {"prefix-cache": {"enable_prefix_caching"}}


def test_environment_goes_by_its_own_name() -> None:
    seen = differences(
        Settings(model="m", environment={"A": "1"}),
        Settings(model="m", environment={"A": "2", "B": "3"}),
        (),
        control_effective={},
        config_effective={},
    )
    assert settings_by_factor(seen) == {"A": {"environment A"}, "B": {"environment B"}}


def _subsets(factors: tuple[Factor, ...]) -> list[tuple[Factor, ...]]:
    return list(chain.from_iterable(combinations(factors, size) for size in range(len(factors) + 1)))


@pytest.mark.parametrize("quantisation", ["bf16", "fp8", "w4a16"])
def test_all_taken_back_is_the_control_and_none_the_config(quantisation: str) -> None:
    config = LLAMA.settings(LLAMA.config({**STACKED, "quantisation": quantisation}))
    factors = found(LLAMA, {**STACKED, "quantisation": quantisation}).factors
    assert without(config, factors) == LLAMA.common
    assert without(config, ()) == config


def test_each_factor_alone_makes_its_own_difference_and_no_other() -> None:
    config = LLAMA.settings(LLAMA.config(STACKED))
    factors = found(LLAMA, STACKED).factors
    for off in _subsets(factors):
        left = without(config, off)
        again = differences(
            LLAMA.common, left, LLAMA.parameters, control_effective={}, config_effective={}
        ).factors
        assert {factor.name for factor in again} == {f.name for f in factors} - {f.name for f in off}


LEAF: st.SearchStrategy[Any] = st.one_of(
    st.booleans(), st.integers(0, 3), st.sampled_from(["a", "b"]), st.lists(st.integers(0, 2))
)
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["x", "y", "max_num_seqs", "speculative_config"]),
    st.recursive(LEAF, lambda inner: st.dictionaries(st.sampled_from("pq"), inner, min_size=1), max_leaves=4),
)


@given(ARGUMENTS, ARGUMENTS)
def test_whatever_differs_is_taken_back_exactly(control: dict[str, Json], config: dict[str, Json]) -> None:
    before, after = Settings(model="m", arguments=control), Settings(model="n", arguments=config)
    seen = differences(before, after, (), control_effective={}, config_effective={})
    assert without(after, seen.factors) == before
    assert without(after, ()) == after
