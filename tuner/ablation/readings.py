"""What the runs of an ablation measured, by cell: means to show, logarithms' observations to judge by."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from objectives.effects import Effect, Effects, Observation, effects
from objectives.factorial import Cell, Design
from objectives.measurement import Measurement
from objectives.metrics import METRICS
from tuner.ablation.plan import Plan, PlannedRun
from tuner.ablation.report import (
    CellReport,
    CellState,
    EffectReport,
    MeanReport,
    RunReport,
)
from tuner.ablation.run import lost_cells
from tuner.bracket import bracket, is_capacity, side_of
from tuner.records import StoredTrial

STEP = "step_s"
"""Time of a target step with its drafts: TPOT mean times accepted tokens per target step."""

NONE: Cell = frozenset()

_Z = 1.96
"""Of a 95 % interval."""

_ALIKE = 1.1
"""Ratio of mean batches up to which the step times of two cells are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The finished runs of a plan."""

    plan: Plan
    runs: tuple[tuple[PlannedRun, StoredTrial], ...]

    @classmethod
    def of(cls, plan: Plan, finished: Iterable[StoredTrial]) -> "Readings":
        planned = {run.number: run for run in plan.runs}
        return cls(
            plan=plan,
            runs=tuple(
                (planned[trial.number], trial)
                for trial in sorted(finished, key=lambda trial: trial.number)
                if trial.number in planned
            ),
        )

    @property
    def every(self) -> Cell:
        return frozenset(self.plan.names)

    @property
    def measured(self) -> tuple[Cell, ...]:
        """Cells with at least one measurement, in the design's order."""
        seen = {run.cell for run, trial in self.runs if trial.measurement}
        return tuple(cell for cell in self.plan.design.cells if cell in seen)

    def trials(self, cell: Cell) -> tuple[StoredTrial, ...]:
        return tuple(trial for run, trial in self.runs if run.cell == cell)

    def mean(self, cell: Cell, metric: str) -> float | None:
        """Of a metric by its name inside, over the cell's runs; None where it was never measured."""
        found = list(_values(self.trials(cell), metric))
        return statistics.fmean(found) if found else None

    def observations(self, metric: str) -> list[Observation]:
        """One a run that measured it; what is not positive, or only a bound, is left out."""
        found = []
        for run, trial in self.runs:
            value = None if trial.measurement is None else reading(trial.measurement, metric)
            if value is not None and value > 0 and not side_of(trial.measurement, metric):
                found.append(Observation(cell=run.cell, block=run.block, value=value))
        return found

    def step(self, metric: str) -> float:
        """Logarithm of the ratio of neighbouring values that the number may have; 0: any.

        A capacity is one of the speeds of its search: the widest bracket that a run was left with.
        """
        if not is_capacity(metric):
            return 0.0
        found = [bracket(trial.measurement) for _, trial in self.runs]
        widths = [one.resolution for one in found if one is not None and one.resolution is not None]
        return math.log1p(max(widths, default=0.0))

    def effects(self, metric: str) -> Effects | None:
        """None where none on has no such number.

        A full design of three factors or more that lost a cell is read as if three factors did nothing
        together that their pairs do not; else no average could be told. The aliases say what that hides.
        """
        seen = self.observations(metric)
        cells = {observation.cell for observation in seen}
        if NONE not in cells:
            return None
        whole = self.plan.design
        if whole.fraction == "full" and len(whole.factors) > 2 and len(cells) < len(whole.cells):
            whole = Design(whole.factors, whole.cells, "V")
        return effects(whole, seen)

    def against(self, base: Cell, metric: str) -> Mapping[Cell, Effect]:
        """Every measured cell against another one than none on; empty where that was not measured.

        To switch what is on in `base` the other way round makes it the cell where none is on.
        """
        seen = [
            Observation(cell=o.cell ^ base, block=o.block, value=o.value) for o in self.observations(metric)
        ]
        if NONE not in {observation.cell for observation in seen}:
            return {}
        whole = self.plan.design
        turned = Design(whole.factors, tuple(cell ^ base for cell in whole.cells), whole.fraction)
        return {cell ^ base: effect for cell, effect in effects(turned, seen).cells.items()}

    def unmeasured(self) -> Iterator[tuple[Cell, CellState, str | None]]:
        """Cells without a measurement: what became of them, and why."""
        lost = lost_cells(self.plan, [trial for _, trial in self.runs])
        for cell in self.plan.design.cells:
            if cell in self.plan.refused:
                yield cell, "refused beforehand", self.plan.refused[cell]
            elif cell in lost:
                yield cell, "failed", f"{lost[cell].cause}: {lost[cell].reason}"
            elif cell not in self.measured:
                told = [trial for trial in self.trials(cell) if trial.cause is not None]
                if told:
                    yield cell, "failed", f"{told[-1].cause}: {told[-1].reason}"
                else:
                    yield cell, "not run", None


