"""When a promise is told not to hold, and how seldom that is where it does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, t

from objectives.held import SLIGHT, ratio_held, run_mean, share_held

logs = st.lists(st.floats(-1, 1), min_size=2, max_size=8)


def test_the_bound_is_students_of_a_new_run_beside_a_mean() -> None:
    # Runs 0.0, 0.1, 0.2: mean 0.1, standard deviation 0.1. A promise of 0.3, so the ratio is exp(-0.2).
    verdict = ratio_held([0.0, 0.1, 0.2], 0.3, more_is_better=True, level=0.01)
    reach = t.ppf(0.99, 2) * 0.1 * math.sqrt(4 / 3)
    assert verdict.estimate.value == pytest.approx(math.exp(-0.2))
    assert verdict.bound == pytest.approx(math.exp(-0.2 + reach))
    assert verdict.noticed == pytest.approx(math.exp(-reach) / SLIGHT)
    assert verdict.estimate.high == pytest.approx(math.exp(-0.2 + t.ppf(0.975, 2) * 0.1 * math.sqrt(4 / 3)))
    assert verdict.held


@given(logs, st.floats(-1, 1), st.floats(0.001, 0.2))
def test_more_of_a_rate_is_less_of_its_inverse(values: list[float], promised: float, level: float) -> None:
    more = ratio_held(values, promised, more_is_better=True, level=level)
    less = ratio_held([-value for value in values], -promised, more_is_better=False, level=level)
    assert more.held is less.held
    assert more.estimate.value == pytest.approx(1 / less.estimate.value)


@given(logs, st.floats(-1, 1))
def test_held_is_what_lies_on_the_right_side_of_what_would_have_been_noticed(
    values: list[float], promised: float
) -> None:
    verdict = ratio_held(values, promised, more_is_better=True, level=0.01)
    assert verdict.noticed is not None
    if abs(math.log(verdict.estimate.value / verdict.noticed)) > 1e-9:
        assert verdict.held is (verdict.estimate.value > verdict.noticed)


@pytest.mark.parametrize("runs", [2, 4, 8])
def test_a_true_promise_is_called_broken_no_oftener_than_stated(runs: int) -> None:
    level, times = 0.05, 4000
    rng = np.random.default_rng(7)
    drawn = rng.normal(0, 0.2, (times, runs + 1))
    alarms = sum(
        not ratio_held(row[:-1].tolist(), float(row[-1]), more_is_better=True, level=level).held
        for row in drawn
    )
    # As often as stated, but for what SLIGHT forgives: within four standard deviations, and not far below.
    most = binom.isf(1e-4, times, level)
    assert times * level * 0.7 < alarms <= most


def test_runs_that_agree_by_chance_are_not_believed_to_be_without_noise() -> None:
    steps = math.log(1.05)
    exact = ratio_held([0.0] * 4, steps, more_is_better=True, level=0.01)
    rounded = ratio_held([0.0] * 4, steps, more_is_better=True, level=0.01, least=steps / math.sqrt(6))
    assert not exact.held
    assert rounded.held


def test_less_than_a_percent_is_no_broken_promise() -> None:
    assert ratio_held([0.0] * 4, math.log(1.009), more_is_better=True, level=0.01).held
    assert not ratio_held([0.0] * 4, math.log(1.011), more_is_better=True, level=0.01).held


def test_one_run_is_judged_by_its_own_interval_or_not_at_all() -> None:
    # The normal's 99 % quantile is 2.326: 0.1 of it reaches over a ratio of 0.8 (0.223), and not of 0.75.
    assert ratio_held([math.log(0.8)], 0.0, more_is_better=True, level=0.01, within=0.1).held
    assert not ratio_held([math.log(0.75)], 0.0, more_is_better=True, level=0.01, within=0.1).held
    nothing = ratio_held([0.0], 0.0, more_is_better=True, level=0.01)
    assert nothing.bound is None
    assert not nothing.held


def test_a_logarithm_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="finite logarithms"):
        ratio_held([math.inf], 0.0, more_is_better=True, level=0.01)
    with pytest.raises(ValueError, match="finite logarithms"):
        ratio_held([], 0.0, more_is_better=True, level=0.01)


def test_a_share_is_broken_once_even_its_better_bound_lies_below() -> None:
    # 400 requests: 90 % of them is below 95 % by more than four standard errors of 1.1 %, 94 % is not.
    assert not share_held([0.9] * 4, 100, 0.95, level=0.01).held
    assert share_held([0.94] * 4, 100, 0.95, level=0.01).held
    assert share_held([0.95], 20, 0.95, level=0.01).held


def test_runs_that_differ_by_bursts_widen_the_bound() -> None:
    alike, bursty = [0.9] * 4, [1.0, 0.8, 1.0, 0.8]
    assert not share_held(alike, 1000, 0.95, level=0.01).held
    assert share_held(bursty, 1000, 0.95, level=0.01).held


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.sampled_from([0.9, 0.95, 0.99]))
def test_a_share_that_reached_the_limit_is_never_broken(met: list[int], wanted: float) -> None:
    shares = [count / 50 for count in met]
    verdict = share_held(shares, 50, wanted, level=0.01)
    if sum(shares) / len(shares) >= wanted:
        assert verdict.held
    assert verdict.noticed is not None
    assert verdict.noticed <= wanted


def test_a_mean_of_runs_has_students_interval_and_one_run_has_none() -> None:
    mean = run_mean([1.0, 4.0], logarithmic=True)
    assert mean.value == pytest.approx(2.0)
    # log 2 apart: standard deviation log(4) / sqrt 2, over sqrt 2, times 12.706.
    assert mean.high == pytest.approx(2 * math.exp(12.7062 * math.log(4) / 2), rel=1e-4)
    assert run_mean([3.0], logarithmic=False).high is None
