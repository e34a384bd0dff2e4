"""What a config is worth on a problem's engine: with the noise of one trial, or without, and then remembered.

The path is that of a study's trial (serve, play, Measurement, losses, violations), short of what a search
does not read: intervals, which cost more than the play, and every metric but three. The values of those are
the ones that `objectives.summary.summarise` gives.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.searching.reality import StrictEngine
from benchmarks.searching.scenarios import Loaded
from cluster.node.engine import EngineFailure
from cluster.order import Cause, Order
from objectives.goal import violations
from objectives.latency import latencies
from objectives.measurement import Estimate, Measurement, Record
from objectives.slo import Slo
from objectives.statistics import quantile
from objectives.steady import steady_window
from search_spaces.arguments import Rendered, render, render_control
from search_spaces.space import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What was measured of a config."""

    losses: tuple[float, ...]
    violation: float
    """At most 0: the SLO holds."""

    @property
    def feasible(self) -> bool:
        return self.violation <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Why there is nothing."""

    cause: Cause
    reason: str


Evaluation = Worth | Crash


class Evaluator:
    """Plays configs of one problem."""

    def __init__(self, loaded: Loaded) -> None:
        problem = loaded.problem
        device = loaded.space.resources.accelerator or ""
        self.loaded = loaded
        self._quiet = StrictEngine(problem.reality.assumptions(device, 0.0))
        self._noisy = StrictEngine(problem.reality.assumptions(device, problem.noise))

    def noisy(self, config: Config, number: int) -> Evaluation:
        """One trial. The same number, the same noise. A config that the space does not allow is a failure."""
        faults = self.loaded.space.faults(config)
        if faults:
            return Crash(cause=Cause.INVALID_ARGUMENT, reason=faults[0])
        return self._play(render(self.loaded.space, config), number, self._noisy)

    def true(self, config: Config) -> Evaluation:
        """Without noise."""
        return self._play(render(self.loaded.space, config), 0, self._quiet)

    def control(self, number: int) -> Evaluation:
        """One trial of the engine's defaults."""
        return self._play(render_control(self.loaded.space), number, self._noisy)

    def _play(self, rendered: Rendered, number: int, engine: StrictEngine) -> Evaluation:
        loaded = self.loaded
        order = Order(
            study="benchmark",
            number=number,
            model=rendered.model,
            arguments=rendered.arguments,
            environment=rendered.environment,
            workload=loaded.workload,
            slo=loaded.slo,
            gpus=rendered.gpus,
            accelerator=loaded.space.resources.accelerator,
        )
        try:
            with tempfile.TemporaryDirectory() as folder, engine.serve(order, Path(folder)) as endpoint:
                records = endpoint.play(order.workload, order.limits).records
        except EngineFailure as failure:
            return Crash(cause=failure.cause, reason=failure.reason)
        measurement = measured(records, loaded.slo)
        return Worth(
            losses=loaded.goal.losses(measurement),
            violation=violations(measurement, loaded.slo)["slo_attainment"],
        )


def measured(records: Sequence[Record], slo: Slo) -> Measurement:
    """SLO attainment, goodput and TPOT p95 of a replay, as `summarise` has them, without intervals."""
    ordered = sorted(records, key=lambda record: (record.due_s, record.request))
    attainment = sum(slo.met_by(record) for record in ordered) / len(ordered)
    values = {
        "slo_attainment": attainment,
        "goodput_rps": attainment * steady_window(ordered).rate(len(ordered)),
        "tpot_p95_s": quantile(latencies(ordered)["tpot"], 0.95),
    }
    return Measurement(
        metrics={name: Estimate(value=value) for name, value in values.items()},
        requests=len(records),
        failed_requests=sum(not record.ok for record in records),
        duration_s=max(record.chunk_s[-1] for record in ordered if record.chunk_s) - ordered[0].due_s,
    )
