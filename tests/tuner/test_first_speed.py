"""Where a trial's search for its capacity begins."""

import dataclasses
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.order import CapacityLoad, ClosedLoop, FixedLoad, Load
from objectives.measurement import Estimate
from tests.tuner import stories
from tuner.first_speed import begun_at, first_speed
from tuner.records import StoredTrial


def trial(speed: float | None, number: int = 1) -> StoredTrial:
    """One with its capacity at this speed; None: it has none."""
    more = {} if speed is None else {"capacity_speed": Estimate(value=speed)}
    return stories.stored(stories.measured(more=more), number)


def test_before_anything_was_measured_there_is_nothing_to_go_by() -> None:
    assert first_speed([]) is None
    assert first_speed([stories.stored(stories.failed()), trial(None)]) is None


def test_the_first_trial_after_the_control_begins_at_the_controls_capacity() -> None:
    assert first_speed([trial(2.5, 0)]) == 2.5


def test_one_hopeless_or_heroic_trial_does_not_move_the_beginning_far() -> None:
    assert first_speed([trial(2.0), trial(2.2), trial(9.0)]) == 2.2


def test_a_capacity_below_all_speeds_is_no_speed_to_begin_at() -> None:
    assert first_speed([trial(0.0), trial(0.0)]) is None
    assert first_speed([trial(0.0), trial(0.0), trial(3.0)]) == 3.0


@given(st.lists(st.none() | st.floats(0, 50), max_size=8), st.randoms())
def test_it_is_a_speed_between_those_found_whatever_their_order(
    speeds: list[float | None], random: Random
) -> None:
    found = [speed for speed in speeds if speed]
    trials = [trial(speed) for speed in speeds]
    first = first_speed(trials)
    random.shuffle(trials)
    assert first_speed(trials) == first
    assert (first is None) == (not found)
    if first is not None:
        assert min(found) <= first <= max(found)
        assert 2 * sum(speed < first for speed in found) <= len(found)
        assert 2 * sum(speed > first for speed in found) <= len(found)


def test_only_a_search_for_the_capacity_is_begun_somewhere() -> None:
    order = dataclasses.replace(stories.order(), load=CapacityLoad(resolution=0.1))
    assert begun_at(order, 2.5).load == CapacityLoad(resolution=0.1, guess=2.5)
    assert begun_at(begun_at(order, 2.5), None) == order


@pytest.mark.parametrize("load", [FixedLoad(repeats=2), ClosedLoop(concurrency=3)])
def test_other_loads_are_sent_out_as_they_are(load: Load) -> None:
    order = dataclasses.replace(stories.order(), load=load)
    assert begun_at(order, 2.5) == order
