"""What reaches the engine."""

import json

import pytest

from search_spaces.arguments import from_path, render, render_control, to_flags
from search_spaces.load import parse_space
from search_spaces.values import Json

SPACE = parse_space(
    """
model: org/m
resources: {cpus: 4}
engine:
  max_model_len: 2048
  kv_cache_memory_bytes: 1000
  compilation_config: {mode: 3, cudagraph_mode: NONE}
environment: {VLLM_A: 1, VLLM_B: keep}
parameters:
  quantisation:
    choices:
      full: {}
      w4a16: {model: org/m-w4a16, set: {compilation_config: {mode: 0}}, environment: {VLLM_A: 2}}
  pool: {choices: [null, 5], argument: kv_cache_memory_bytes}
  space: {choices: [null, 4], environment: VLLM_B}
  speculation:
    choices:
      off: {}
      draft:
        set: {speculative_config: {method: draft_model}}
        parameters:
          depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}
          schedule:
            choices:
              flat: {}
              by_batch:
                set:
                  speculative_config: {num_speculative_tokens_per_batch_size: [[1, 16, 4], [17, 64, 1]]}
  tensor_parallel_size: {choices: [1, 2]}
""",
    "s.yaml",
)


def test_the_control_has_what_all_configs_share_and_nothing_of_the_parameters() -> None:
    control = render_control(SPACE)
    assert control.model == "org/m"
    assert control.arguments == {
        "max_model_len": 2048,
        "kv_cache_memory_bytes": 1000,
        "compilation_config": {"mode": 3, "cudagraph_mode": "NONE"},
    }
    assert control.environment == {"VLLM_A": "1", "VLLM_B": "keep"}
    assert control.gpus == 1


def test_choices_merge_deep_replace_the_checkpoint_and_null_takes_away() -> None:
    config = SPACE.config(
        {
            "quantisation": "w4a16",
            "pool": None,
            "space": None,
            "speculation": "draft",
            "speculation.depth": 3,
            "speculation.schedule": "by_batch",
            "tensor_parallel_size": 2,
        }
    )
    rendered = render(SPACE, config)
    assert rendered.model == "org/m-w4a16"
    assert rendered.arguments == {
        "max_model_len": 2048,
        "compilation_config": {"mode": 0, "cudagraph_mode": "NONE"},
        "speculative_config": {
            "method": "draft_model",
            "num_speculative_tokens": 3,
            "num_speculative_tokens_per_batch_size": [[1, 16, 4], [17, 64, 1]],
        },
        "tensor_parallel_size": 2,
    }
    assert rendered.environment == {"VLLM_A": "2"}
    assert rendered.gpus == 2


def test_gpus_are_the_product_of_the_parallel_sizes_and_none_in_a_cpu_space() -> None:
    engine = "engine: {tensor_parallel_size: 2, pipeline_parallel_size: 3, data_parallel_size: 4}"
    assert render_control(parse_space(f"model: m\n{engine}", "s")).gpus == 24
    assert render_control(parse_space(f"model: m\n{engine}\nresources: {{gpus: 0}}", "s")).gpus == 0


def test_rendering_leaves_the_space_as_it_was() -> None:
    rendered = render_control(SPACE)
    rendered.arguments["max_model_len"] = 1
    rendered.environment["VLLM_A"] = "9"
    assert render_control(SPACE).arguments["max_model_len"] == 2048
    assert render_control(SPACE).environment["VLLM_A"] == "1"


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({"max_num_seqs": 64}, ("--max-num-seqs", "64")),
        ({"enable_prefix_caching": True}, ("--enable-prefix-caching",)),
        ({"enable_prefix_caching": False}, ("--no-enable-prefix-caching",)),
        ({"quantization": None}, ()),
        ({"gpu_memory_utilization": 0.9}, ("--gpu-memory-utilization", "0.9")),
        ({"cudagraph_capture_sizes": [1, 2]}, ("--cudagraph-capture-sizes", "1", "2")),
        ({"odd": [{"a": 1}]}, ("--odd", '[{"a": 1}]')),
        ({"odd": [[1, 2]]}, ("--odd", "[[1, 2]]")),
        ({"odd": []}, ("--odd", "[]")),
        ({"odd": {}}, ("--odd", "{}")),
        ({"odd": "-x"}, ("--odd=-x",)),
        ({"odd": -1}, ("--odd", "-1")),
    ],
)
def test_flags(arguments: dict[str, Json], flags: tuple[str, ...]) -> None:
    assert to_flags(arguments) == flags


def test_nested_arguments_reach_the_command_line_as_json() -> None:
    nested: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": 3, "parallel_drafting": False}
    flag, text = to_flags({"speculative_config": nested})
    assert flag == "--speculative-config"
    assert json.loads(text) == nested


def test_a_dotted_path_sets_deep_without_touching_what_it_was_given() -> None:
    before: dict[str, Json] = {"speculative_config": {"method": "ngram"}, "a": 1}
    after = from_path(before, "speculative_config.num_speculative_tokens", 3)
    assert after == {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "a": 1}
    assert before == {"speculative_config": {"method": "ngram"}, "a": 1}
    assert from_path(after, "speculative_config.method", None)["speculative_config"] == {
        "num_speculative_tokens": 3
    }
    assert from_path({"a": 1}, "a.b", 2) == {"a": {"b": 2}}
