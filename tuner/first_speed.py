"""Where a trial's search for its capacity begins: one number, from what was measured before it was sent out.

It decides how many replays the search takes and, noise apart, not what it finds. A sampler that knows which
trials were of like configs can do better than `first_speed`, from the same trials.
"""

import statistics
from collections.abc import Iterable
from dataclasses import replace

from cluster.order import CapacityLoad, Order
from tuner.records import StoredTrial


def first_speed(trials: Iterable[StoredTrial]) -> float | None:
    """The median speed at which measured trials had their capacity; None where none had one.

    A trial whose SLO held at no speed tried has a capacity of 0, which is no speed to begin at.
    """
    found = [trial.measurement.value("capacity_speed") for trial in trials if trial.measurement]
    speeds = [speed for speed in found if speed]
    return statistics.median(speeds) if speeds else None


def begun_at(order: Order, speed: float | None) -> Order:
    """The order with this speed to begin at, if it is to find a capacity."""
    match order.load:
        case CapacityLoad():
            return replace(order, load=replace(order.load, guess=speed))
        case _:
            return order
