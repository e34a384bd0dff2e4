"""Which nodes are used and which trials are believed, by the controls."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.order import Cause
from objectives.goal import Goal
from objectives.measurement import Estimate, Measurement
from tests.tuner import stories
from tuner.node_controls import (
    EVERY,
    FLOOR,
    WORTH,
    NodeState,
    control_is_due,
    doubtful,
    is_off,
    is_worth,
    owed_elsewhere,
    standings,
)
from tuner.records import StoredTrial

GOAL = Goal.of(["goodput"])


def trial(number: int, node: str, goodput: float | None = 9.0, repeats: int | None = None) -> StoredTrial:
    """Goodput ± 1 %, failed where None; a minute after the one before. Repeats of 0 are the control."""
    outcome = stories.failed(Cause.DIED_AT_START) if goodput is None else stories.measured()
    made = stories.stored(replace(outcome, ran=replace(outcome.ran, node=node)), number)
    value = 0.0 if goodput is None else goodput
    metrics = {"goodput_rps": Estimate(value=value, low=value * 0.99, high=value * 1.01)}
    measured = Measurement(metrics=metrics, requests=2, failed_requests=0, duration_s=1.0)
    return replace(
        made,
        repeats=repeats,
        is_control=number == 0 or repeats == 0,
        measurement=None if goodput is None else measured,
        started=stories.MORNING + timedelta(minutes=number),
    )


def test_one_node_is_never_told_apart_whatever_its_controls_say() -> None:
    trials = [trial(0, "a"), trial(1, "a"), trial(2, "a", 1.0, 0), trial(3, "a", 1.0, 0)]
    assert {name: one.state for name, one in standings(trials, GOAL).items()} == {"a": NodeState.GOOD}
    assert doubtful(trials, GOAL) == frozenset()


def test_a_node_is_good_once_its_control_is_like_those_of_the_others() -> None:
    trials = [trial(0, "a", 9.0), trial(1, "b", 9.1, 0)]
    assert {name: one.state for name, one in standings(trials, GOAL).items()} == {
        "a": NodeState.GOOD,
        "b": NodeState.GOOD,
    }


def test_a_control_out_of_its_noise_is_measured_once_more_and_may_have_been_chance() -> None:
    trials = [trial(0, "a"), trial(1, "b", 9.0, 0), trial(2, "b"), trial(3, "b", 5.0, 0)]
    seen = standings(trials, GOAL)["b"]
    assert seen.state is NodeState.SUSPECT
    assert seen.reason == "its control (trial 3) shows 0.56 times the goodput that is expected"
    assert control_is_due(seen, at_once=1)
    assert doubtful(trials, GOAL) == frozenset()
    again = standings([*trials, trial(4, "b", 9.0, 0)], GOAL)["b"]
    assert (again.state, again.since, again.reason) == (NodeState.GOOD, 0, None)


def test_twice_out_of_its_noise_sets_the_node_aside_with_what_it_measured_since_its_last_good_control() -> (
    None
):
    trials = [
        *(trial(0, "a"), trial(1, "b", 9.0, 0), trial(2, "b"), trial(3, "b", 9.05, 0)),
        *(trial(4, "b"), trial(5, "a"), trial(6, "b", None), trial(7, "b", 5.0, 0), trial(8, "b", 5.1, 0)),
        trial(9, "b"),
    ]
    seen = standings(trials, GOAL)
    assert (seen["a"].state, seen["b"].state) == (NodeState.GOOD, NodeState.ASIDE)
    # Trial 2 came before a good control; 6 failed there, which a drifted node may be at fault for as well.
    # 7 and 8 are no controls to compare with.
    assert doubtful(trials, GOAL) == {4, 6, 7, 8, 9}


def test_a_new_node_that_is_not_like_the_others_is_set_aside_before_it_measures_anything() -> None:
    trials = [trial(0, "a"), trial(1, "a"), trial(2, "slow", 6.0, 0), trial(3, "slow", 6.0, 0)]
    assert standings(trials, GOAL)["slow"].state is NodeState.ASIDE
    assert doubtful(trials, GOAL) == {2, 3}


def test_a_node_where_the_control_fails_twice_is_set_aside() -> None:
    trials = [trial(0, "a"), trial(1, "b", None, 0), trial(2, "b", None, 0)]
    seen = standings(trials, GOAL)["b"]
    assert seen.state is NodeState.ASIDE
    assert seen.reason is not None
    assert "failed, died at start" in seen.reason


def test_a_node_is_held_against_its_own_controls_once_it_has_good_ones() -> None:
    # Each step is within the floor of the one before on its own node, and the last is not of node a's.
    trials = [trial(0, "a", 9.0), trial(1, "b", 9.4, 0), trial(2, "b", 9.8, 0)]
    assert standings(trials, GOAL)["b"].state is NodeState.GOOD
    assert standings([*trials[:1], trial(2, "b", 9.8, 0)], GOAL)["b"].state is NodeState.SUSPECT


def test_where_the_first_control_has_no_number_nothing_is_told_apart() -> None:
    trials = [trial(0, "a", None), trial(1, "b"), trial(2, "a")]
    assert {one.state for one in standings(trials, GOAL).values()} == {NodeState.GOOD}


def test_a_lost_trial_does_not_count_as_one_that_the_node_measured() -> None:
    lost = replace(trial(2, "b", None), cause=Cause.LOST_NODE)
    trials = [trial(0, "a"), trial(1, "b", 9.0, 0), lost, trial(3, "b")]
    assert standings(trials, GOAL)["b"].since == 1


def test_a_new_node_and_one_that_has_measured_its_share_are_due() -> None:
    assert control_is_due(None, at_once=1)
    trials = [trial(0, "a"), trial(1, "b", 9.0, 0), *(trial(2 + i, "b") for i in range(EVERY))]
    seen = standings(trials, GOAL)["b"]
    assert seen.since == EVERY
    assert control_is_due(seen, at_once=1)
    assert not control_is_due(seen, at_once=2)
    assert not control_is_due(standings(trials[:-1], GOAL)["b"], at_once=1)


def test_what_a_drifted_node_measured_is_owed_once_elsewhere() -> None:
    trials = {
        one.number: one
        for one in (trial(0, "a"), trial(1, "a"), trial(2, "b"), trial(3, "b"), trial(4, "b", 9.0, 1))
    }
    doubted = frozenset({2, 3, 4})
    # 4 measured again what trial 1 stands for, so nobody lacks it.
    assert owed_elsewhere(trials, doubted, ()) == (2, 3)
    assert owed_elsewhere(trials, doubted, (2,)) == (3,)
    again = trials | {5: trial(5, "c", 9.0, 2)}
    assert owed_elsewhere(again, doubted, ()) == (3,)
    # Measured again on a node that drifted too: that one is owed now, and not its first.
    assert owed_elsewhere(again, doubted | {5}, ()) == (3, 5)


def test_a_node_is_worth_a_control_where_trials_are_left_for_all() -> None:
    used = 1
    left = 39
    while is_worth(left, used):
        used, left = used + 1, left - 1
    assert used == 13
    assert left >= WORTH * used
    assert not is_worth(3, 1)
    assert is_worth(5, 1)


def _estimate(value: float, reach: float) -> Estimate:
    return Estimate(value=value, low=value - reach, high=value + reach)


def test_noise_is_the_root_of_the_squared_reaches() -> None:
    # 10 ± 3 beside 15 ± 4: five apart, and √(9 + 16) is five.
    assert not is_off(_estimate(15.0, 4.0), [_estimate(10.0, 3.0)], [])
    assert is_off(_estimate(15.1, 4.0), [_estimate(10.0, 3.0)], [])


def test_what_differs_from_run_to_run_widens_it_by_students_quantile() -> None:
    group = [_estimate(value, 0.0) for value in (9.0, 10.0, 11.0)]
    # s = 1 with two degrees of freedom: 4.303 √(1 + 1/3) = 4.968.
    assert not is_off(_estimate(14.96, 0.0), group, [group])
    assert is_off(_estimate(14.98, 0.0), group, [group])


def test_an_interval_that_is_not_known_claims_no_drift() -> None:
    assert not is_off(Estimate(value=1.0), [_estimate(10.0, 0.1)], [])


def test_an_infinite_latency_is_off_where_the_others_are_finite_and_only_there() -> None:
    forever = Estimate(value=float("inf"))
    assert is_off(forever, [_estimate(1.0, 0.1)], [])
    assert is_off(_estimate(1.0, 0.1), [forever], [])
    assert not is_off(forever, [forever], [])


@given(st.floats(-1e6, 1e6).filter(lambda value: abs(value) > 1e-3), st.floats(-0.9, 0.9))
def test_within_the_floor_nothing_is_off(value: float, share: float) -> None:
    assert not is_off(_estimate(value * (1 + FLOOR * share), 0.0), [_estimate(value, 0.0)], [])


@pytest.mark.parametrize("sd", [0.01, 0.05])
def test_nodes_that_are_alike_are_rarely_set_aside(sd: float) -> None:
    """Controls of two equal nodes, again and again: within a few per cent none is lost to chance."""
    rng = np.random.default_rng(5)
    aside = 0
    for _ in range(200):
        controls = []
        for number in range(8):
            value = 9.0 * float(np.exp(rng.normal(0, sd)))
            controls.append(replace(trial(number, "ab"[number % 2], value, 0 if number else None)))
        wide = [_with_reach(one, 1.96 * sd) for one in controls]
        aside += any(one.state is NodeState.ASIDE for one in standings(wide, GOAL).values())
    assert aside <= 10


def _with_reach(one: StoredTrial, share: float) -> StoredTrial:
    assert one.measurement is not None
    value = one.measurement.metrics["goodput_rps"].value
    metrics = {"goodput_rps": _estimate(value, value * share)}
    return replace(one, measurement=replace(one.measurement, metrics=metrics))
