"""Where a trial's search for its capacity begins."""

import dataclasses
import json
import statistics
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.order import CapacityLoad, ClosedLoop, FixedLoad, Load, Order
from objectives.measurement import Estimate
from search_spaces.values import Json
from tests.tuner import stories
from tuner.first_speed import begun_at, first_speed
from tuner.records import StoredTrial


def order(**arguments: Json) -> Order:
    return dataclasses.replace(stories.order(), arguments=arguments, load=CapacityLoad(resolution=0.1))


def trial(speed: float | None, **arguments: Json) -> StoredTrial:
    """One of a config with its capacity at this speed; None: it has none."""
    more = {} if speed is None else {"capacity_speed": Estimate(value=speed)}
    return dataclasses.replace(stories.stored(stories.measured(more=more), 1), arguments=arguments)


def test_before_anything_was_measured_there_is_nothing_to_go_by() -> None:
    assert first_speed([], order()) is None
    assert first_speed([stories.stored(stories.failed()), trial(None)], order()) is None


def test_the_first_trial_after_the_control_begins_at_the_controls_capacity() -> None:
    assert first_speed([trial(2.5)], order(max_num_seqs=64, quantization="fp8")) == 2.5


def test_a_capacity_below_all_speeds_is_no_speed_to_begin_at() -> None:
    assert first_speed([trial(0.0), trial(0.0)], order()) is None
    assert first_speed([trial(0.0), trial(0.0), trial(3.0)], order()) == 3.0


def test_one_hopeless_or_heroic_trial_does_not_move_the_beginning_far() -> None:
    assert first_speed([trial(2.0), trial(2.2), trial(9.0)], order()) == 2.2


def test_a_trial_that_made_the_same_choices_counts_for_more_than_several_that_did_not() -> None:
    others = [trial(9.0, quantization="fp8", kv_cache_dtype=kind) for kind in ("a", "b")]
    assert first_speed([*others, trial(2.0)], order()) == 2.0


@pytest.mark.parametrize(("seqs", "speed"), [(16, 1.0), (20, 1.0), (200, 6.0), (1000, 6.0)])
def test_of_two_that_differ_in_a_number_the_one_nearer_by_ratio_counts(seqs: int, speed: float) -> None:
    trials = [trial(1.0, max_num_seqs=16), trial(6.0, max_num_seqs=256)]
    assert first_speed(trials, order(max_num_seqs=seqs)) == speed


def test_a_config_that_is_measured_again_begins_at_its_own_capacity() -> None:
    speculation: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": 3}
    trials = [
        trial(1.0, quantization="fp8"),
        trial(4.0, quantization="fp8", speculative_config=speculation),
        trial(7.0, speculative_config={**speculation, "method": "eagle3"}),
    ]
    assert first_speed(trials, order(quantization="fp8", speculative_config=speculation)) == 4.0


def test_another_model_is_another_choice() -> None:
    trials = [trial(1.0), dataclasses.replace(trial(5.0), model="other/model")]
    assert first_speed(trials, dataclasses.replace(order(), model="other/model")) == 5.0


_ARGUMENTS = st.dictionaries(
    st.sampled_from(("max_num_seqs", "quantization", "enable_prefix_caching")),
    st.sampled_from((None, True, False, 0, 16, 64.0, 1024, "fp8", "int8")),
)
_TRIALS = st.lists(st.tuples(st.none() | st.floats(0, 50), _ARGUMENTS), max_size=8)


@settings(deadline=None)
@given(_TRIALS, _ARGUMENTS, st.randoms())
def test_it_is_one_of_the_speeds_found_whatever_their_order_and_wherever_they_were_read_from(
    found: list[tuple[float | None, dict[str, Json]]], wanted: dict[str, Json], random: Random
) -> None:
    trials = [trial(speed, **arguments) for speed, arguments in found]
    first = first_speed(trials, order(**wanted))
    assert first in {speed for speed, _ in found if speed} or first is None
    assert (first is None) == (not any(speed for speed, _ in found))
    read = [dataclasses.replace(one, arguments=json.loads(json.dumps(one.arguments))) for one in trials]
    random.shuffle(read)
    assert first_speed(read, order(**wanted)) == first


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=8))
def test_among_configs_equally_far_it_is_the_lower_median(speeds: list[float]) -> None:
    trials = [trial(speed, quantization="fp8") for speed in speeds]
    assert first_speed(trials, order()) == statistics.median_low(speeds)


def test_only_a_search_for_the_capacity_is_begun_somewhere() -> None:
    asked = order()
    assert begun_at(asked, [trial(2.5)]).load == CapacityLoad(resolution=0.1, guess=2.5)
    assert begun_at(begun_at(asked, [trial(2.5)]), []) == asked


@pytest.mark.parametrize("load", [FixedLoad(repeats=2), ClosedLoop(concurrency=3)])
def test_other_loads_are_sent_out_as_they_are(load: Load) -> None:
    asked = dataclasses.replace(stories.order(), load=load)
    assert begun_at(asked, [trial(2.5)]) == asked
