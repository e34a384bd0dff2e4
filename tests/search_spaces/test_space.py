"""Configs of a space: made, checked, drawn, counted."""

import math
import pickle

import numpy as np
import pytest

from search_spaces.load import SpaceError, parse_space
from search_spaces.parameters import Categorical, Integer, Real
from search_spaces.space import ENUMERABLE, Config, Count, Space

SPACE = parse_space(
    """
model: m
parameters:
  speculation:
    choices:
      off: {}
      ngram:
        set: {speculative_config: {method: ngram}}
        parameters: {depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}}
      draft:
        set: {speculative_config: {method: draft_model, model: d}}
        parameters: {depth: {int: [1, 2], argument: speculative_config.num_speculative_tokens}}
  max_num_seqs: {choices: [8, 16]}
constraints: [max_num_seqs * (1 + depth) <= 48]
""",
    "s.yaml",
)


def refused(space: Space, values: dict[str, int | str | float | bool | None]) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        space.config(values)
    return [str(fault) for fault in caught.value.faults]


def test_a_config_holds_what_is_active_in_tree_order() -> None:
    config = SPACE.config({"max_num_seqs": 8, "speculation.depth": 2, "speculation": "draft"})
    assert list(config.values.items()) == [
        ("speculation", "draft"),
        ("speculation.depth", 2),
        ("max_num_seqs", 8),
    ]
    assert config.get("speculation.depth") == 2
    assert SPACE.config({"speculation": "off", "max_num_seqs": 8}).get("speculation.depth", 0) == 0


def test_a_config_is_equal_and_hashed_by_its_values() -> None:
    assert Config({"a": 1, "b": 2}) == Config({"b": 2, "a": 1})
    assert len({Config({"a": 1, "b": 2}), Config({"b": 2, "a": 1})}) == 1
    assert Config({"a": 1}) != Config({"a": 2})


def test_a_config_cannot_be_written_to() -> None:
    with pytest.raises(TypeError):
        Config({"a": 1}).values["a"] = 2  # type: ignore[index]


def test_what_is_wrong_with_values_is_told_all_at_once() -> None:
    assert refused(SPACE, {"speculation": "off", "speculation.depth": 1, "max_num_sqs": 8}) == [
        "max_num_seqs: has no value",
        "speculation.depth: belongs to a choice that is not taken",
        "max_num_sqs: no such parameter; did you mean 'max_num_seqs'?",
    ]
    assert refused(SPACE, {"speculation": "ngram", "speculation.depth": 5, "max_num_seqs": "8"}) == [
        "speculation.depth: must be 1 to 4, got 5",
        "max_num_seqs: must be one of 8, 16, got '8'",
    ]


def test_a_chooser_that_answers_out_of_range_is_told() -> None:
    with pytest.raises(SpaceError, match="speculation: must be one of 'off', 'ngram', 'draft', got 1"):
        SPACE.walk(lambda parameter: 1)


def test_faults_are_sentences_of_the_space_and_of_vllm() -> None:
    config = SPACE.config({"speculation": "ngram", "speculation.depth": 3, "max_num_seqs": 16})
    assert SPACE.faults(config) == (
        "breaks 'max_num_seqs * (1 + depth) <= 48' (max_num_seqs = 16, speculation.depth = 3)",
    )
    space = parse_space(
        "model: m\nengine: {max_num_seqs: 8}\nparameters: {max_num_batched_tokens: {int: [4, 8]}}", "s"
    )
    assert space.faults(space.config({"max_num_batched_tokens": 4})) == (
        "max_num_batched_tokens (4) must be at least max_num_seqs (8)",
    )


def test_a_config_that_needs_more_gpus_than_a_trial_may_take_is_at_fault() -> None:
    space = parse_space(
        "model: m\nresources: {gpus: 4}\nparameters: {tensor_parallel_size: {choices: [2, 4, 8]}}", "s"
    )
    assert space.faults(space.config({"tensor_parallel_size": 4})) == ()
    assert space.faults(space.config({"tensor_parallel_size": 8})) == (
        "needs 8 GPUs, where resources.gpus is 4",
    )
    assert space.count() == Count(2, exact=True)


def test_the_count_by_hand() -> None:
    # off 2; ngram 4·2 less (16, depth 3) and (16, depth 4); draft 2·2.
    assert SPACE.count() == Count(12, exact=True)


def test_a_large_space_is_counted_by_sampling_and_says_so() -> None:
    # Half of the pairs have a <= b, the diagonal included: 1000·1001/2.
    space = parse_space(
        "model: m\nparameters: {a: {int: [1, 1000]}, b: {int: [1, 1000]}}\nconstraints: [a <= b]", "s"
    )
    count = space.count()
    assert not count.exact
    assert count.configs == pytest.approx(500_500, rel=0.1)


