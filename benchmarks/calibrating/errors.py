"""How far the simulated engine is from what was measured."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.calibrating.calibration import Calibration, calibrate
from benchmarks.calibrating.measured import MeasuredConfig, Pool
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import Failed, Order

METRICS: Mapping[str, str] = {
    "throughput_tokens_per_s": "output throughput",
    "goodput_tokens_per_s": "goodput",
    "ttft_p50_s": "TTFT p50",
    "ttft_p95_s": "TTFT p95",
    "tpot_p50_s": "TPOT p50",
    "tpot_p95_s": "TPOT p95",
    "accepted_tokens_per_target_step": "accepted tokens per step",
    "batch_occupancy": "batch occupancy",
    "kv_occupancy": "KV occupancy",
}
"""What is compared, and in what words."""

_OF_DRAFTS = "accepted_tokens_per_target_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One config on the simulated engine."""

    config: MeasuredConfig
    simulated: Mapping[str, float]
    failed: str | None = None
    """Why it has no numbers; None if it has."""

    def ratio(self, metric: str) -> float | None:
        """Simulated over measured: infinite or 0 where one of them alone is 0.

        None where one is unknown, and for tokens a step where nothing is drafted, which are 1 by definition.
        """
        if metric == _OF_DRAFTS and not self.config.first.steps.served.depth:
            return None
        simulated, measured = self.simulated.get(metric), self.config.measured(metric)
        if simulated is None or measured is None:
            return None
        if measured == 0:
            return 1.0 if simulated == 0 else math.inf
        return simulated / measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Of one metric over several configs, as factors: 1.1 is 10 %."""

    configs: int
    """Ratios it is of."""
    median: float
    """Of max(ratio, 1 / ratio)."""
    p90: float
    """90th percentile of the same."""
    bias: float
    """Median ratio, simulated over measured."""


def play(pool: Pool, configs: Sequence[MeasuredConfig], calibration: Calibration | None) -> list[Played]:
    """Play these configs; without a calibration, on the engine as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        return [_play(config, pool.order(config), calibration, Path(folder)) for config in configs]


def _play(config: MeasuredConfig, order: Order, calibration: Calibration | None, folder: Path) -> Played:
    assumptions = Assumptions() if calibration is None else calibration.assumptions
    outcome = run_trial(order, SimulatedEngine(assumptions), folder)
    if isinstance(outcome, Failed):
        return Played(config=config, simulated={}, failed=f"{outcome.cause}: {outcome.reason}")
    metrics = outcome.measurement.metrics
    return Played(config=config, simulated={name: one.value for name, one in metrics.items()})


def errors(played: Sequence[Played]) -> dict[str, Error]:
    """Of each metric that any config has."""
    found = {}
    for metric in METRICS:
        ratios = [ratio for one in played if (ratio := one.ratio(metric)) is not None]
        if ratios:
            found[metric] = _error(ratios)
    return found


def repeatability(configs: Sequence[MeasuredConfig]) -> dict[str, Error]:
    """The same of the real engine against itself: each trial of a config over the mean of its others."""
    found = {}
    for metric in METRICS:
        ratios = [ratio for config in configs for ratio in _against_others(config, metric)]
        if ratios:
            found[metric] = _error(ratios)
    return found


def _against_others(config: MeasuredConfig, metric: str) -> Iterator[float]:
    for run in config.runs:
        others = tuple(other for other in config.runs if other is not run)
        value = run.metrics.get(metric)
        if others and value is not None:
            ratio = Played(config=replace(config, runs=others), simulated={metric: value}).ratio(metric)
            if ratio is not None:
                yield ratio


def _error(ratios: Sequence[float]) -> Error:
    sizes = [max(ratio, 1 / ratio) if ratio > 0 else math.inf for ratio in ratios]
    return Error(
        configs=len(ratios),
        median=_quantile(sizes, 0.5),
        p90=_quantile(sizes, 0.9),
        bias=_quantile(ratios, 0.5),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    """Between two values the upper one where any is infinite, since nothing lies between."""
    method: Literal["linear", "higher"] = "linear" if np.isfinite(values).all() else "higher"
    return float(np.quantile(values, share, method=method))


def over_choices(pool: Pool, count: int, choices: int, seed: int = 0) -> list[dict[str, Error]]:
    """Errors on the others for so many random choices of `count` configs to calibrate on."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(choices):
        places = set(generator.choice(len(pool.configs), size=count, replace=False).tolist())
        chosen = [config for place, config in enumerate(pool.configs) if place in places]
        others = [config for place, config in enumerate(pool.configs) if place not in places]
        found.append(errors(play(pool, others, calibrate(pool, chosen))))
    return found
