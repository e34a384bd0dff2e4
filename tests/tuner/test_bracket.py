"""Capacities as people read them: the number with both ends known, a bound where the search met an end."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.measurement import Estimate, LoadPoint
from tests.tuner import loads, stories
from tuner.bracket import bracket, capacity_text, estimate_text, replays, resolution_text


def test_a_capacity_between_two_speeds_has_its_interval_and_its_resolution() -> None:
    measured = loads.measured(loads.BETWEEN).measurement
    # 12 requests/s, made up with ends of 0.95 and 1.1 times that; failed at 3.15 / 3.0 of its speed
    assert capacity_text(measured) == "12 (11.4 to 13.2) requests/s"
    assert resolution_text([measured]) == "5 %"


def test_where_the_highest_speed_held_the_capacity_is_at_least_that() -> None:
    measured = loads.measured(loads.ABOVE).measurement
    assert capacity_text(measured) == "at least 96 (91.2 to ?) requests/s"
    assert estimate_text(measured, "capacity_tokens_per_s").startswith("at least 9600 ")
    assert resolution_text([measured]) is None


def test_where_the_lowest_speed_failed_the_capacity_is_below_that_and_never_said_to_be_0() -> None:
    measured = loads.measured(loads.BELOW).measurement
    assert capacity_text(measured) == "below 1.5 requests/s"
    assert estimate_text(measured, "capacity_speed") == "below speed 0.375"
    assert estimate_text(measured, "capacity_tokens_per_s") == "below speed 0.375"


def test_metrics_of_the_reference_load_take_no_bound_from_the_capacity() -> None:
    assert estimate_text(loads.measured(loads.ABOVE).measurement, "tpot_p95_s") == "40 (36 to ?)"


def test_without_a_search_for_it_there_is_no_capacity() -> None:
    assert capacity_text(stories.measured().measurement) is None
    assert capacity_text(loads.in_closed_loop().measurement) is None
    assert capacity_text(None) is None


def test_a_verdict_that_contradicts_the_capacity_does_not_move_it() -> None:
    # The node settled on speed 3.0; that 4.5 held beyond a failure is noise.
    points = (*loads.BETWEEN, loads.whole(4.5))
    found = loads.measured(points).measurement
    settled = {**found.metrics, "capacity_speed": Estimate(value=3.0), "capacity_rps": Estimate(value=12.0)}
    measured = dataclasses.replace(found, metrics=settled)
    assert capacity_text(measured) == "12 requests/s"
    assert resolution_text([measured]) == "5 %"


def test_requests_that_are_all_due_at_once_have_no_capacity_to_tell() -> None:
    found = loads.measured((loads.whole(1.5),)).measurement
    at_once = tuple(dataclasses.replace(point, offered_rps=None) for point in found.curve)
    assert capacity_text(dataclasses.replace(found, curve=at_once)) is None


def test_what_the_replays_took_is_added_up_over_trials() -> None:
    took = replays([loads.measured(loads.BETWEEN).measurement, loads.measured(loads.BELOW).measurement, None])
    # Four and two replays, of which two and one were cut; 7 + 3 and 7 s saved.
    assert took.text == "6 replays, 3 of them cut, 17 s saved"
    assert replays([loads.measured(loads.ABOVE).measurement]).text == "3 replays"


@given(st.integers(0, 12), st.integers(2, 12), st.floats(1.01, 1.5))
def test_the_bracket_is_the_step_at_which_a_falling_curve_fails(last: int, steps: int, ratio: float) -> None:
    """Over a grid of `steps` speeds, of which those below `last` held."""

    def point(k: int) -> LoadPoint:
        return loads.whole(1.5 * ratio**k, held=k < last)

    found = bracket(loads.measured([point(k) for k in range(steps)]).measurement)
    assert found is not None
    held = [k for k in range(steps) if k < last]
    assert (found.held is None) == (not held)
    assert (found.failed is None) == (len(held) == steps)
    if found.resolution is not None:
        assert found.resolution == pytest.approx(ratio - 1)


def test_a_capacity_with_one_end_bounds_what_is_made_of_it() -> None:
    found = loads.measured(loads.ABOVE).measurement
    made = {"capacity_rps_per_gpu": Estimate(value=48.0), "cost_per_million_tokens": Estimate(value=0.5)}
    measured = dataclasses.replace(found, metrics={**found.metrics, **made})
    assert estimate_text(measured, "capacity_rps_per_gpu") == "at least 48"
    assert estimate_text(measured, "cost_per_million_tokens") == "at most 0.5"
