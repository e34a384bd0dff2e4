"""Objectives by name and direction, and goals made of them: measurements turned into losses that minimise."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from objectives.measurement import Estimate, Measurement, Mode
from objectives.metrics import LATENCIES, METRICS, PERCENTILES, STRICT_ABOVE, latency_metric
from objectives.slo import Slo
from objectives.statistics import requests_needed
from search_spaces.measure import CAPACITY_ONLY

QUALITY = ("nll_increase", "agreement")
"""Objectives that no replay measures: they are of what is served, and come with its verdict on quality."""


class GoalError(ValueError):
    """An objective that cannot be searched for. The message is one line that a person can act on."""


class MissingObjective(Exception):
    """A measurement lacks an objective, so its trial cannot be scored.

    Attributes:
        objective: its name.
        metric: the metric's name inside.
        reason: why it is missing, as far as the measurement tells.
    """

    def __init__(self, objective: str, metric: str, reason: str) -> None:
        super().__init__(f"objective {objective!r} was not measured: {reason}")
        self.objective = objective
        self.metric = metric
        self.reason = reason

    def __reduce__(self) -> tuple[type["MissingObjective"], tuple[str, str, str]]:
        return type(self), (self.objective, self.metric, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One number to make better."""

    name: str
    """As a space has it."""
    metric: str
    """The metric's name inside."""
    direction: Literal["maximise", "minimise"]
    description: str
    requests_needed: int = 1
    """Fewest requests of a replay that give it a value."""
    point: int | None = None
    """Of a latency's percentile."""

    def loss(self, value: float) -> float:
        """The value as something to minimise. Its own inverse: the loss of a loss is the value."""
        return -value if self.direction == "maximise" else value


