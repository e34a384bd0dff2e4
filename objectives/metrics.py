"""Every metric of a measurement: its name inside, its unit, and how people are shown it.

Inside, times are seconds and names end in `_s`; people read milliseconds and names in `_ms`. What each one
means, and when it is left out, is told in docs/measurement.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from objectives.measurement import Estimate, Measurement

Unit = Literal[
    "s",
    "requests/s",
    "tokens/s",
    "share",
    "tokens",
    "bytes",
    "flops",
    "count",
    "ratio",
    "money",
    "requests/money",
    "tokens/J",
    "nats/token",
]

LATENCIES = ("ttft", "tpot", "itl", "e2e")
PERCENTILES = (50, 90, 95, 99)
"""Measured in every replay; others where an objective asks for one."""
STRICT_ABOVE = 95
"""Percentiles above this are left out of a replay with too few requests to bound them, instead of given
without an upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One kind of number."""

    name: str
    """As `Measurement.metrics` has it."""
    unit: Unit
    direction: Literal[1, -1, 0]
    """1: more is better; -1: less is better; 0: neither, it explains."""
    description: str

    @property
    def shown(self) -> str:
        """The name where people read."""
        return f"{self.name.removesuffix('_s')}_ms" if self.unit == "s" else self.name

    @property
    def factor(self) -> float:
        """What a value inside is multiplied by where people read."""
        return 1000.0 if self.unit == "s" else 1.0

    @property
    def shown_unit(self) -> str:
        return "ms" if self.unit == "s" else self.unit

    def show(self, estimate: Estimate) -> Estimate:
        """The estimate in the unit that people read."""
        return Estimate(
            value=estimate.value * self.factor,
            low=None if estimate.low is None else estimate.low * self.factor,
            high=None if estimate.high is None else estimate.high * self.factor,
        )


def latency_metric(latency: str, point: int | None) -> str:
    """Name of a latency's percentile, or of its mean where `point` is None: `ttft_p95_s`, `ttft_mean_s`."""
    return f"{latency}_mean_s" if point is None else f"{latency}_p{point}_s"


_LATENCY_WORDS = {
    "ttft": "time to first token, from the time the request was due",
    "tpot": "time per output token after the first, one mean a request",
    "itl": "gap between output tokens, all requests together",
    "e2e": "time to last token, from the time the request was due",
}

_PLAIN: tuple[tuple[str, Unit, Literal[1, -1, 0], str], ...] = (
    ("capacity_rps", "requests/s", 1, "requests due per second at the highest speed at which the SLO held"),
    ("capacity_tokens_per_s", "tokens/s", 1, "output tokens asked for per second at that speed"),
    ("capacity_speed", "ratio", 1, "that speed: arrival times of the trace were divided by it"),
    ("capacity_rps_per_gpu", "requests/s", 1, "capacity_rps over the trial's GPUs"),
    ("capacity_tokens_per_s_per_gpu", "tokens/s", 1, "capacity_tokens_per_s over the trial's GPUs"),
    ("goodput_rps", "requests/s", 1, "requests that met the SLO, per second"),
    ("goodput_tokens_per_s", "tokens/s", 1, "output tokens of requests that met the SLO, per second"),
    ("goodput_rps_per_gpu", "requests/s", 1, "goodput_rps over the trial's GPUs"),
    ("goodput_tokens_per_s_per_gpu", "tokens/s", 1, "goodput_tokens_per_s over the trial's GPUs"),
    ("goodput_per_cost", "requests/money", 1, "requests that met the SLO for one unit of money"),
    ("cost_per_million_tokens", "money", -1, "a million output tokens at capacity, else of goodput"),
    ("tokens_per_joule", "tokens/J", 1, "output tokens over the energy of the replay that made them"),
    ("nll_increase", "nats/token", -1, "how much less likely the reference's own words are, docs/quality.md"),
    ("agreement", "share", 1, "share of the reference's greedy tokens that are its likeliest too"),
    ("slo_attainment", "share", 1, "share of requests that met every limit of the SLO"),
    ("throughput_rps", "requests/s", 0, "requests answered per second, SLO or not"),
    ("throughput_tokens_per_s", "tokens/s", 0, "output tokens of answered requests per second, SLO or not"),
    ("offered_rps", "requests/s", 0, "requests due per second: what the replay asked for"),
    (
        "slo_margin",
        "ratio",
        -1,
        "the SLO's quantile of each request's worst latency over its limit; 1: it just holds",
    ),
    ("failed_share", "share", -1, "share of requests that failed"),
    ("lateness_p99_s", "s", -1, "how late the client sent, p99: the client's fault, not the engine's"),
    (
        "accepted_tokens_per_target_step",
        "tokens",
        1,
        "output tokens delivered per sequence and target step, first tokens left out; 1 without speculation",
    ),
    (
        "accepted_tokens_per_target_step_counted",
        "tokens",
        1,
        "the same as the engine counts, 1 + accepted / drafts: tokens cut off at the end are in it",
    ),
    ("draft_acceptance", "share", 1, "draft tokens accepted, of those proposed"),
    ("batch_mean", "count", 0, "requests in the batch, mean over the replay"),
    ("batch_occupancy", "share", 0, "batch_mean over max_num_seqs"),
    ("waiting_mean", "count", -1, "requests queued in the engine, mean over the replay"),
    ("kv_occupancy", "share", 0, "KV blocks in use, mean over the replay"),
    ("kv_occupancy_max", "share", 0, "KV blocks in use, largest reading"),
    ("prefix_hit_rate", "share", 1, "prompt tokens taken from the prefix cache"),
    ("prefix_hit_rate_counted", "share", 1, "the same by the engine's counters, of the tokens looked up"),
    ("preemptions", "count", -1, "requests put back for want of KV blocks"),
    ("target_steps", "count", 0, "forward passes of the target model"),
    ("tokens_per_target_step", "tokens", 0, "tokens processed per forward pass, prompts included"),
    ("queue_time_mean_s", "s", -1, "time queued in the engine, mean over answered requests"),
    ("flops_per_token", "flops", -1, "floating-point operations per GPU and output token, prefill included"),
    ("bytes_per_token", "bytes", -1, "bytes read and written per GPU and output token, prefill included"),
)


def _all_metrics() -> Mapping[str, Metric]:
    metrics = [Metric(name=n, unit=u, direction=d, description=words) for n, u, d, words in _PLAIN]
    for latency in LATENCIES:
        for point in (None, *range(1, 100)):
            words = f"{_LATENCY_WORDS[latency]}: {'mean' if point is None else f'p{point}'}"
            name = latency_metric(latency, point)
            metrics.append(Metric(name=name, unit="s", direction=-1, description=words))
    return MappingProxyType({metric.name: metric for metric in metrics})


METRICS: Mapping[str, Metric] = _all_metrics()
"""Every metric by its name inside."""


def published(measurement: Measurement) -> dict[str, Estimate]:
    """The measurement with people's names and units, in the registry's order.

    Values that are not finite are left out, and so are metrics that this version does not know (a study
    made by another version may hold some).
    """
    shown = {}
    for name, metric in METRICS.items():
        estimate = measurement.metrics.get(name)
        if estimate is not None and math.isfinite(estimate.value):
            shown[metric.shown] = metric.show(estimate)
    return shown