def test_the_estimate_weighs_branches_by_what_is_below_them() -> None:
    # 1 config in the first branch, 10^6 in the second, of which b > 250000 leaves three quarters.
    space = parse_space(
        "model: m\nparameters: {p: {choices: {x: {}, y: {parameters: {b: {int: [1, 1000000]}}}}}}\n"
        "constraints: [b > 250000]",
        "s",
    )
    assert space.count().configs == pytest.approx(750_001, rel=0.1)


def test_a_continuum_has_no_count() -> None:
    space = parse_space(
        "model: m\nparameters: {p: {choices: {x: {}, y: {parameters: {r: {float: [0, 1]}}}}}}", "s"
    )
    assert space.count() == Count(None, exact=True)
    assert 0 <= float(space.config({"p": "y", "p.r": 0.25}).get("p.r") or 0) <= 1


def test_a_needle_in_a_small_space_is_found_and_no_needle_is_said() -> None:
    parameters = "model: m\nparameters: {a: {int: [1, 200]}, b: {int: [1, 200]}}\n"
    assert ENUMERABLE >= 200 * 200
    needle = parse_space(parameters + "constraints: [a == 77 and b == 5]", "s")
    assert needle.sample(np.random.default_rng(0)) == Config({"a": 77, "b": 5})
    nothing = parse_space(parameters + "constraints: [a > b, b > a]", "s")
    with pytest.raises(SpaceError, match="s: no config is valid; "):
        nothing.sample(np.random.default_rng(0))


def test_a_seed_decides_the_sample() -> None:
    drawn = [[SPACE.sample(np.random.default_rng(seed)) for _ in range(5)] for seed in (1, 1)]
    assert drawn[0] == drawn[1]


def test_a_space_survives_the_wire() -> None:
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE


def test_log_draws_small_values_as_often_as_large_ones() -> None:
    rng = np.random.default_rng(0)
    parameter = Integer(path="n", key="n", low=1, high=1024, log=True)
    drawn = [parameter.draw(rng) for _ in range(4000)]
    # Half of the log range lies below 32.
    assert np.mean([value < 32 for value in drawn]) == pytest.approx(0.5, abs=0.05)
    stepped = Integer(path="n", key="n", low=1024, high=16384, step=256, log=True)
    values = [stepped.draw(rng) for _ in range(4000)]
    assert set(values) <= set(range(1024, 16385, 256))
    assert np.mean([value < 4096 for value in values]) == pytest.approx(0.5, abs=0.05)


def test_values_on_a_decimal_step_are_the_decimals_a_person_wrote() -> None:
    share = Real(path="r", key="r", low=0.8, high=0.95, step=0.05)
    assert share.values == (0.8, 0.85, 0.9, 0.95)
    assert share.check(0.8 + 0.05) == 0.85  # 0.8500000000000001 in binary
    assert share.snap(0.88) == 0.9
    with pytest.raises(ValueError, match=r"must be 0.8 to 0.95 in steps of 0.05, got 0.87"):
        share.check(0.87)


@pytest.mark.parametrize("value", [True, "1", None, 1.5, math.nan, math.inf, 0, 5])
def test_a_whole_number_takes_nothing_else(value: bool | float | str | None) -> None:
    with pytest.raises(ValueError, match="must be"):
        Integer(path="n", key="n", low=1, high=4).check(value)


@pytest.mark.parametrize("value", [True, "0.5", None, math.nan, math.inf, -0.1])
def test_a_real_number_takes_nothing_else(value: bool | float | str | None) -> None:
    for step in (None, 0.5):
        with pytest.raises(ValueError, match="must be"):
            Real(path="r", key="r", low=0, high=1, step=step).check(value)


def test_a_truth_is_not_the_number_one() -> None:
    choice = Categorical(path="c", key="c", choices=(1, 0))
    assert choice.check(1.0) == 1
    with pytest.raises(ValueError, match="must be one of 1, 0, got True"):
        choice.check(True)


def test_covering_is_short_and_sees_every_choice_and_both_ends() -> None:
    covering = SPACE.covering()
    seen = {(config.get("speculation"), config.get("speculation.depth")) for config in covering}
    assert seen >= {("off", None), ("ngram", 1), ("ngram", 4), ("draft", 1), ("draft", 2)}
    assert {config.get("max_num_seqs") for config in covering} == {8, 16}
    assert len(covering) <= 7
    assert SPACE.covering() == covering
