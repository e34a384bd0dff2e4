"""Where an engine stands in a space, by what it reports."""

import pytest

from search_spaces.arguments import render
from search_spaces.load import load_space, parse_space, shipped_spaces
from search_spaces.values import Json, Scalar

SPACE = parse_space(
    """
model: org/m
engine: {kv_cache_memory_bytes: 1000}
parameters:
  quantisation: {choices: {full: {}, fp8: {set: {quantization: fp8}}, w4a16: {model: org/m-w4a16}}}
  prefix_cache:
    choices:
      off: {set: {enable_prefix_caching: false}}
      on: {set: {enable_prefix_caching: true}, parameters: {kv_cache_memory_bytes: {choices: [500, 1000]}}}
  speculation:
    choices:
      off: {}
      ngram:
        set: {speculative_config: {method: ngram}}
        parameters: {depth: {int: [1, 5], step: 2, argument: speculative_config.num_speculative_tokens}}
  max_num_seqs: {int: [4, 64]}
""",
    "s.yaml",
)
CONTROL: dict[str, Json] = {
    "quantization": None,
    "enable_prefix_caching": True,
    "kv_cache_memory_bytes": 1000,
    "speculative_config": None,
    "max_num_seqs": 32,
    "block_size": 128,
}


def located(**changed: Json) -> dict[str, Scalar] | None:
    config = SPACE.locate(CONTROL | changed)
    return None if config is None else dict(config.values)


def test_the_engines_defaults_are_found_where_they_lie() -> None:
    assert located() == {
        "quantisation": "full",
        "prefix_cache": "on",
        "prefix_cache.kv_cache_memory_bytes": 1000,
        "speculation": "off",
        "max_num_seqs": 32,
    }


def test_what_the_engine_does_not_report_is_what_every_config_asks_for() -> None:
    less = {name: value for name, value in CONTROL.items() if name != "kv_cache_memory_bytes"}
    found = SPACE.locate(less)
    assert found is not None
    assert found.get("prefix_cache.kv_cache_memory_bytes") == 1000


def test_nested_settings_may_hold_more_than_a_choice_sets() -> None:
    reported: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5}
    found = located(speculative_config=reported)
    assert found is not None
    assert (found["speculation"], found["speculation.depth"]) == ("ngram", 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_num_seqs": 128},  # out of range
        {"max_num_seqs": None},
        {"max_num_seqs": True},
        {"kv_cache_memory_bytes": 750},  # between the choices
        {"quantization": "awq"},  # no choice, and not unset either
        {"enable_prefix_caching": None},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},  # off the step
        {"speculative_config": {"method": "ngram"}},
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
        {"model": "org/other"},
    ],
)
def test_what_cannot_be_told_has_no_place(changed: dict[str, Json]) -> None:
    assert located(**changed) is None


def test_another_checkpoint_is_told_by_the_model_served() -> None:
    found = located(model="org/m-w4a16")
    assert found is not None
    assert found["quantisation"] == "w4a16"


def test_of_two_choices_in_effect_the_one_that_asks_more_is_meant() -> None:
    text = (
        "model: m\nparameters: {p: {choices: {a: {set: {x: 1}}, b: {set: {x: 1, y: 2}}, c: {set: {y: 2}}}}}"
    )
    space = parse_space(text, "s")
    assert [
        config and config.get("p") for config in map(space.locate, ({"x": 1}, {"x": 1, "y": 2}, {"y": 2}))
    ] == [
        "a",
        "b",
        "c",
    ]
    tie = parse_space("model: m\nparameters: {p: {choices: {a: {set: {x: 1}}, b: {set: {y: 2}}}}}", "s")
    assert tie.locate({"x": 1, "y": 2}) is None


def test_environment_is_taken_to_be_the_spaces_own() -> None:
    space = parse_space(
        "model: m\nenvironment: {A: 4}\nparameters: {p: {choices: [4, 8], environment: A}, "
        "q: {choices: {x: {environment: {B: 1}}, y: {}}}}",
        "s",
    )
    found = space.locate({})
    assert found is not None
    assert dict(found.values) == {"p": 4, "q": "y"}


@pytest.mark.parametrize("name", shipped_spaces())
def test_every_covering_config_of_the_shipped_spaces_is_found_again(name: str) -> None:
    space = load_space(name)
    for config in space.covering():
        rendered = render(space, config)
        assert space.locate({**rendered.arguments, "model": rendered.model}) == config
