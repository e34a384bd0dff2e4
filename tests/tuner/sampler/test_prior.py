from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import Failed, Measured, Order
from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.sessions import Sessions
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.arguments import render
from search_spaces.load import load_space
from search_spaces.measure import Closed
from search_spaces.space import Resources, Space
from tests.tuner.spaces import SMALL
from tuner.sampler.pool import drawn
from tuner.sampler.prior import predictor, traffic_of
from tuner.traffic import study_trace

SPACE = load_space("spaces/smollm2-135m.yaml")


def _workload(space: Space, speed: float) -> Workload:
    trace, _ = study_trace(space, None)
    return Workload(trace=trace, speed=speed, seed=0, tokenizer=space.model)


def test_configs_are_ranked_as_the_simulated_engine_ranks_them_and_misfits_fail(tmp_path: Path) -> None:
    workload, slo = _workload(SPACE, 1.0), Slo.from_limits(SPACE.slo)
    configs = drawn(SPACE, np.random.default_rng(5), 40)
    predict = predictor(SPACE, workload, slo)
    assert predict is not None
    told = predict(configs)
    measured: list[tuple[int, float, float]] = []
    arrivals = [request.arrival_s for request in workload.trace.requests]
    assert told.best["goodput_rps"] == pytest.approx((len(arrivals) - 1) / (max(arrivals) - min(arrivals)))
    for index, config in enumerate(configs):
        rendered = render(SPACE, config)
        order = Order(
            study="tea",
            number=index,
            model=rendered.model,
            arguments=rendered.arguments,
            environment=rendered.environment,
            workload=workload,
            slo=slo,
        )
        folder = tmp_path / str(index)
        folder.mkdir()
        outcome = run_trial(order, SimulatedEngine(), folder)
        assert isinstance(outcome, Failed) != told.fits[index]
        if isinstance(outcome, Measured):
            value = outcome.measurement.value
            for metric, best in told.best.items():
                assert (value(metric) or 0.0) <= best * (1 + 1e-9)
            measured.append((index, value("throughput_rps") or 0.0, value("tpot_p95_s") or 0.0))
    places = [index for index, _, _ in measured]
    assert 15 < len(places) < 40
    for column, name in ((1, "throughput_rps"), (2, "tpot_p95_s")):
        found = [row[column] for row in measured]
        assert spearmanr(told.metrics[name][places], found).statistic > 0.85, name


def test_nothing_bounds_what_is_served_where_requests_leave_as_others_are_answered() -> None:
    workload, slo = _workload(SPACE, 1.0), Slo.from_limits(SPACE.slo)
    config = drawn(SPACE, np.random.default_rng(5), 1)
    for space, one in (
        (replace(SPACE, measure=Closed(concurrency=4)), workload),
        (SPACE, replace(workload, sessions=Sessions.CAUSAL)),
    ):
        predict = predictor(space, one, slo)
        assert predict is not None
        assert predict(config).best == {}


def test_capacities_are_told_where_an_objective_asks_and_rise_no_further_than_the_slo_allows() -> None:
    workload, slo = _workload(SPACE, 0.5), Slo.from_limits(SPACE.slo)
    configs = drawn(SPACE, np.random.default_rng(6), 60)
    asked = predictor(replace(SPACE, named_objectives=("capacity", "tpot_p95")), workload, slo)
    strict = predictor(
        replace(SPACE, named_objectives=("capacity", "tpot_p95")), workload, replace(slo, tpot_s=0.05)
    )
    unasked = predictor(replace(SPACE, named_objectives=("goodput",)), workload, slo)
    assert asked is not None
    assert strict is not None
    assert unasked is not None
    loose, tight = (p(configs).metrics["capacity_rps"] for p in (asked, strict))
    assert "capacity_rps" not in unasked(configs).metrics
    fits = np.isfinite(loose)
    assert (tight[fits] <= loose[fits] * 1.001).all()
    assert tight[fits].mean() < loose[fits].mean()


def test_what_has_no_figures_is_not_predicted_and_not_held_to_fail() -> None:
    workload = _workload(SPACE, 1.0)
    predict = predictor(replace(SMALL, resources=Resources(gpus=1)), workload, Slo())
    assert predict is not None
    told = predict(drawn(SMALL, np.random.default_rng(0), 5))
    assert told.fits.all()
    assert all(np.isnan(values).all() for values in told.metrics.values())
    unknown = replace(SPACE, resources=Resources(gpus=1, accelerator="TPU-v9"))
    assert predictor(unknown, workload, Slo()) is None


def test_traffic_is_the_trace_at_the_workloads_speed() -> None:
    workload = _workload(SPACE, 2.0)
    traffic = traffic_of(workload)
    requests = workload.trace.requests
    assert traffic.arrival_s[-1] == pytest.approx(max(r.arrival_s for r in requests) / 2)
    assert traffic.input_tokens.sum() == sum(r.input_length for r in requests)
    assert traffic.shared_tokens.sum() == sum(shared_tokens(workload.trace))
