import math
import pickle
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.measurement import Estimate
from objectives.repeats import Spread, combine, combined, spreads
from tests.objectives.replays import measurement

T1, T2 = 12.7062047362, 4.3026527297
"""Student's 0.975 quantile with one and two degrees of freedom, from printed tables."""


def test_one_measurement_stays_as_it_is() -> None:
    only = measurement(ttft_p50_s=0.1)
    assert combine([only]) is only


def test_how_runs_differ_is_pooled_over_configs_on_the_scale_that_a_metric_differs_by() -> None:
    groups = [
        [measurement(goodput_rps=4, slo_attainment=0.90), measurement(goodput_rps=5, slo_attainment=0.94)],
        [measurement(goodput_rps=90, slo_attainment=0.5)],
        [measurement(goodput_rps=value) for value in (70, 80, 95)],
    ]
    found = spreads(groups)
    logs = [[math.log(value) for value in values] for values in ((4, 5), (70, 80, 95))]
    assert found["goodput_rps"].freedom == 3
    assert found["goodput_rps"].variance == pytest.approx(
        (statistics.variance(logs[0]) + 2 * statistics.variance(logs[1])) / 3
    )
    assert found["slo_attainment"].freedom == 1
    assert found["slo_attainment"].variance == pytest.approx(statistics.variance([0.90, 0.94]))


def test_what_has_no_logarithm_and_single_runs_tell_nothing_of_how_runs_differ() -> None:
    assert spreads([[measurement(goodput_rps=4)], [measurement(goodput_rps=9)]]) == {}
    assert spreads([[measurement(goodput_rps=0), measurement(goodput_rps=3)]]) == {}
    assert spreads([[measurement(ttft_p95_s=math.inf), measurement(ttft_p95_s=3)]]) == {}
    assert spreads([]) == {}


def test_a_single_measurement_takes_in_how_runs_are_known_to_differ() -> None:
    within = Estimate(value=10, low=9, high=12)
    alone = replace(measurement(), metrics={"goodput_rps": within, "tpot_p95_s": Estimate(value=2, low=1)})
    known = {"goodput_rps": Spread(variance=0.01, freedom=2)}
    widened = combine([alone], known)
    estimate = widened.metrics["goodput_rps"]
    assert estimate.value == pytest.approx(10)
    assert estimate.low == pytest.approx(10 / math.exp(math.hypot(math.log(10 / 9), T2 * 0.1)))
    assert estimate.high == pytest.approx(10 * math.exp(math.hypot(math.log(12 / 10), T2 * 0.1)))
    assert widened.metrics["tpot_p95_s"] == Estimate(value=2, low=1)


def test_what_the_repeats_say_of_themselves_is_what_they_say_when_it_is_given() -> None:
    repeats = [measurement(goodput_rps=4, kv_occupancy=0.5), measurement(goodput_rps=5, kv_occupancy=0.6)]
    assert combine(repeats, spreads([repeats])) == combine(repeats)


def test_a_value_without_end_is_combined_without_an_interval() -> None:
    ends = [Estimate(value=math.inf), Estimate(value=0.1, low=0.05, high=0.2)]
    assert combined("ttft_p95_s", ends) == Estimate(value=math.inf)
    assert combined("ttft_p95_s", ends[:1], Spread(variance=1, freedom=1)) == ends[0]


def test_nothing_combines_to_nothing() -> None:
    with pytest.raises(ValueError, match="no measurements to combine"):
        combine([])


def test_latencies_and_rates_have_their_geometric_mean_and_shares_their_arithmetic_one() -> None:
    one = measurement(ttft_p50_s=0.1, goodput_rps=4, slo_attainment=0.9, preemptions=0)
    two = measurement(ttft_p50_s=0.4, goodput_rps=9, slo_attainment=1.0, preemptions=10)
    both = combine([one, two])
    assert both.value("ttft_p50_s") == pytest.approx(0.2)
    assert both.value("goodput_rps") == pytest.approx(6)
    assert both.value("slo_attainment") == pytest.approx(0.95)
    assert both.value("preemptions") == 5


def test_a_rate_that_was_once_zero_has_its_arithmetic_mean() -> None:
    both = combine([measurement(goodput_rps=0), measurement(goodput_rps=3)])
    assert both.metrics["goodput_rps"].value == 1.5
    assert both.metrics["goodput_rps"].low == 0


def test_what_is_alike_in_all_repeats_is_not_averaged_out() -> None:
    # The same interval thrice: the traffic is the same, so the combined one is no narrower.
    estimate = combined("ttft_p50_s", [Estimate(value=0.1, low=0.08, high=0.15)] * 3)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.1, 0.08, 0.15))


def test_what_differs_between_repeats_is_students_interval_of_the_mean() -> None:
    # Logs 0 and 0.2, sd 0.1414, of the mean 0.1.
    values = [Estimate(value=at, low=at, high=at) for at in (1.0, math.exp(0.2))]
    estimate = combined("e2e_mean_s", values)
    assert estimate.high is not None
    assert math.log(estimate.high) == pytest.approx(0.1 + T1 * 0.1)
    assert estimate.low is not None
    assert math.log(estimate.low) == pytest.approx(0.1 - T1 * 0.1)


