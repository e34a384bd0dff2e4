"""A/A: one config against itself is called different as rarely as stated; a small true difference is seen."""

import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, t, ttest_1samp

from cluster.node.engine import Endpoint
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import Order
from cluster.traffic.make import Recipe, make_trace
from cluster.traffic.workload import Workload
from objectives.alternation import difference, latency_difference
from objectives.measurement import Record
from objectives.slo import Slo
from objectives.statistics import compare
from objectives.summary import summarise

TRACE = make_trace(Recipe(requests=300, rate=9, input_mean=500, output_mean=60, seed=3))
NOISY = Assumptions(run_noise=0.02, step_noise=0.05)
SLO = Slo(ttft_s=0.2, tpot_s=0.012)
PAIRS = 4


def runs(count: int, *, requests: int = 80, assumptions: Assumptions = NOISY) -> Iterator[list[Record]]:
    """Replays of one config, each with the noise of a run of its own."""
    trace = replace(TRACE, requests=TRACE.requests[:requests])
    for number in range(count):
        order = Order(
            study="aa",
            number=number,
            model="meta-llama/Llama-3.1-8B-Instruct",
            arguments={"max_model_len": 4096},
            environment={},
            workload=Workload(trace=trace),
            slo=SLO,
            gpus=1,
            accelerator="H100",
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            SimulatedEngine(assumptions).serve(order, Path(folder)) as endpoint,
        ):
            yield played(endpoint, order)


def played(endpoint: Endpoint, order: Order) -> list[Record]:
    return list(endpoint.play(order.workload, order.limits).records)


@pytest.fixture(scope="module")
def same() -> list[list[Record]]:
    return list(runs(2 * PAIRS * 100))


@pytest.mark.parametrize("metric", ["ttft_s", "tpot_s", "e2e_s"])
def test_a_config_is_called_different_from_itself_no_more_often_than_stated(
    same: list[list[Record]], metric: str
) -> None:
    called = 0
    for start in range(0, len(same), 2 * PAIRS):
        side = same[start : start + 2 * PAIRS]
        called += latency_difference(side[::2], side[1::2], metric).different  # type: ignore[arg-type]
    comparisons = len(same) // (2 * PAIRS)
    # More than this happens to an honest 5 % once in a thousand times.
    assert called <= binom.ppf(0.999, comparisons, 0.05)


def test_single_replays_would_call_it_different_far_more_often(same: list[list[Record]]) -> None:
    # Why the alternation is needed: the interval of one pair knows nothing of runs.
    pairs = list(zip(same[::2], same[1::2], strict=True))[:100]
    assert sum(compare(a, b, "tpot_s").different for a, b in pairs) > 30


def test_the_interval_of_a_replay_covers_what_other_replays_of_one_run_show() -> None:
    """Steps vary by 5 %, runs do not: that much is what one replay can know of."""
    tight = Slo(tpot_s=0.0075)  # some meet it and some do not
    measured = [
        summarise(records, (), slo=tight, max_num_seqs=None, seed=n).metrics
        for n, records in enumerate(runs(40, assumptions=Assumptions(step_noise=0.05)))
    ]
    for name in ("ttft_p95_s", "tpot_p95_s", "tpot_mean_s", "goodput_rps"):
        estimates = [metrics[name] for metrics in measured]
        truth = float(np.mean([estimate.value for estimate in estimates]))
        covered = sum(
            (estimate.low is None or estimate.low <= truth)
            and (estimate.high is None or truth <= estimate.high)
            for estimate in estimates
        )
        assert covered >= binom.ppf(0.001, len(estimates), 0.95), name


def test_the_goodput_of_a_replay_whose_requests_all_meet_the_slo_is_not_known_to_the_last_digit(
    same: list[list[Record]],
) -> None:
    """Nothing is missed, so all that varies is when the last first token comes: from run to run, by 2 %."""
    measured = [
        summarise(records, (), slo=SLO, max_num_seqs=None, seed=n).metrics["goodput_rps"]
        for n, records in enumerate(same[:60])
    ]
    mean = float(np.mean([estimate.value for estimate in measured]))
    covered = sum((e.low or 0.0) <= mean <= (e.high or math.inf) for e in measured)
    assert covered >= binom.ppf(0.001, len(measured), 0.95)
    assert all(estimate.high is not None and estimate.high > estimate.value for estimate in measured)


def test_three_percent_are_ranked_rightly_from_three_hundred_requests() -> None:
    """Runs differ by 1 %; the second side's latencies are made 3 % longer than its run had them."""
    sides = list(runs(120, requests=300, assumptions=Assumptions(run_noise=0.01, step_noise=0.05)))
    right = 0
    for a, b in zip(sides[::2], sides[1::2], strict=True):
        logs = [math.log(1.03 * y.e2e_s / x.e2e_s) for x, y in zip(a, b, strict=True)]
        right += float(np.mean(logs)) > 0
    assert right >= binom.ppf(0.001, len(sides) // 2, 0.97)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12))
def test_the_interval_is_students(logs: list[float]) -> None:
    seen = difference(logs)
    if np.std(logs) < 1e-9:
        return
    low, high = t.interval(0.95, len(logs) - 1, np.mean(logs), np.std(logs, ddof=1) / math.sqrt(len(logs)))
    assert seen.low == pytest.approx(math.exp(low))
    assert seen.high == pytest.approx(math.exp(high))
    assert seen.different == (ttest_1samp(logs, 0).pvalue < 0.05)


def test_one_pair_has_no_interval_and_none_is_refused() -> None:
    assert difference([0.1]).low is None
    assert not difference([0.1]).different
    with pytest.raises(ValueError, match="pairs"):
        difference([])
