import math
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.measurement import Sample
from objectives.metrics import METRICS
from objectives.slo import Slo
from objectives.summary import summarise
from tests.objectives.replays import answered, failed, steady

SLO = Slo(ttft_s=0.5, tpot_s=0.05, attainment=0.9)


def test_rates_count_from_the_first_due_time_to_the_last_first_token() -> None:
    # Due at 2 and 4, one gap; the first token of the second comes at 4.1: 2.1 s. Its last comes at 4.18.
    measured = summarise([answered(1, due_s=4), answered(0, due_s=2)], [], slo=SLO, max_num_seqs=None)
    assert measured.duration_s == pytest.approx(2.18)
    assert measured.value("goodput_rps") == pytest.approx(1 / 2.1)
    assert measured.value("throughput_tokens_per_s") == pytest.approx(5 / 2.1)
    assert measured.value("offered_rps") == pytest.approx(0.5)


def test_goodput_counts_only_what_met_the_slo() -> None:
    records = [
        answered(0, due_s=0, tokens=5),
        answered(1, due_s=1, ttft_s=0.6, tokens=7),  # late to start
        answered(2, due_s=2, gap_s=0.06, tokens=9),  # slow to go on
        failed(3, due_s=3),
        answered(4, due_s=9, ttft_s=0.5, tokens=11, gap_s=0.05),  # starts at 9.5
    ]
    rate = 4 / 9.5  # four gaps between five requests
    measured = summarise(records, [], slo=SLO, max_num_seqs=None)
    assert measured.value("goodput_rps") == pytest.approx(2 / 5 * rate)
    assert measured.value("goodput_tokens_per_s") == pytest.approx((5 + 11) / 5 * rate)
    assert measured.value("throughput_rps") == pytest.approx(4 / 5 * rate)
    assert measured.value("throughput_tokens_per_s") == pytest.approx((5 + 7 + 9 + 11) / 5 * rate)
    assert measured.value("slo_attainment") == pytest.approx(0.4)
    assert measured.value("failed_share") == pytest.approx(0.2)


def test_goodput_is_as_sure_as_attainment_and_the_end_of_its_window_let_it_be() -> None:
    records = steady(200)
    metrics = summarise(records, [], slo=Slo(ttft_s=0.15), max_num_seqs=None).metrics
    attainment, goodput = metrics["slo_attainment"], metrics["goodput_rps"]
    assert attainment.low is not None
    assert goodput.low is not None
    assert attainment.low < attainment.value
    # Requests come at given times; the window ends with a late request's first token, sooner or later.
    late = [record.ttft_s for record in records[-50:]]
    later_s = np.quantile(late, 0.975) - np.median(late)
    length_s = max(record.due_s + record.ttft_s for record in records)
    of_rate = later_s / (length_s + later_s)
    of_share = 1 - attainment.low / attainment.value
    assert 1 - goodput.low / goodput.value == pytest.approx(math.hypot(of_share, of_rate), rel=1e-3)


def test_a_failure_at_the_end_does_not_shorten_the_replay() -> None:
    measured = summarise([answered(0, due_s=0), failed(1, due_s=100)], [], slo=SLO, max_num_seqs=None)
    assert measured.duration_s == 100


def test_a_short_replay_has_its_p95_with_a_warning_and_without_an_upper_end() -> None:
    measured = summarise(steady(48), [], slo=SLO, max_num_seqs=None)
    p95 = measured.metrics["tpot_p95_s"]
    assert p95.low is not None
    assert p95.high is None
    assert any("48 requests cannot bound p95 from above (59 would)" in said for said in measured.warnings)


def test_p99_is_given_from_299_requests_on() -> None:
    assert "ttft_p99_s" not in summarise(steady(298), [], slo=SLO, max_num_seqs=None).metrics
    long = summarise(steady(299), [], slo=SLO, max_num_seqs=None)
    assert long.metrics["ttft_p99_s"].high is not None
    assert long.metrics["itl_p99_s"].high is not None
    assert long.warnings == ()


