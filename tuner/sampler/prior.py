"""The prediction that guides a search: the first-order model, asked of a space's configs on its traffic."""

from collections.abc import Mapping, Sequence

import numpy as np

from cluster.node.engine import EngineFailure
from cluster.node.simulation.settings import describe
from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.sessions import Sessions
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from objectives.slo import Slo
from search_spaces.accelerators import Accelerator, accelerator
from search_spaces.deployment import ASSUMED, Deployment, Drafted, Misfit, Reader
from search_spaces.first_order import Array, Traffic, capacity_speed, predicted
from search_spaces.measure import Closed
from search_spaces.model_shape import ModelShape, UnknownShape
from search_spaces.schemes import Scheme
from search_spaces.space import Config, Space
from tuner.sampler.guidance import Foresight, Predict

_LOWEST, _HIGHEST = 0.25, 16.0
"""Bounds of a capacity, times the workload's speed, as `cluster.order.CapacityLoad` has them."""

_PER_GPU = ("capacity_rps", "capacity_tokens_per_s", "goodput_rps", "goodput_tokens_per_s")


def predictor(
    space: Space,
    workload: Workload,
    slo: Slo,
    *,
    device: Accelerator | None = None,
    assumed: Mapping[str, Drafted] = ASSUMED,
) -> Predict | None:
    """The first-order prediction of the space's configs; None where there are no figures for its accelerator.

    Args:
        device: instead of the one that the space names (an H100 where it names none, or the CPU).
        assumed: how drafts fare.
    """
    if device is None:
        named = space.resources.accelerator or ("cpu" if space.resources.gpus == 0 else "H100-80G")
        try:
            device = accelerator(named)
        except ValueError:
            return None
    traffic = traffic_of(workload)
    capacity = any(
        objective.metric.startswith("capacity") for objective in Goal.of(space.objectives).objectives
    )
    reader = Reader(device, _described, assumed)
    # Where a request leaves when another was answered, a faster engine makes a higher rate.
    waits = isinstance(space.measure, Closed) or workload.sessions is Sessions.CAUSAL
    best = {} if waits else _served_at_most(traffic)

    def predict(configs: Sequence[Config]) -> Foresight:
        fits = np.ones(len(configs), dtype=np.bool_)
        deployments: list[Deployment] = []
        known: list[int] = []
        for index, config in enumerate(configs):
            try:
                deployments.append(reader.read(space.settings(config)))
                known.append(index)
            except Misfit:
                fits[index] = False
            except (KeyError, UnknownShape):
                pass  # no figures: nothing is predicted, and it may well run
        told = predicted(deployments, device, traffic, slo)
        if capacity and deployments:
            speed = capacity_speed(deployments, device, traffic, slo, lowest=_LOWEST, highest=_HIGHEST)
            told |= _capacities(speed * workload.speed, workload.speed, traffic)
        ranks = np.array([deployment.ranks for deployment in deployments], dtype=np.float64)
        told |= {f"{name}_per_gpu": told[name] / ranks for name in _PER_GPU if name in told}
        metrics = {}
        for name, values in told.items():
            metrics[name] = np.full(len(configs), np.nan)
            metrics[name][known] = values
        violations = {}
        if "slo_attainment" in metrics:
            violations["slo_attainment"] = slo.attainment - metrics["slo_attainment"]
        return Foresight(metrics=metrics, fits=fits, violations=violations, best=best)

    return predict


def traffic_of(workload: Workload) -> Traffic:
    """The workload's trace as the first-order model takes it, at the workload's speed."""
    requests = workload.trace.requests
    order = np.argsort([request.arrival_s for request in requests], kind="stable")

    def column(values: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.array(values, dtype=np.float64)[order]

    arrivals = column([request.arrival_s for request in requests]) / workload.speed
    return Traffic(
        arrival_s=arrivals - arrivals[0],
        input_tokens=column([request.input_length for request in requests]),
        output_tokens=column([request.output_length for request in requests]),
        shared_tokens=column(shared_tokens(workload.trace)),
    )


def _served_at_most(traffic: Traffic) -> dict[str, float]:
    """No more can be served than comes, and rates count at least the time in which it comes."""
    span_s = float(traffic.arrival_s[-1])
    if span_s == 0:
        return {}
    rate = (len(traffic.arrival_s) - 1) / span_s
    tokens = rate * float(traffic.output_tokens.mean())
    return {
        **dict.fromkeys(("goodput_rps", "throughput_rps"), rate),
        **dict.fromkeys(("goodput_tokens_per_s", "throughput_tokens_per_s"), tokens),
    }


def _capacities(speed: Array, own: float, traffic: Traffic) -> dict[str, Array]:
    """Capacity in its three units, at these speeds of the recorded trace."""
    span = float(traffic.arrival_s[-1]) * own
    rate = speed * (len(traffic.arrival_s) - 1) / span if span else np.full(len(speed), np.nan)
    tokens = float(traffic.output_tokens.mean())
    return {"capacity_speed": speed, "capacity_rps": rate, "capacity_tokens_per_s": rate * tokens}


def _described(model: str) -> tuple[ModelShape, Scheme]:
    try:
        return describe(model)
    except EngineFailure as error:
        raise UnknownShape(str(error)) from error
