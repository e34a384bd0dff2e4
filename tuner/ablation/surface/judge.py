"""From the runs that there are to the report of a cost surface: pure, and the same whenever it is asked."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from objectives.alternation import difference
from objectives.break_even import BreakEven, Priced, break_even, constant_acceptance
from objectives.effects import Effect
from objectives.factorial import Cell
from objectives.measurement import Mode
from tuner.ablation.outcomes import PINNED, TITLES
from tuner.ablation.plan import PlannedRun
from tuner.ablation.readings import STEP, effect_report, means, reading, run_report, shown
from tuner.ablation.report import CellState, EffectReport, ProgressReport
from tuner.ablation.run import lost_cells, to_do
from tuner.ablation.setup import setup
from tuner.ablation.surface.plan import NONE, SurfacePlan
from tuner.ablation.surface.report import (
    BreakEvenReport,
    DraftReport,
    SurfaceCellReport,
    SurfaceReport,
)
from tuner.ablation.words import listed
from tuner.bracket import bracket, is_capacity, side_of
from tuner.loads import measured_text, mode
from tuner.records import StoredTrial
from tuner.titles import number, trial_title

TPOT = "tpot_mean_s"


def surface_report(plan: SurfacePlan, finished: Sequence[StoredTrial]) -> SurfaceReport:
    """What the finished runs show."""
    seen = _Seen.of(plan, finished)
    rate = seen.rate()
    metrics = (TPOT, STEP, *(() if rate is None else (rate,)))
    breaking = tuple(_break_even(seen, rate))
    draft = _draft(plan)
    lacking = tuple(seen.unmeasured())
    left = len(to_do(plan, finished))
    return SurfaceReport(
        study=plan.study.name,
        trial=plan.trial.number,
        title=trial_title(plan.trial, plan.study),
        simulated=plan.study.engine == "simulated",
        load=measured_text(plan.study),
        setup=setup(plan, [trial for _, trial in seen.runs]),
        base=plan.base,
        method=str(plan.asked.get("method") or "draft_model"),
        depths=plan.depths,
        acceptances=plan.acceptances,
        progress=ProgressReport(
            planned=len(seen.runs) + left,
            done=len(seen.runs),
            failed=sum(trial.measurement is None for _, trial in seen.runs),
            blocks=plan.replicates,
        ),
        rate=None if rate is None else shown(rate)[0],
        reference=_cell(seen, NONE, ()),
        cells=tuple(_cell(seen, point.cell, metrics) for point in plan.points),
        break_even=breaking,
        draft=draft,
        summary=tuple(_summary(breaking, draft)),
        cannot=tuple(
            f"{plan.name(cell)} has no ratios: {state}{f' ({why})' if why else ''}."
            for cell, state, why in lacking
        ),
        notes=tuple(_notes(seen, rate, left)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The finished runs of a plan."""

    plan: SurfacePlan
    runs: tuple[tuple[PlannedRun, StoredTrial], ...]

    @classmethod
    def of(cls, plan: SurfacePlan, finished: Sequence[StoredTrial]) -> "_Seen":
        planned = {run.number: run for run in plan.runs}
        ordered = sorted(finished, key=lambda trial: trial.number)
        return cls(
            plan=plan,
            runs=tuple((planned[trial.number], trial) for trial in ordered if trial.number in planned),
        )

    def trials(self, cell: Cell) -> list[StoredTrial]:
        return [trial for run, trial in self.runs if run.cell == cell]

    def measured(self) -> list[Cell]:
        return [cell for cell in self.plan.cells if any(one.measurement for one in self.trials(cell))]

    def mean(self, cell: Cell, metric: str) -> float | None:
        values = [
            value
            for one in self.trials(cell)
            if one.measurement is not None and (value := reading(one.measurement, metric)) is not None
        ]
        return statistics.fmean(values) if values else None

    def logs(self, cell: Cell, metric: str) -> dict[int, float]:
        """Mean logarithm by block; what is not positive and finite, or only a bound, is left out."""
        found: dict[int, list[float]] = {}
        for run, trial in self.runs:
            if run.cell != cell or trial.measurement is None or side_of(trial.measurement, metric):
                continue
            value = reading(trial.measurement, metric)
            if value is not None and 0 < value < math.inf:
                found.setdefault(run.block, []).append(math.log(value))
        return {block: statistics.fmean(logs) for block, logs in found.items()}

    def ratio(self, cell: Cell, metric: str) -> EffectReport | None:
        """Against no speculation at both ends of the same block, over blocks."""
        mine, base = self.logs(cell, metric), self.logs(NONE, metric)
        pairs = [mine[block] - base[block] for block in mine if block in base]
        if not pairs:
            return None
        told = difference(pairs)
        return effect_report(
            Effect(ratio=told.ratio, low=told.low, high=told.high), step=self.resolution(metric)
        )

    def resolution(self, metric: str) -> float:
        """Logarithm of the ratio of neighbouring values that a capacity may have; 0: continuous."""
        if not is_capacity(metric):
            return 0.0
        found = [bracket(trial.measurement) for _, trial in self.runs]
        return math.log1p(max((one.resolution or 0.0 for one in found if one is not None), default=0.0))

    def batch(self, metric: str) -> float | None:
        """Mean batch without speculation in the replay that the number is of: a capacity's own, at it."""
        if not is_capacity(metric):
            return self.mean(NONE, "batch_mean")
        found = [bracket(trial.measurement) for trial in self.trials(NONE)]
        points = [one.held for one in found if one is not None and one.held is not None]
        batches = [point.metrics["batch_mean"].value for point in points if "batch_mean" in point.metrics]
        return statistics.fmean(batches) if batches else None

    def rate(self) -> str | None:
        """The rate that the load measures and every cell has; else the first that no speculation has."""
        own = mode(self.plan.study) is Mode.CAPACITY
        metrics = [metric for metric in TITLES if own or not is_capacity(metric)]
        whole = [m for m in metrics if all(self.logs(cell, m) for cell in self.measured())]
        some = [m for m in metrics if self.logs(NONE, m)]
        return next(iter([m for m in whole if m in some] or some), None)

    def pinned(self, rate: str) -> bool:
        """Whether every cell kept up with the offered load, so that its rate is the load's own."""
        if is_capacity(rate) or mode(self.plan.study) is Mode.CLOSED:
            return False
        served = "goodput_rps" if rate == "goodput_rps" else "throughput_rps"
        for cell in self.measured():
            offered, rps = self.mean(cell, "offered_rps"), self.mean(cell, served)
            if not offered or rps is None or rps < PINNED * offered:
                return False
        return True

    def unmeasured(self) -> Iterator[tuple[Cell, CellState, str | None]]:
        """Cells without a measurement: what became of them, and why."""
        lost = lost_cells(self.plan, [trial for _, trial in self.runs])
        measured = self.measured()
        for cell in (NONE, *(point.cell for point in self.plan.points)):
            failed = [one for one in self.trials(cell) if one.cause is not None]
            if cell in self.plan.refused:
                yield cell, "refused beforehand", self.plan.refused[cell]
            elif cell not in measured and (cell in lost or failed):
                told = lost.get(cell) or failed[-1]
                yield cell, "failed", f"{told.cause}: {told.reason}"
            elif cell not in measured:
                yield cell, "not run", None