def test_failures_leave_out_what_they_make_infinite_and_nothing_else() -> None:
    records = [*steady(94), *(failed(i, due_s=i / 10) for i in range(94, 100))]
    measured = summarise(records, [], slo=SLO, max_num_seqs=None)
    assert measured.failed_requests == 6
    assert "tpot_p90_s" in measured.metrics
    assert not {"tpot_p95_s", "tpot_mean_s", "ttft_p95_s", "e2e_mean_s"} & measured.metrics.keys()
    said = " ".join(measured.warnings)
    assert "6 of 100 requests failed (6: connection reset)" in said
    assert "left out, as failed requests make them infinite: ttft_p95_s, ttft_mean_s" in said


def test_where_nothing_was_answered_nothing_passes_for_a_measurement() -> None:
    measured = summarise([failed(i, due_s=i) for i in range(20)], [], slo=SLO, max_num_seqs=None)
    assert measured.metrics.keys() == {"failed_share", "offered_rps", "lateness_p99_s"}


def test_a_replay_without_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="a replay without requests measures nothing"):
        summarise([], [], slo=SLO, max_num_seqs=8)


def test_an_engine_that_says_nothing_leaves_its_metrics_out() -> None:
    measured = summarise(steady(30), [], slo=SLO, max_num_seqs=8)
    assert "kv_occupancy" not in measured.metrics
    assert "preemptions" not in measured.metrics
    assert "prefix_hit_rate" not in measured.metrics
    assert measured.accepted_per_position is None


def test_counters_become_metrics() -> None:
    records = [answered(i, due_s=i, tokens=5, tokens_in=100, cached_tokens=20 * i) for i in range(4)]
    before = Sample(
        at_s=0,
        running=2,
        preemptions_total=1,
        target_steps_total=10,
        prefix_queries_total=100,
        prefix_hits_total=50,
        queue_time_s_total=1,
        flops_total=1e9,
        read_bytes_total=1e6,
        write_bytes_total=0,
    )
    after = Sample(
        at_s=10,
        running=2,
        preemptions_total=4,
        target_steps_total=30,
        prefix_queries_total=500,
        prefix_hits_total=150,
        queue_time_s_total=3,
        flops_total=5e9,
        read_bytes_total=2e6,
        write_bytes_total=1e6,
    )
    measured = summarise(records, [before, after], slo=SLO, max_num_seqs=8)
    expected = {
        "preemptions": 3,
        "target_steps": 20,
        "prefix_hit_rate": (0 + 20 + 40 + 60) / 400,
        "prefix_hit_rate_counted": 100 / 400,
        "queue_time_mean_s": 2 / 4,
        "flops_per_token": 4e9 / 20,
        "bytes_per_token": 2e6 / 20,
        "batch_occupancy": 0.25,
        "accepted_tokens_per_target_step": 1.0,
    }
    assert {name: measured.value(name) for name in expected} == pytest.approx(expected)


def test_the_prefix_hit_rate_is_the_counters_where_any_answer_does_not_tell() -> None:
    records = [answered(i, due_s=i, cached_tokens=None if i == 2 else 90) for i in range(4)]
    samples = [Sample(at_s=at, prefix_queries_total=40 * at, prefix_hits_total=10 * at) for at in (0.0, 10.0)]
    measured = summarise(records, samples, slo=SLO, max_num_seqs=8)
    assert measured.value("prefix_hit_rate") == measured.value("prefix_hit_rate_counted") == 0.25


def test_a_failed_request_has_no_say_in_the_prefix_hit_rate() -> None:
    records = [answered(0, due_s=0, tokens_in=100, cached_tokens=64), failed(1, due_s=1)]
    assert summarise(records, [], slo=SLO, max_num_seqs=8).value("prefix_hit_rate") == 0.64


def test_where_client_and_engine_disagree_the_measurement_says_so() -> None:
    samples = [Sample(at_s=at, generation_tokens_total=7 * at) for at in (0.0, 10.0)]
    measured = summarise([answered(0, due_s=1, tokens=5)], samples, slo=SLO, max_num_seqs=8)
    assert measured.disagreements == ("output tokens: 70 by the engine's counters, 5 by the client",)
    assert summarise([answered(0, due_s=1)], [], slo=SLO, max_num_seqs=8).disagreements == ()


