"""The front as it is told to a trial that looks for its capacity."""

import dataclasses

import pytest

from cluster.order import CapacityLoad, FixedLoad, Order
from cluster.traffic.sessions import Sessions
from objectives.bar import Bar
from objectives.measurement import Estimate
from tests.tuner import stories
from tuner.bars import barred
from tuner.front import FrontView, view
from tuner.records import StoredTrial

LOAD = CapacityLoad(resolution=0.1)


def trial(number: int, speed: float, tpot_s: float, gpus: int = 1, low: float | None = None) -> StoredTrial:
    """Capacity with an interval from 10 % below, TPOT p95 with one of a millisecond on either side."""
    capacity = Estimate(value=speed, low=speed * 0.9 if low is None else low or None, high=speed * 1.1)
    more = {
        "capacity_speed": capacity,
        "capacity_rps": capacity.times(8.0),
        "capacity_rps_per_gpu": capacity.times(8.0 / gpus),
        "tpot_p95_s": Estimate(value=tpot_s, low=tpot_s - 0.001, high=tpot_s + 0.001),
    }
    return dataclasses.replace(stories.stored(stories.measured(more=more), number), gpus=gpus)


def seen(*trials: StoredTrial, objectives: tuple[str, ...] = ("capacity", "tpot_p95")) -> FrontView:
    return view(dataclasses.replace(stories.study_file(), objectives=objectives, engine="simulated"), trials)


def order(gpus: int = 1) -> Order:
    return dataclasses.replace(stories.order(), load=LOAD, gpus=gpus)


def bars(told: Order) -> tuple[Bar, ...]:
    assert isinstance(told.load, CapacityLoad)
    return told.load.bars


def test_it_is_the_front_at_the_worst_ends_of_its_intervals() -> None:
    told = barred(order(), seen(trial(1, 4.0, 0.030), trial(2, 2.0, 0.020), trial(3, 1.0, 0.040)))
    assert [bar.trial for bar in bars(told)] == [1, 2]
    assert [bar.speed for bar in bars(told)] == [pytest.approx(3.6), pytest.approx(1.8)]
    assert [bar.losses["tpot_p95"] for bar in bars(told)] == [pytest.approx(0.031), pytest.approx(0.021)]
    assert dataclasses.replace(told, load=LOAD) == order()


def test_who_has_no_worst_end_is_no_bar() -> None:
    assert bars(barred(order(), seen(trial(1, 4.0, 0.030, low=0.0)))) == ()


def test_per_gpu_a_trial_of_half_the_gpus_has_to_reach_half_the_speed() -> None:
    front = seen(trial(1, 4.0, 0.030, gpus=4), objectives=("capacity_per_gpu",))
    assert [bar.speed for bar in bars(barred(order(gpus=2), front))] == [pytest.approx(1.8)]
    both = seen(trial(1, 4.0, 0.030, gpus=2), objectives=("capacity_per_gpu", "capacity"))
    assert [bar.speed for bar in bars(barred(order(gpus=4), both))] == [pytest.approx(3.6)]


@pytest.mark.parametrize(
    "objectives", [("tpot_p95",), ("capacity", "nll_increase"), ("capacity", "tokens_per_joule")]
)
def test_where_the_capacity_does_not_count_or_more_is_still_to_come_nothing_is_told(
    objectives: tuple[str, ...],
) -> None:
    more = {name: Estimate(value=1.0, low=0.9, high=1.1) for name in objectives[1:]}
    one = trial(1, 4.0, 0.030)
    assert one.measurement is not None
    measurement = dataclasses.replace(one.measurement, metrics={**one.measurement.metrics, **more})
    front = seen(dataclasses.replace(one, measurement=measurement), objectives=objectives)
    assert front.front
    assert bars(barred(order(), front)) == ()


def test_other_loads_and_causal_sessions_are_sent_out_as_they_are() -> None:
    front = seen(trial(1, 4.0, 0.030))
    fixed = dataclasses.replace(order(), load=FixedLoad())
    assert barred(fixed, front) == fixed
    causal = dataclasses.replace(
        order(), workload=dataclasses.replace(order().workload, sessions=Sessions.CAUSAL)
    )
    assert barred(causal, front) == causal