def _cell(seen: _Seen, cell: Cell, metrics: Sequence[str]) -> SurfaceCellReport:
    point = seen.plan.point(cell)
    lacking = {found: (state, why) for found, state, why in seen.unmeasured()}
    state, why = lacking.get(cell, ("measured", None))
    ratios = {shown(metric)[0]: seen.ratio(cell, metric) for metric in metrics}
    return SurfaceCellReport(
        name=seen.plan.name(cell),
        depth=None if point is None else point.depth,
        acceptance=None if point is None else point.acceptance,
        state=state,
        why=why,
        runs=tuple(run_report(run, trial) for run, trial in seen.runs if run.cell == cell),
        metrics=means(seen.trials(cell)),
        ratios={name: ratio for name, ratio in ratios.items() if ratio is not None},
    )


def _break_even(seen: _Seen, rate: str | None) -> Iterator[BreakEvenReport]:
    judged = [TPOT, *([] if rate is None or seen.pinned(rate) else [rate])]
    batches = {metric: seen.batch(metric) for metric in judged}
    for depth in seen.plan.depths:
        for metric in judged:
            priced = [
                _priced(point.acceptance, ratio, turned=metric != TPOT)
                for point in seen.plan.points
                if point.depth == depth and (ratio := seen.ratio(point.cell, metric)) is not None
            ]
            found = break_even(priced)
            title = TITLES.get(metric, "TPOT")
            tried = [one.acceptance for one in priced]
            yield BreakEvenReport(
                depth=depth,
                metric=shown(metric)[0],
                title=title,
                pays=found.pays,
                acceptance=found.acceptance,
                low=found.low,
                high=found.high,
                batch=batches[metric],
                sentence=_sentence(depth, title, found, tried, batches[metric]),
            )


