import dataclasses

from search_spaces.values import Scalar
from tests.tuner import stories
from tuner.titles import config_title, trial_title


def test_telling_choices_stand_alone_and_the_rest_after_their_names() -> None:
    config: dict[str, Scalar] = {
        "quantisation": "int8",
        "prefix_cache": "off",
        "speculation": "draft",
        "speculation.depth": 3,
        "speculation.model": "org/Llama-3.2-1B",
        "gpu_memory_utilization": 0.9000000001,
        "eager": True,
        "offload": None,
    }
    assert config_title(config) == (
        "int8 · prefix_cache off · draft · depth 3 · Llama-3.2-1B · gpu_memory_utilization 0.9 · eager on · "
        "offload none"
    )


def test_numbers_that_are_choices_keep_their_names() -> None:
    assert config_title({"dtype_bits": "16"}) == "dtype_bits 16"


def test_a_space_without_parameters_has_one_config_and_it_has_a_title() -> None:
    assert config_title({}) == "no parameters"


def test_the_control_says_that_it_is_one_wherever_it_lies_in_the_space() -> None:
    control = dataclasses.replace(stories.stored(stories.measured(), 0), config={"scheme": "bf16"})
    assert trial_title(control) == "trial 0 · control (engine defaults)"