def test_a_restart_is_told_and_what_the_counters_say_is_left_out() -> None:
    samples = [Sample(at_s=i, preemptions_total=value) for i, value in enumerate((5.0, 0.0, 9.0))]
    measured = summarise(steady(30), samples, slo=SLO, max_num_seqs=8)
    assert "preemptions" not in measured.metrics
    assert any("it restarted" in said for said in measured.warnings)


def test_every_metric_is_a_registered_finite_number_inside_its_interval() -> None:
    samples = [
        Sample(at_s=at, running=3, waiting=0, kv_usage=0.5, drafts_total=at, accepted_tokens_total=2 * at)
        for at in (0.0, 50.0)
    ]
    records = [*steady(400), failed(400, due_s=40)]
    measured = summarise(records, samples, slo=SLO, max_num_seqs=8)
    for name, estimate in measured.metrics.items():
        assert name in METRICS
        assert math.isfinite(estimate.value)
        assert estimate.low is None or estimate.low <= estimate.value
        assert estimate.high is None or estimate.high >= estimate.value


def test_the_same_seed_gives_the_same_intervals() -> None:
    records = steady(60)
    once, again = (summarise(records, [], slo=SLO, max_num_seqs=None, seed=4) for _ in range(2))
    assert once == again


def test_five_hundred_requests_of_two_hundred_tokens_are_summarised_in_a_moment() -> None:
    records = [answered(i, due_s=i / 10, tokens=200, ttft_s=0.1 + i / 1e4) for i in range(500)]
    started = perf_counter()
    summarise(records, [], slo=SLO, max_num_seqs=None)
    # About 0.5 s where it was written; the bound only catches a change of order.
    assert perf_counter() - started < 10


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.floats(0.001, 0.2), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_the_margin_is_at_most_one_exactly_where_enough_requests_meet_the_slo(
    rows: list[tuple[float, float, bool]], attainment: float
) -> None:
    slo = Slo(ttft_s=0.7, tpot_s=0.05, attainment=attainment)
    records = [
        failed(n, due_s=float(n))
        if broken and n  # one is answered at least
        else answered(n, due_s=float(n), ttft_s=ttft_s, gap_s=gap_s)
        for n, (ttft_s, gap_s, broken) in enumerate(rows)
    ]
    met = sum(slo.met_by(record) for record in records)
    measured = summarise(records, (), slo=slo, max_num_seqs=None)
    margin = measured.value("slo_margin")
    holds = met >= attainment * len(records) - 1e-9
    assert (margin is not None and margin <= 1) == holds


def test_the_margin_by_hand() -> None:
    """Of four requests two must meet the SLO: the second best, by its worse latency, is half over."""
    slo = Slo(ttft_s=0.1, tpot_s=0.1, attainment=0.5)
    records = [
        answered(0, due_s=0.0, ttft_s=0.05, gap_s=0.02),
        answered(1, due_s=1.0, ttft_s=0.15, gap_s=0.02),
        answered(2, due_s=2.0, ttft_s=0.01, gap_s=0.30),
        failed(3, due_s=3.0),
    ]
    measured = summarise(records, (), slo=slo, max_num_seqs=None)
    assert measured.value("slo_margin") == pytest.approx(1.5)
    assert "slo_margin" not in summarise(records, (), slo=Slo(), max_num_seqs=None).metrics


def test_any_percentile_is_measured_where_it_is_asked_for() -> None:
    records = [answered(n, due_s=float(n), ttft_s=0.01 * (n + 1)) for n in range(50)]
    usual = summarise(records, (), slo=SLO, max_num_seqs=None)
    asked = summarise(records, (), slo=SLO, max_num_seqs=None, percentiles=(75, 97))
    assert usual.value("ttft_p75_s") is None
    assert asked.value("ttft_p75_s") == pytest.approx(
        np.percentile(0.01 * np.arange(1, 51), 75, method="higher")
    )
    assert asked.value("ttft_p97_s") is None  # 99 requests could bound it
    assert asked.value("ttft_p95_s") == usual.value("ttft_p95_s")