def objective(name: str) -> Objective:
    """Look an objective up.

    Raises:
        GoalError: unknown (with the nearest name), or one that says nothing about a config.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if name.startswith("throughput"):
        tokens = "_tokens" if "token" in name else ""
        raise GoalError(
            f"{name!r} is no objective: a replay leaves at its recorded times, so every config that keeps up "
            f"has the throughput that was offered; use 'capacity{tokens}', the highest rate at which the SLO "
            f"holds, or 'goodput{tokens}', what meets it at one speed (measure: fixed)"
        )
    close = difflib.get_close_matches(name, OBJECTIVES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"objectives are {', '.join(_COMMON)}"
    raise GoalError(f"unknown objective {name!r}; {hint}")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a study searches for. Objectives keep their order; none comes twice."""

    objectives: tuple[Objective, ...]

    def __post_init__(self) -> None:
        if not self.objectives:
            raise GoalError("a goal needs at least one objective, such as 'goodput'")
        names = [objective.name for objective in self.objectives]
        for name in names:
            if names.count(name) > 1:
                raise GoalError(f"objective {name!r} is named twice")

    @classmethod
    def of(cls, names: Sequence[str]) -> "Goal":
        """The goal with these objectives. Raises GoalError for an unknown, useless or repeated name."""
        return cls(tuple(objective(name) for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(objective.name for objective in self.objectives)

    @property
    def percentiles(self) -> tuple[int, ...]:
        """Those of latencies that not every replay measures."""
        points = {objective.point for objective in self.objectives} - {None, *PERCENTILES}
        return tuple(sorted(point for point in points if point is not None))

    def losses(self, measurement: Measurement) -> tuple[float, ...]:
        """One number an objective, less is better. Raises MissingObjective where one was not measured."""
        return tuple(estimate.value for estimate in self.loss_estimates(measurement))

    def loss_estimates(self, measurement: Measurement) -> tuple[Estimate, ...]:
        """The losses with their intervals. Raises MissingObjective where one was not measured."""
        estimates = []
        for wanted in self.objectives:
            estimate = measurement.metrics.get(wanted.metric)
            if estimate is None:
                raise MissingObjective(wanted.name, wanted.metric, _why_missing(wanted, measurement))
            if wanted.direction == "maximise":
                estimate = Estimate(
                    value=-estimate.value,
                    low=None if estimate.high is None else -estimate.high,
                    high=None if estimate.low is None else -estimate.low,
                )
            estimates.append(estimate)
        return tuple(estimates)

    def values(self, losses: Sequence[float]) -> tuple[float, ...]:
        """The metrics' values that these losses stand for; undoes `losses`."""
        return tuple(wanted.loss(loss) for wanted, loss in zip(self.objectives, losses, strict=True))


def violations(measurement: Measurement, slo: Slo) -> dict[str, float]:
    """By how much each limit of the goal is missed; at most 0 is feasible.

    The one limit is on SLO attainment: the share wanted minus the share reached, which is 0 where no
    request was answered. It is that of the measurement's own load: of the workload's speed where a capacity
    was looked for, of the closed loop in one.
    """
    return {"slo_attainment": slo.attainment - (measurement.value("slo_attainment") or 0.0)}


def _why_missing(wanted: Objective, measurement: Measurement) -> str:
    if measurement.failed_requests == measurement.requests:
        return f"none of the {measurement.requests} requests was answered"
    if wanted.name in QUALITY:
        return "the quality of what it serves was not checked"
    if wanted.name in CAPACITY_ONLY:
        if measurement.mode is not Mode.CAPACITY:
            return f"the trial played a {measurement.mode}, and only measure: capacity looks for it"
        return "all requests of the trace are due at once, so it has no rate"
    if wanted.name.endswith("_per_gpu"):
        return "the trial took no GPU"
    if "cost" in wanted.name:
        return "it needs GPUs, their price (resources: gpu_hour_price) and tokens that met the SLO"
    if wanted.name == "tokens_per_joule":
        return "no counter of energy could be read on the node"
    if measurement.requests < wanted.requests_needed:
        return f"it needs {wanted.requests_needed} requests and the replay has {measurement.requests}"
    failed = measurement.failed_requests
    if failed and METRICS[wanted.metric].unit == "s":
        return f"{failed} of {measurement.requests} requests failed, and a failed request is infinitely late"
    if wanted.metric.startswith(("tpot", "itl")):
        return "no request had a token after its first chunk"
    return "the replay has no length in time"


def _all_objectives() -> Mapping[str, Objective]:
    rates = {
        "capacity": "capacity_rps",
        "capacity_tokens": "capacity_tokens_per_s",
        "goodput": "goodput_rps",
        "goodput_tokens": "goodput_tokens_per_s",
        "slo_attainment": "slo_attainment",
        "capacity_per_gpu": "capacity_rps_per_gpu",
        "capacity_tokens_per_gpu": "capacity_tokens_per_s_per_gpu",
        "goodput_per_gpu": "goodput_rps_per_gpu",
        "goodput_tokens_per_gpu": "goodput_tokens_per_s_per_gpu",
        "goodput_per_cost": "goodput_per_cost",
        "tokens_per_joule": "tokens_per_joule",
        "agreement": "agreement",
    }
    found = {
        name: Objective(
            name=name, metric=metric, direction="maximise", description=METRICS[metric].description
        )
        for name, metric in rates.items()
    }
    for name in ("slo_margin", "cost_per_million_tokens", "nll_increase"):
        found[name] = Objective(
            name=name, metric=name, direction="minimise", description=METRICS[name].description
        )
    for latency in LATENCIES:
        for point in (None, *range(1, 100)):
            metric = latency_metric(latency, point)
            name = metric.removesuffix("_s")
            found[name] = Objective(
                name=name,
                metric=metric,
                direction="minimise",
                description=METRICS[metric].description,
                requests_needed=requests_needed(point / 100) if point and point > STRICT_ABOVE else 1,
                point=point,
            )
    return MappingProxyType(found)


OBJECTIVES: Mapping[str, Objective] = _all_objectives()
"""Every objective by its name; latencies at any whole percentile."""

_COMMON = [name for name, wanted in OBJECTIVES.items() if wanted.point in (None, *PERCENTILES)]
