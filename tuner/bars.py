"""What the front has, told to a trial that is sent out, so that it does not look closely for a lost capacity.

Only what is certain counts: the worst ends of the front's intervals. Taken from what lies on disk then, so a
resumed search sends out the same.
"""

from collections.abc import Iterator
from dataclasses import replace

from cluster.order import CapacityLoad, Order
from cluster.traffic.sessions import Sessions
from objectives.bar import Bar, is_capacity, known_before, worst_loss
from tuner.front import FrontView


def barred(order: Order, seen: FrontView) -> Order:
    """The order with the front that its capacity has to reach, if it is to find one and can fall short of it.

    Without one where an objective is known only after the capacity, or hangs on it in another way (cost,
    quality); and with causal sessions, where the same speed is another rate for every config.
    """
    load = order.load
    if not isinstance(load, CapacityLoad) or order.workload.sessions is Sessions.CAUSAL:
        return order
    return replace(order, load=replace(load, bars=tuple(_bars(seen, order.gpus))))


def _bars(seen: FrontView, gpus: int) -> Iterator[Bar]:
    capacities = [wanted for wanted in seen.goal.objectives if is_capacity(wanted)]
    others = [wanted for wanted in seen.goal.objectives if not is_capacity(wanted)]
    if not capacities or not all(map(known_before, others)):
        return
    for trial in seen.front:
        if trial.measurement is None:
            continue
        speed = trial.measurement.metrics.get("capacity_speed")
        losses = {wanted.name: worst_loss(wanted, trial.measurement) for wanted in others}
        known = {name: loss for name, loss in losses.items() if loss is not None}
        if speed is None or not speed.low or len(known) < len(losses):
            continue
        # Per GPU, a trial of half the GPUs is as good at half the speed.
        worth = [gpus / trial.gpus if o.metric.endswith("_per_gpu") else 1.0 for o in capacities]
        yield Bar(trial=trial.number, speed=speed.low * min(worth), losses=known)
