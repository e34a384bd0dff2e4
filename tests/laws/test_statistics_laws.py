"""Statistics against their definitions, on any replay."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.latency import latencies, token_gaps
from objectives.measurement import Estimate, Record
from objectives.metrics import METRICS, published
from objectives.slo import Slo
from objectives.statistics import (
    clustered_quantile_estimates,
    compare,
    quantile,
    quantile_estimates,
    requests_needed,
    share_estimate,
    wilson,
)
from objectives.summary import summarise
from tests.objectives.replays import answered, failed

QUANTILES = st.sampled_from([0.07, 0.5, 0.9, 0.95, 0.99])
LATENESS = st.floats(0.001, 100) | st.just(math.inf)


@st.composite
def replays(draw: st.DrawFn, *, most: int = 40, failures: bool = True) -> list[Record]:
    rows = draw(st.lists(st.booleans() if failures else st.just(True), min_size=1, max_size=most))
    seconds = st.floats(0.001, 3)
    return [
        answered(
            i,
            due_s=draw(st.floats(0, 20)),
            ttft_s=draw(seconds),
            gap_s=draw(seconds),
            chunk_tokens=np.cumsum(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))).tolist(),
        )
        if ok
        else failed(i, due_s=draw(st.floats(0, 20)), tokens=draw(st.integers(0, 5)))
        for i, ok in enumerate(rows)
    ]


def inside(estimate: Estimate) -> bool:
    low = -math.inf if estimate.low is None else estimate.low
    high = math.inf if estimate.high is None else estimate.high
    return low <= estimate.value <= high


@given(st.lists(LATENESS, min_size=1, max_size=200), QUANTILES)
def test_a_quantile_is_numpys_higher(values: list[float], q: float) -> None:
    array = np.array(values)
    assert quantile(array, q) == np.quantile(array, q, method="higher")
    assert quantile_estimates(array, (q,))[0].value == quantile(array, q)


@given(st.lists(LATENESS, min_size=1, max_size=120), QUANTILES, st.integers(0, 9))
def test_a_quantile_lies_in_its_interval_whose_ends_were_seen(
    values: list[float], q: float, seed: int
) -> None:
    (estimate,) = quantile_estimates(np.array(values), (q,), seed=seed)
    assert inside(estimate)
    assert estimate.low is None or estimate.low in values
    assert estimate.high is None or estimate.high in values


@given(st.integers(1, 400), QUANTILES)
def test_an_upper_end_is_given_exactly_from_the_requests_needed_on(n: int, q: float) -> None:
    (estimate,) = quantile_estimates(np.linspace(1, n, n), (q,))
    assert (estimate.high is not None) == (n >= requests_needed(q))


@given(st.lists(st.tuples(LATENESS, st.integers(1, 5)), min_size=1, max_size=60), QUANTILES)
def test_clustered_quantiles_are_those_of_the_values_written_out(
    pairs: list[tuple[float, int]], q: float
) -> None:
    values, weights = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    owners = np.arange(len(values)) // 2
    (estimate,) = clustered_quantile_estimates(values, weights, owners, (q,))
    assert estimate.value == quantile(np.repeat(values, weights.astype(int)), q)
    assert inside(estimate)


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_a_share_lies_in_its_interval_between_0_and_1(met: list[bool]) -> None:
    estimate = share_estimate(np.array(met))
    assert inside(estimate)
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 <= estimate.low < estimate.high <= 1


@given(st.integers(1, 500), st.integers(0, 500))
def test_wilson_is_where_the_score_test_stops_rejecting(n: int, successes: int) -> None:
    share = min(successes, n) / n
    for end in wilson(share, n):
        if 0 < end < 1:
            assert abs(share - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, rel=1e-4)


@given(replays())
def test_token_gaps_add_up_to_the_time_between_first_and_last_token(records: list[Record]) -> None:
    gaps = token_gaps(records)
    for index, record in enumerate(records):
        if record.ok:
            mine = gaps.owner == index
            assert gaps.count[mine].sum() == record.tokens_out - record.chunk_tokens[0]
            spent = float((gaps.gap_s[mine] * gaps.count[mine]).sum())
            assert spent == pytest.approx(record.chunk_s[-1] - record.chunk_s[0], abs=1e-9)


@given(replays(), st.data())
def test_a_measurement_does_not_depend_on_the_order_of_its_records(
    records: list[Record], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(records))
    slo = Slo(ttft_s=1, tpot_s=1)
    assert summarise(records, [], slo=slo, max_num_seqs=4) == summarise(shuffled, [], slo=slo, max_num_seqs=4)


@given(replays())
def test_what_is_published_is_registered_finite_and_inside_its_interval(records: list[Record]) -> None:
    measured = summarise(records, [], slo=Slo(ttft_s=1, tpot_s=1), max_num_seqs=4)
    assert measured.metrics.keys() <= METRICS.keys()
    assert len(published(measured)) == len(measured.metrics)
    for estimate in published(measured).values():
        assert math.isfinite(estimate.value)
        assert inside(estimate)


@given(replays())
def test_goodput_is_at_most_throughput_and_both_are_shares_of_one_rate(records: list[Record]) -> None:
    slo = Slo(ttft_s=1, tpot_s=1)
    measured = summarise(records, [], slo=slo, max_num_seqs=4)
    goodput, throughput = measured.value("goodput_rps"), measured.value("throughput_rps")
    if goodput is None or throughput is None:
        assert all(not record.ok for record in records)
        return
    assert goodput <= throughput * (1 + 1e-12)
    ok, met = (sum(record.ok for record in records), sum(slo.met_by(record) for record in records))
    assert goodput * ok == pytest.approx(throughput * met)
    # All of them, over no less than the time in which they came and no more than it took to serve them.
    came_s = max(record.due_s for record in records) - min(record.due_s for record in records)
    n = len(records)
    assert throughput * n / ok * measured.duration_s >= (n - 1) * (1 - 1e-12)
    assert throughput * n / ok * came_s <= n * (1 + 1e-12)


@given(replays(), st.integers(0, 39))
def test_a_failure_in_place_of_an_answer_never_makes_a_latency_better(
    records: list[Record], which: int
) -> None:
    which %= len(records)
    lost = records[which]
    worse = list(records)
    worse[which] = failed(lost.request, due_s=lost.due_s, tokens=lost.tokens_asked)
    for name in ("ttft", "e2e"):
        before, after = latencies(records)[name], latencies(worse)[name]
        for q in (0.5, 0.9, 0.95):
            assert quantile(after, q) >= quantile(before, q)


@given(replays(failures=False), st.floats(0.2, 5))
def test_comparing_the_other_way_round_turns_the_ratio_over(records: list[Record], factor: float) -> None:
    other = [
        answered(
            record.request,
            due_s=record.due_s,
            ttft_s=record.ttft_s * factor,
            chunk_tokens=record.chunk_tokens,
        )
        for record in records
    ]
    there, back = compare(other, records, "ttft_s"), compare(records, other, "ttft_s")
    assert there.ratio == pytest.approx(factor)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert compare(records, records, "ttft_s").ratio == 1
    assert not compare(records, records, "ttft_s").different
