import pytest

from objectives.measurement import Estimate
from objectives.metrics import METRICS, published
from tests.objectives.replays import measurement


def test_people_read_milliseconds() -> None:
    shown = published(measurement(ttft_p95_s=Estimate(value=0.25, low=0.2, high=None), goodput_rps=3.0))
    assert shown == {
        "goodput_rps": Estimate(value=3.0),
        "ttft_p95_ms": Estimate(value=250.0, low=200.0, high=None),
    }


def test_no_two_metrics_share_a_name_where_people_read() -> None:
    assert len({metric.shown for metric in METRICS.values()}) == len(METRICS)


def test_a_metric_in_seconds_says_so_in_its_name_and_no_other_does() -> None:
    for metric in METRICS.values():
        in_seconds = metric.name.endswith("_s") and not metric.name.endswith("_per_s")
        assert (metric.unit == "s") == in_seconds, metric.name


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_is_never_published(value: float) -> None:
    assert published(measurement(ttft_p95_s=value)) == {}


def test_a_metric_of_another_version_is_left_out() -> None:
    assert published(measurement(warp_factor=9.0)) == {}
