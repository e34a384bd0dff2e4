import dataclasses

import numpy as np
import pytest

from objectives.measurement import Estimate
from search_spaces.load import load_space, parse_space, shipped_spaces
from search_spaces.parameters import every
from search_spaces.values import Scalar
from tests.tuner import stories
from tuner.entries import NAME_LENGTH
from tuner.records import StudyFile
from tuner.titles import Titles, config_title, interval, space_of, study_title, trial_title

TWO_DTYPES = """
name: two
model: some/model
parameters:
  quantisation: {choices: {bf16: {}, fp8: {set: {quantization: fp8}}, w4a16: {model: org/w4a16}}}
  kv_cache_dtype: {choices: [auto, fp8]}
  prefix_cache:
    choices:
      off: {set: {enable_prefix_caching: false}}
      on: {parameters: {kv_cache_memory_bytes: {choices: [67108864, 1000]}}}
  speculation:
    choices:
      off: {}
      draft:
        parameters:
          depth: {int: [1, 6], argument: speculative_config.num_speculative_tokens}
          model: {choices: [org/only-draft], argument: speculative_config.model}
  max_num_seqs: {int: [16, 512]}
"""


def _study(text: str = TWO_DTYPES, engine: str = "vllm") -> StudyFile:
    return dataclasses.replace(stories.study_file(), space_text=text, engine=engine)


def test_a_value_of_two_parameters_comes_after_the_name_of_its_own() -> None:
    config: dict[str, Scalar] = {"quantisation": "fp8", "kv_cache_dtype": "fp8", "prefix_cache": "off"}
    assert config_title(config, _study()) == "quantisation fp8 · kv fp8 · prefix off"


def test_it_does_so_in_a_config_where_only_one_of_them_has_it() -> None:
    config: dict[str, Scalar] = {"quantisation": "fp8", "kv_cache_dtype": "auto"}
    assert config_title(config, _study()) == "quantisation fp8 · kv auto"


def test_a_choice_that_tells_by_itself_stands_alone_and_numbers_come_after_their_names() -> None:
    config: dict[str, Scalar] = {
        "quantisation": "w4a16",
        "prefix_cache": "on",
        "prefix_cache.kv_cache_memory_bytes": 67108864,
        "speculation": "draft",
        "speculation.depth": 3,
        "max_num_seqs": 64,
    }
    expected = "w4a16 · prefix on · kv memory 64 MiB · draft · depth 3 · seqs 64"
    assert config_title(config, _study()) == expected


def test_what_the_space_cannot_vary_is_left_out() -> None:
    config: dict[str, Scalar] = {"speculation": "draft", "speculation.model": "org/only-draft"}
    assert config_title(config, _study()) == "draft"


def test_parameters_whose_short_names_would_be_alike_keep_their_whole_ones() -> None:
    text = "name: x\nmodel: m\nparameters: {min_seqs: {int: [1, 2]}, max_seqs: {int: [1, 2]}}\n"
    titles = Titles.of(every(parse_space(text, "x").parameters))
    assert titles.config({"min_seqs": 1, "max_seqs": 2}) == "min seqs 1 · max seqs 2"


@pytest.mark.parametrize(
    ("path", "value", "title"),
    [
        ("dtype_bits", "16", "bits 16"),
        ("gpu_memory_utilization", 0.9000000001, "gpu memory 0.9"),
        ("eager", True, "eager on"),
        ("kv_offloading_size", None, "kv offloading none"),
        ("max_size", 3, "max size 3"),
        ("pool_bytes", 1000, "pool 1000 bytes"),
        ("models.draft", "org/Llama-3.2-1B/", "Llama-3.2-1B"),
    ],
)
def test_values_in_few_words(path: str, value: Scalar, title: str) -> None:
    assert Titles().config({path: value}) == title


@pytest.mark.parametrize("shipped", shipped_spaces())
def test_configs_of_a_shipped_space_have_titles_that_tell_them_apart_and_fit_a_run_name(shipped: str) -> None:
    space = load_space(shipped)
    titles = Titles.of(every(space.parameters))
    rng = np.random.default_rng(1)
    configs = {space.sample(rng) for _ in range(200)}
    told = {titles.config(config.values) for config in configs}
    assert len(told) == len(configs)
    assert max(map(len, told)) <= NAME_LENGTH - len("trial 1000 (simulated) · ")


def test_a_space_that_this_version_cannot_read_still_has_titles() -> None:
    unreadable = _study("parameters: [")
    assert space_of(unreadable) is None
    assert config_title({"quantisation": "int8", "max_num_seqs": 4}, unreadable) == "int8 · seqs 4"


def test_a_space_without_parameters_has_one_config_and_it_has_a_title() -> None:
    assert Titles().config({}) == "the only config"


def test_the_control_says_that_it_is_one_wherever_it_lies_in_the_space() -> None:
    control = dataclasses.replace(stories.stored(stories.failed(), 0), config={"scheme": "bf16"})
    assert trial_title(control, _study()) == "trial 0 · control (engine defaults)"


def test_a_repeat_says_whose_config_it_measured() -> None:
    trial = dataclasses.replace(stories.stored(stories.failed(), 9), repeats=7)
    assert trial_title(trial, stories.study_file()).startswith("trial 9 (simulated) · 7 again · ")


def test_simulated_trials_say_so_even_those_that_never_reached_the_engine() -> None:
    simulated = _study(engine="simulated")
    assert study_title(simulated) == "simulated · tea"
    assert trial_title(stories.stored(stories.failed(), 3), simulated).startswith("trial 3 (simulated) · ")
    assert study_title(_study()) == "tea"


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(value=8.5473, low=3.2781, high=14.8312), "8.55 (3.28 to 14.8)"),
        (Estimate(value=10286.4, low=7511.2), "10286 (7511 to ?)"),
        (Estimate(value=0.00042), "0.00042"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(estimate: Estimate, words: str) -> None:
    assert interval(estimate) == words