def _priced(acceptance: float, ratio: EffectReport, *, turned: bool) -> Priced:
    """As a cost: a rate's ratio turned over."""
    if not turned:
        return Priced(acceptance=acceptance, ratio=ratio.ratio, low=ratio.low, high=ratio.high)
    return Priced(
        acceptance=acceptance,
        ratio=1 / ratio.ratio,
        low=1 / ratio.high if ratio.high else None,
        high=1 / ratio.low if ratio.low else None,
    )


def _sentence(depth: int, title: str, found: BreakEven, tried: Sequence[float], batch: float | None) -> str:
    at = "" if batch is None else f", at a batch of {number(batch)} without speculation"
    match found.pays:
        case "from":
            assert found.acceptance is not None
            return f"Depth {depth} breaks even in {title} at an acceptance of {_range(found)}{at}."
        case "at all":
            return f"Depth {depth} pays in {title} at all acceptances tried ({_tried(tried)}){at}."
        case "at none":
            return f"Depth {depth} pays in {title} at none of the acceptances tried ({_tried(tried)}){at}."
        case "cannot tell":
            return f"Depth {depth}: cannot tell from these runs at which acceptance {title} breaks even."


def _range(found: BreakEven) -> str:
    assert found.acceptance is not None
    if found.low is None and found.high is None:
        return f"{found.acceptance:.2f}"
    low, high = ("?" if end is None else f"{end:.2f}" for end in (found.low, found.high))
    return f"{found.acceptance:.2f} ({low} to {high})"


def _tried(acceptances: Sequence[float]) -> str:
    return listed([f"{acceptance:g}" for acceptance in acceptances])


def _draft(plan: SurfacePlan) -> DraftReport | None:
    measurement = plan.trial.measurement
    if measurement is None or not measurement.accepted_per_position:
        return None
    if plan.asked.get("rejection_sample_method") == "synthetic":
        return None
    positions = measurement.accepted_per_position
    return DraftReport(depth=len(positions), per_position=positions, constant=constant_acceptance(positions))


def _summary(breaking: Sequence[BreakEvenReport], draft: DraftReport | None) -> Iterator[str]:
    yield from (one.sentence for one in breaking)
    if draft is None:
        return
    yield (
        f"The trial's own draft, of depth {draft.depth}, accepts "
        f"{', '.join(f'{share:.2f}' for share in draft.per_position)} up to and with each position."
    )
    for one in breaking:
        if one.depth <= draft.depth and one.acceptance is not None:
            alike = constant_acceptance(draft.per_position[: one.depth])
            yield (
                f"To depth {one.depth} that is as many tokens as a constant {alike:.2f}: {_held(alike, one)} "
                f"the break-even of depth {one.depth} in {one.title}."
            )


def _held(acceptance: float, one: BreakEvenReport) -> str:
    """An acceptance against a break-even with its interval."""
    if one.high is not None and acceptance > one.high:
        return "above"
    if one.low is not None and acceptance < one.low:
        return "below"
    return "not to be told from"


def _notes(seen: _Seen, rate: str | None, left: int) -> Iterator[str]:
    plan = seen.plan
    if plan.study.engine == "simulated":
        yield "SIMULATED: nothing here was measured."
    if left:
        yield f"Unfinished: {left} runs are left; the same command goes on."
    yield (
        "Acceptance is synthetic: a draft's token is accepted with this probability, given that those before "
        "it were, whatever it says. Answers are not the model's; nothing is to be read from them."
    )
    yield (
        f"Intervals are 95 %, over {plan.replicates} blocks, each for itself; two blocks make wide ones, and "
        "more --replicates add to what there is. A break-even lies on a straight line between two of those "
        "tried."
    )
    if plan.asked.get("method") in ("ngram", "suffix"):
        yield "Where lookup finds no draft there is none to accept: acceptance is of drafts that were found."
    if mode(plan.study) is Mode.CAPACITY:
        yield (
            "TPOT, steps and batch in the table are of the reference load; a capacity's break-even names the "
            "batch at that capacity."
        )
    if rate is not None and seen.pinned(rate):
        yield f"Every cell kept up with the load, so {TITLES[rate]} is the load's own and says nothing."
    if step := (seen.resolution(rate) if rate else 0.0):
        yield f"Capacity is known in steps of {math.expm1(step):.0%}, which its intervals hold."
    doubted = [str(trial.number) for _, trial in seen.runs if _disagrees(trial)]
    if doubted:
        yield f"Client and engine disagree in run {listed(doubted)}: distrust them."
    bounds = [str(trial.number) for _, trial in seen.runs if side_of(trial.measurement, "capacity_rps")]
    if bounds:
        yield f"The capacity of run {listed(bounds)} is only a bound, so it is in no ratio."


def _disagrees(trial: StoredTrial) -> bool:
    return trial.measurement is not None and bool(trial.measurement.disagreements)
