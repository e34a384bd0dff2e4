"""Hand-worked prices: per GPU, per unit of money, per joule."""

import pytest

from objectives.economy import money, per_gpu, tokens_per_joule
from objectives.measurement import Estimate

METRICS = {
    "goodput_rps": Estimate(value=8.0, low=6.0, high=None),
    "goodput_tokens_per_s": Estimate(value=1000.0, low=500.0, high=2000.0),
}


def test_rates_are_shared_among_the_gpus_with_their_intervals() -> None:
    assert per_gpu(METRICS, 4) == {
        "goodput_rps_per_gpu": Estimate(value=2.0, low=1.5, high=None),
        "goodput_tokens_per_s_per_gpu": Estimate(value=250.0, low=125.0, high=500.0),
    }
    assert per_gpu(METRICS, 0) == {}


def test_two_gpus_at_3_60_an_hour_cost_two_a_million_tokens_at_a_thousand_a_second() -> None:
    # 7.20 an hour are 0.002 a second; a million tokens take a thousand seconds.
    found = money(METRICS, 2, 3.6)
    assert found["cost_per_million_tokens"].value == pytest.approx(2.0)
    assert found["cost_per_million_tokens"].low == pytest.approx(1.0)
    assert found["cost_per_million_tokens"].high == pytest.approx(4.0)
    assert found["goodput_per_cost"].value == pytest.approx(4000.0)
    assert found["goodput_per_cost"].high is None


def test_tokens_are_priced_at_the_capacity_where_there_is_one() -> None:
    metrics = METRICS | {"capacity_tokens_per_s": Estimate(value=4000.0)}
    assert money(metrics, 2, 3.6)["cost_per_million_tokens"].value == pytest.approx(0.5)


@pytest.mark.parametrize(("gpus", "price"), [(0, 3.6), (2, None)])
def test_without_gpus_or_a_price_nothing_is_priced(gpus: int, price: float | None) -> None:
    assert money(METRICS, gpus, price) == {}


def test_no_good_token_has_no_price() -> None:
    assert "cost_per_million_tokens" not in money({"goodput_tokens_per_s": Estimate(value=0.0)}, 1, 1.0)


def test_tokens_per_joule_need_energy_that_was_read() -> None:
    assert tokens_per_joule(500, 250.0) == {"tokens_per_joule": Estimate(value=2.0)}
    assert tokens_per_joule(500, None) == {}
    assert tokens_per_joule(500, 0.0) == {}