def effect_report(
    effect: Effect | None, *, step: float = 0.0, norm: float = math.sqrt(2)
) -> EffectReport | None:
    """The effect for readers; one of a number that is only known in steps has the wider interval it deserves.

    A step's worth of rounding, uniform and the same in every replicate, is in each cell's mean; replicates
    that agree to the step say nothing of it. Its share of the interval adds to the noise's in quadrature.

    Args:
        step: logarithm of the ratio of neighbouring values; 0: the number is continuous.
        norm: root of the sum of squares of the weights that the effect gives to the cells' logarithms.
    """
    if effect is None:
        return None
    if not step or effect.low is None or effect.high is None:
        return EffectReport(ratio=effect.ratio, low=effect.low, high=effect.high, told=effect.told)
    noise = math.log(effect.high / effect.low) / 2
    half = math.hypot(noise, _Z * step / math.sqrt(12) * norm)
    low, high = effect.ratio * math.exp(-half), effect.ratio * math.exp(half)
    return EffectReport(ratio=effect.ratio, low=low, high=high, told=not low <= 1 <= high)


def shown(metric: str) -> tuple[str, float]:
    """A metric's name as people read it, and what its value is multiplied by for that."""
    if metric == STEP:
        return "step_ms", 1000.0
    return METRICS[metric].shown, METRICS[metric].factor


def speculating(plan: Plan) -> str | None:
    """The factor that switches speculation on where the control has none; None where there is no such."""
    for factor in plan.factors:
        inside = [change for change in factor.changes if change.place[1:2] == ("speculative_config",)]
        if inside and all(change.off is None for change in inside):
            return factor.name
    return None


def cell_reports(readings: Readings) -> Iterator[CellReport]:
    """Every cell of the design with all that is known of it."""
    lacking = {cell: (state, why) for cell, state, why in readings.unmeasured()}
    for cell in readings.plan.design.cells:
        state, why = lacking.get(cell, ("measured", None))
        runs = [(run, trial) for run, trial in readings.runs if run.cell == cell]
        yield CellReport(
            name=readings.plan.name(cell),
            on=tuple(name for name in readings.plan.names if name in cell),
            state=state,
            why=why,
            runs=tuple(run_report(run, trial) for run, trial in runs),
            metrics=means([trial for _, trial in runs]),
            accepted_per_position=_positions([trial for _, trial in runs]),
            draft_share=_draft_share(readings, cell),
        )


def run_report(run: PlannedRun, trial: StoredTrial) -> RunReport:
    """One run's place and end."""
    return RunReport(
        number=run.number,
        block=run.block,
        state="failed" if trial.measurement is None else "measured",
        cause=None if trial.cause is None else str(trial.cause),
        reason=trial.reason,
    )


def means(trials: Sequence[StoredTrial]) -> dict[str, MeanReport]:
    """Every metric that was measured, by its name as people read it."""
    found = {}
    for metric in (*METRICS, STEP):
        values = list(_values(trials, metric))
        if values:
            name, factor = shown(metric)
            found[name] = MeanReport(
                mean=statistics.fmean(values) * factor,
                least=min(values) * factor,
                most=max(values) * factor,
                runs=len(values),
            )
    return found


def _values(trials: Iterable[StoredTrial], metric: str) -> Iterator[float]:
    for trial in trials:
        value = None if trial.measurement is None else reading(trial.measurement, metric)
        if value is not None:
            yield value


def reading(measurement: Measurement, metric: str) -> float | None:
    """A metric by its name inside, the time of a step among them; None where it was not measured."""
    if metric != STEP:
        return measurement.value(metric)
    tpot, tokens = measurement.value("tpot_mean_s"), measurement.value("accepted_tokens_per_target_step")
    return None if tpot is None or tokens is None else tpot * tokens


def _positions(trials: Sequence[StoredTrial]) -> tuple[float, ...] | None:
    told = [trial.measurement.accepted_per_position for trial in trials if trial.measurement]
    found = [positions for positions in told if positions]
    if not found or len({len(positions) for positions in found}) > 1:
        return None
    return tuple(statistics.fmean(values) for values in zip(*found, strict=True))


def _draft_share(readings: Readings, cell: Cell) -> float | None:
    name = speculating(readings.plan)
    if name is None or name not in cell:
        return None
    without = cell - {name}
    steps = readings.mean(without, STEP), readings.mean(cell, STEP)
    batches = readings.mean(without, "batch_mean"), readings.mean(cell, "batch_mean")
    if steps[0] is None or not steps[1] or not batches[0] or not batches[1]:
        return None
    if max(batches[0] / batches[1], batches[1] / batches[0]) > _ALIKE:
        return None
    share = 1 - steps[0] / steps[1]
    return share if share > 0 else None
