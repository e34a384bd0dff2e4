import dataclasses

import pytest

from tests.tuner import loads, stories
from tuner.curve import curve, series


def test_the_steps_of_a_series_are_thousandths_of_a_request_a_second() -> None:
    found = series(loads.measured(loads.BETWEEN).measurement)
    # 6, 12, 12.6 and 24 requests/s; TTFT p95 is made up as 10 ms for each
    assert found["curve/held"] == ((6000, 1.0), (12000, 1.0), (12600, 0.0), (24000, 0.0))
    steps, values = zip(*found["curve/ttft_p95_ms"], strict=True)
    assert steps == (6000, 12000)
    assert values == pytest.approx((60.0, 120.0))
    assert [value for _, value in found["curve/goodput_rps"]] == pytest.approx([5.4, 10.8])


def test_a_cut_replay_has_a_verdict_and_no_other_number() -> None:
    found = series(loads.measured(loads.BETWEEN).measurement)
    assert {name for name, pairs in found.items() if any(step > 12000 for step, _ in pairs)} == {"curve/held"}


def test_one_rate_is_no_curve() -> None:
    once = loads.measured((loads.whole(1.5), loads.whole(1.5))).measurement
    assert series(once) == {}
    assert series(stories.measured().measurement) == {}
    assert series(None) == {}


def test_replays_without_a_rate_have_no_place_on_a_curve() -> None:
    found = loads.measured(loads.BETWEEN).measurement
    at_once = tuple(dataclasses.replace(point, offered_rps=None) for point in found.curve)
    assert curve(dataclasses.replace(found, curve=at_once)) == ()


def test_a_cut_replays_attainment_is_bounded_by_the_misses_that_decided_it() -> None:
    *_, last = curve(loads.measured(loads.BETWEEN).measurement)
    assert last.most_met == pytest.approx(0.94)  # 6 of 100 had missed it by then
