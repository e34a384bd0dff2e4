"""When a capacity is certain to be no better than the front's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.bar import Bar, best_loss, highest, is_capacity, known_before, worst_loss
from objectives.front import possibly_on_front
from objectives.goal import Goal, objective
from objectives.measurement import Estimate, Measurement


def measurement(**metrics: Estimate) -> Measurement:
    return Measurement(metrics=metrics, requests=100, failed_requests=0, duration_s=10.0)


def tpot(value: float, low: float | None, high: float | None) -> Measurement:
    return measurement(tpot_p95_s=Estimate(value=value, low=low, high=high))


def test_the_ends_of_what_is_maximised_are_turned_with_its_sign() -> None:
    seen = measurement(goodput_rps=Estimate(value=5.0, low=4.0, high=6.0))
    assert worst_loss(objective("goodput"), seen) == -4.0
    assert best_loss(objective("goodput"), seen) == -6.0
    assert worst_loss(objective("tpot_p95"), tpot(3.0, 2.0, 4.0)) == 4.0
    assert best_loss(objective("tpot_p95"), tpot(3.0, 2.0, 4.0)) == 2.0


@pytest.mark.parametrize("seen", [tpot(3.0, None, None), measurement()])
def test_an_end_that_is_not_known_bounds_nothing(seen: Measurement) -> None:
    assert worst_loss(objective("tpot_p95"), seen) is None
    assert highest([Bar(trial=1, speed=9.0, losses={"tpot_p95": 0.1})], seen) is None


def test_a_bar_counts_only_where_it_is_nowhere_worse_than_the_best_that_was_seen() -> None:
    slow, quick = (
        Bar(trial=1, speed=9.0, losses={"tpot_p95": 0.05}),
        Bar(trial=2, speed=4.0, losses={"tpot_p95": 0.02}),
    )
    assert highest([slow, quick], tpot(0.06, 0.05, 0.07)) == slow
    assert highest([slow, quick], tpot(0.05, 0.04, 0.06)) == quick
    assert highest([slow, quick], tpot(0.02, 0.01, 0.03)) is None


def test_with_the_capacity_alone_the_front_s_best_is_the_bar() -> None:
    assert highest([Bar(trial=1, speed=2.0), Bar(trial=2, speed=3.0)], measurement()) == Bar(
        trial=2, speed=3.0
    )


@pytest.mark.parametrize(
    ("name", "capacity", "before"),
    [
        ("capacity", True, False),
        ("capacity_tokens_per_gpu", True, False),
        ("tpot_p95", False, True),
        ("e2e_mean", False, True),
        ("goodput", False, True),
        ("slo_attainment", False, True),
        ("cost_per_million_tokens", False, False),
        ("tokens_per_joule", False, False),
        ("nll_increase", False, False),
        ("goodput_per_gpu", False, False),
    ],
)
def test_what_is_known_before_a_capacity_is(name: str, capacity: bool, before: bool) -> None:
    assert (is_capacity(objective(name)), known_before(objective(name))) == (capacity, before)


@st.composite
def _estimates(draw: st.DrawFn) -> Estimate:
    low, value, high = sorted(draw(st.lists(st.integers(1, 8), min_size=3, max_size=3)))
    return Estimate(
        value=float(value),
        low=draw(st.sampled_from((float(low), None))),
        high=draw(st.sampled_from((float(high), None))),
    )


_GOAL = Goal.of(("capacity", "tpot_p95"))


@settings(deadline=None)
@given(
    st.lists(st.tuples(_estimates(), _estimates()), min_size=1, max_size=6), _estimates(), st.integers(1, 8)
)
def test_what_stays_below_a_bar_is_certain_not_to_be_on_the_front(
    others: list[tuple[Estimate, Estimate]], own: Estimate, broke_at: int
) -> None:
    front = [measurement(capacity_rps=speed, tpot_p95_s=took) for speed, took in others]
    ends = [
        (number, speed.low, worst_loss(objective("tpot_p95"), seen))
        for number, ((speed, _), seen) in enumerate(zip(others, front, strict=True))
    ]
    bars = [
        Bar(trial=number, speed=speed, losses={"tpot_p95": loss})
        for number, speed, loss in ends
        if speed is not None and loss is not None
    ]
    bar = highest(bars, measurement(tpot_p95_s=own))
    if bar is None or broke_at > bar.speed:
        return
    # Whatever the capacity is below the speed at which the SLO broke:
    for value in np.linspace(0.0, math.nextafter(broke_at, 0.0), 5).tolist():
        trial = measurement(capacity_rps=Estimate(value=value, low=0.0, high=value), tpot_p95_s=own)
        rows = [_GOAL.loss_estimates(seen) for seen in (*front, trial)]
        assert not possibly_on_front(rows)[-1]
