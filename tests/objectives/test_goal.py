import pickle
from dataclasses import replace

import pytest

from objectives.goal import OBJECTIVES, Goal, GoalError, MissingObjective, objective, violations
from objectives.measurement import Estimate, Measurement, Mode
from objectives.metrics import METRICS
from objectives.slo import Slo
from tests.objectives.replays import measurement


def test_goodput_goes_up_and_tpot_goes_down() -> None:
    assert objective("goodput").direction == "maximise"
    assert objective("tpot_p95").direction == "minimise"
    assert objective("tpot_p95").metric == "tpot_p95_s"


def test_capacity_goes_up_in_requests_and_in_tokens() -> None:
    goal = Goal.of(["capacity", "capacity_tokens"])
    measured = measurement(
        capacity_rps=Estimate(value=3, low=2, high=None), capacity_tokens_per_s=Estimate(value=120)
    )
    assert goal.losses(measured) == (-3, -120)
    assert goal.loss_estimates(measured)[0] == Estimate(value=-3, low=None, high=-2)


def test_every_objective_goes_the_way_its_metric_is_better() -> None:
    for found in OBJECTIVES.values():
        assert METRICS[found.metric].direction == (1 if found.direction == "maximise" else -1)


def test_losses_minimise_and_turn_back_into_values() -> None:
    goal = Goal.of(["goodput", "tpot_p95"])
    losses = goal.losses(measurement(goodput_rps=4.5, tpot_p95_s=0.03))
    assert losses == (-4.5, 0.03)
    assert goal.values(losses) == (4.5, 0.03)


def test_the_interval_of_a_loss_is_turned_round() -> None:
    (loss,) = Goal.of(["goodput"]).loss_estimates(
        measurement(goodput_rps=Estimate(value=4, low=3, high=None))
    )
    assert loss == Estimate(value=-4, low=None, high=-3)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["goodputt"], "unknown objective 'goodputt'; did you mean 'goodput'?"),
        (["tpot_p95_ms"], "unknown objective 'tpot_p95_ms'; did you mean 'tpot_p95'?"),
        (["goodput", "goodput"], "objective 'goodput' is named twice"),
        ([], "a goal needs at least one objective, such as 'goodput'"),
    ],
)
def test_a_bad_goal_is_told_in_one_line(names: list[str], said: str) -> None:
    with pytest.raises(GoalError) as caught:
        Goal.of(names)
    assert str(caught.value) == said


def test_an_unknown_objective_like_no_other_is_answered_with_the_list() -> None:
    with pytest.raises(
        GoalError, match=r"objectives are capacity, capacity_tokens, goodput, goodput_tokens, .*e2e_mean"
    ):
        objective("zzz")


@pytest.mark.parametrize(
    ("name", "capacity", "goodput"),
    [("throughput", "capacity", "goodput"), ("throughput_tokens", "capacity_tokens", "goodput_tokens")],
)
def test_throughput_is_refused_with_the_reason_and_what_to_use(
    name: str, capacity: str, goodput: str
) -> None:
    with pytest.raises(GoalError) as caught:
        objective(name)
    assert "has the throughput that was offered" in str(caught.value)
    assert f"use '{capacity}', the highest rate" in str(caught.value)
    assert f"or '{goodput}', what meets it at one speed (measure: fixed)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "measured", "reason"),
    [
        ("ttft_p99", measurement(requests=200), "it needs 299 requests and the replay has 200"),
        (
            "ttft_p95",
            measurement(requests=50, failed_requests=10),
            "10 of 50 requests failed, and a failed request is infinitely late",
        ),
        ("goodput", measurement(requests=50, failed_requests=50), "none of the 50 requests was answered"),
        ("itl_p50", measurement(requests=50), "no request had a token after its first chunk"),
        (
            "capacity",
            measurement(),
            "the trial played a fixed load, and only measure: capacity looks for it",
        ),
        (
            "capacity_tokens",
            replace(measurement(), mode=Mode.CAPACITY),
            "all requests of the trace are due at once, so it has no rate",
        ),
    ],
)
def test_a_missing_objective_names_itself_and_the_reason(
    name: str, measured: Measurement, reason: str
) -> None:
    with pytest.raises(MissingObjective) as caught:
        Goal.of([name]).losses(measured)
    assert str(caught.value) == f"objective {name!r} was not measured: {reason}"
    assert caught.value.metric == objective(name).metric
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_an_objective_needs_is_known_before_anything_runs() -> None:
    assert objective("ttft_p99").requests_needed == 299
    assert objective("ttft_p95").requests_needed == 1


@pytest.mark.parametrize("mode", Mode)
def test_the_slo_is_judged_at_the_load_that_was_played_whatever_was_looked_for(mode: Mode) -> None:
    measured = replace(measurement(slo_attainment=0.5, capacity_rps=9), mode=mode)
    assert violations(measured, Slo(ttft_s=1, attainment=0.75)) == {"slo_attainment": 0.25}


def test_a_violation_at_or_below_zero_is_feasible() -> None:
    slo = Slo(ttft_s=1, attainment=0.9)
    assert violations(measurement(slo_attainment=0.95), slo)["slo_attainment"] == pytest.approx(-0.05)
    assert violations(measurement(slo_attainment=0.9), slo) == {"slo_attainment": 0}
    assert violations(measurement(slo_attainment=0.5), slo)["slo_attainment"] == pytest.approx(0.4)
    assert violations(measurement(), slo)["slo_attainment"] == pytest.approx(0.9)