def test_both_parts_add_in_quadrature() -> None:
    # Shares 0.4, 0.5, 0.6: sd of the mean 0.1 / √3. Each is 0.03 from its low end.
    estimates = [Estimate(value=v, low=v - 0.03, high=v + 0.04) for v in (0.4, 0.5, 0.6)]
    estimate = combined("slo_attainment", estimates)
    between = T2 * 0.1 / math.sqrt(3)
    assert estimate.low == pytest.approx(0.5 - math.hypot(0.03, between))
    assert estimate.high == pytest.approx(0.5 + math.hypot(0.04, between))


def test_a_share_stays_a_share() -> None:
    estimate = combined("slo_attainment", [Estimate(value=v, low=v, high=v) for v in (0.5, 1.0)])
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_an_end_that_one_repeat_lacks_is_missing() -> None:
    estimate = combined("ttft_p95_s", [Estimate(value=1, low=0.9), Estimate(value=1, low=0.9, high=1.2)])
    assert estimate.low == pytest.approx(0.9)
    assert estimate.high is None


def test_without_any_interval_the_repeats_give_one() -> None:
    estimate = combined("throughput_rps", [Estimate(value=9.0), Estimate(value=10.0), Estimate(value=11.0)])
    spread = np.std(np.log([9, 10, 11]), ddof=1) / math.sqrt(3)
    assert estimate.low is not None
    assert math.log(estimate.value / estimate.low) == pytest.approx(T2 * spread)


def test_a_low_end_of_zero_stays_zero() -> None:
    assert combined("goodput_rps", [Estimate(value=1, low=0, high=2)] * 2).low == 0


def test_a_metric_of_some_repeats_only_is_left_out_and_told() -> None:
    one, two = measurement(ttft_p50_s=0.1, e2e_mean_s=1.0), measurement(ttft_p50_s=0.1)
    both = combine([one, two])
    assert both.metrics.keys() == {"ttft_p50_s"}
    assert both.warnings == ("left out, as not every repeat has them: e2e_mean_s",)


def test_counts_are_summed_and_sentences_said_once() -> None:
    one = replace(
        measurement(requests=100, failed_requests=2),
        warnings=("a", "b"),
        disagreements=("x",),
        accepted_per_position=(0.8, 0.4),
    )
    two = replace(
        measurement(requests=100, failed_requests=1),
        warnings=("b", "c"),
        disagreements=("x",),
        accepted_per_position=(0.6, 0.2),
    )
    both = combine([one, two])
    assert (both.requests, both.failed_requests, both.duration_s) == (200, 3, 20.0)
    assert both.warnings == ("a", "b", "c")
    assert both.disagreements == ("x",)
    assert both.accepted_per_position == pytest.approx((0.7, 0.3))


_VALUES = st.floats(0.01, 100)


@settings(deadline=None)
@given(st.lists(st.tuples(_VALUES, st.floats(0, 0.9), st.floats(0, 3)), min_size=2, max_size=6), st.data())
def test_the_interval_holds_the_value_and_order_does_not_matter(
    rows: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    estimates = [
        Estimate(value=value, low=value * (1 - down), high=value * (1 + up)) for value, down, up in rows
    ]
    estimate = combined("ttft_p50_s", estimates)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low <= estimate.value * (1 + 1e-9)
    assert estimate.value <= estimate.high * (1 + 1e-9)
    again = combined("ttft_p50_s", data.draw(st.permutations(estimates)))
    assert again.value == pytest.approx(estimate.value)
    assert again.high == pytest.approx(estimate.high)


@settings(deadline=None)
@given(st.lists(_VALUES, min_size=2, max_size=5), st.floats(0.1, 10))
def test_units_do_not_matter(values: list[float], unit: float) -> None:
    before = combined("e2e_mean_s", [Estimate(value=value) for value in values])
    after = combined("e2e_mean_s", [Estimate(value=value * unit) for value in values])
    assert after.value == pytest.approx(before.value * unit)
    assert after.low is not None
    assert before.low is not None
    assert after.low == pytest.approx(before.low * unit)


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize(("traffic", "engine"), [(0.01, 0.0), (0.01, 0.01), (0.002, 0.01), (0.0, 0.01)])
def test_intervals_cover_what_they_should(repeats: int, traffic: float, engine: float) -> None:
    draw = np.random.default_rng(repeats)
    covered, tries = 0, 600
    reach = math.exp(1.96 * traffic)
    for _ in range(tries):
        values = np.exp(draw.normal(0, traffic) + draw.normal(0, engine, repeats)).tolist()
        estimates = [Estimate(value=value, low=value / reach, high=value * reach) for value in values]
        estimate = combined("ttft_p50_s", estimates)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 1 <= estimate.high
    # 0.95, less three standard errors of the tries.
    assert covered / tries >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / tries)


def test_combined_metrics_go_to_another_process_as_the_dictionary_that_they_are_equal_to() -> None:
    both = combine([measurement(ttft_p50_s=0.1, goodput_rps=4), measurement(ttft_p50_s=0.4, goodput_rps=9)])
    sent = pickle.loads(pickle.dumps(both))
    assert type(sent.metrics) is dict
    assert sent == both
    assert list(sent.metrics) == ["ttft_p50_s", "goodput_rps"]
    assert sent.metrics["goodput_rps"].value == pytest.approx(6)
    with pytest.raises(KeyError):
        both.metrics["tpot_p50_s"]
