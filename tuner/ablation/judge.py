"""From the runs that there are to the report: pure, and the same whenever it is asked of the same runs."""

import math
from collections.abc import Iterator, Sequence

from cluster.traffic.trace import Trace
from objectives.factorial import Cell
from search_spaces.factors import Change, Factor
from tuner.ablation.answers import answers
from tuner.ablation.outcomes import Judged, judged
from tuner.ablation.plan import Plan
from tuner.ablation.readings import NONE, Readings, cell_reports
from tuner.ablation.report import (
    CellReport,
    DropReport,
    FactorReport,
    OutcomeReport,
    ProgressReport,
    Report,
    SettingReport,
    WithoutReport,
)
from tuner.ablation.run import to_do
from tuner.ablation.setup import setup
from tuner.ablation.verdicts import drops, without
from tuner.ablation.words import listed, term
from tuner.bracket import side_of
from tuner.loads import measured_text
from tuner.records import StoredTrial
from tuner.redaction import redacted
from tuner.titles import number, trial_title

_SLOTS, _BLOCKS = 0.9, 0.95
"""Shares of batch slots (a mean) and of KV blocks (the largest reading) that are called full."""


def report(
    plan: Plan, finished: Sequence[StoredTrial], trials: Sequence[StoredTrial], trace: Trace, runs: str
) -> Report:
    """What the ablation's finished runs show.

    Args:
        trials: the study's.
        runs: the folder of studies, as commands give it.
    """
    readings = Readings.of(plan, finished)
    outcomes = judged(readings)
    verdicts = drops(readings, outcomes)
    cells = tuple(cell_reports(readings))
    rest = without(readings, outcomes, verdicts, trials, runs)
    done = len(readings.runs)
    return Report(
        study=plan.study.name,
        trial=plan.trial.number,
        title=trial_title(plan.trial, plan.study),
        simulated=plan.study.engine == "simulated",
        load=measured_text(plan.study),
        setup=setup(plan, [trial for _, trial in readings.runs]),
        base=plan.base,
        fraction=plan.design.fraction,
        progress=ProgressReport(
            planned=done + len(to_do(plan, finished)),
            done=done,
            failed=sum(trial.measurement is None for _, trial in readings.runs),
            blocks=plan.replicates,
        ),
        factors=tuple(
            FactorReport(name=factor.name, settings=_settings(factor.changes)) for factor in plan.factors
        ),
        same=_settings((*plan.same, *_changes(plan.kept))),
        outcomes=tuple(outcome.report for outcome in outcomes),
        cells=cells,
        summary=tuple(_summary(outcomes, cells, verdicts, rest)),
        drops=verdicts,
        without=rest,
        answers=answers(readings, trace),
        cannot=tuple(_cannot(readings, outcomes)),
        notes=tuple(_notes(readings, outcomes, finished)),
    )


def _settings(changes: Sequence[Change]) -> tuple[SettingReport, ...]:
    return tuple(
        SettingReport(
            setting=change.setting,
            off=redacted(change.off, change.place[-1]),
            on=redacted(change.on, change.place[-1]),
        )
        for change in changes
    )


def _changes(factors: Sequence[Factor]) -> tuple[Change, ...]:
    return tuple(change for factor in factors for change in factor.changes)


def _summary(
    outcomes: Sequence[Judged],
    cells: Sequence[CellReport],
    verdicts: Sequence[DropReport],
    rest: WithoutReport | None,
) -> Iterator[str]:
    informative = [outcome.report for outcome in outcomes if outcome.report.informative]
    yield from (f"{outcome.sentence}." for outcome in informative)
    yield from _contested(informative, cells)
    if rest is not None and rest.dropped:
        yield f"Not worth their place with the others on: {listed(rest.dropped)}."
    elif verdicts and all(verdict.verdict == "keep" for verdict in verdicts):
        yield "Every factor earns its place with all others on."


def _contested(outcomes: Sequence[OutcomeReport], cells: Sequence[CellReport]) -> Iterator[str]:
    """What is full where two factors contend: the only hint at what for that the engine's gauges give."""
    by_factors = {frozenset(cell.on): cell for cell in cells}
    pairs = dict.fromkeys(
        pair.pair for outcome in outcomes for pair in outcome.interactions if pair.contend is True
    )
    unknown = []
    for pair in pairs:
        cell = by_factors.get(frozenset(pair))
        metrics = {} if cell is None else cell.metrics
        slots, blocks = metrics.get("batch_occupancy"), metrics.get("kv_occupancy_max")
        moved = metrics.get("preemptions")
        full = [
            *([f"batch slots ({slots.mean:.0%} in use)"] if slots and slots.mean >= _SLOTS else []),
            *([f"KV blocks (up to {blocks.mean:.0%} in use)"] if blocks and blocks.mean >= _BLOCKS else []),
            *([f"KV blocks ({number(moved.mean)} preemptions)"] if moved and moved.mean > 0 else []),
        ]
        if full:
            yield f"Full with both {listed(pair)} on, and so perhaps what they contend for: {listed(full)}."
        else:
            unknown.append(listed(pair))
    if unknown:
        yield (
            f"What is contended for by {'; by '.join(unknown)} cannot be told: with both on, neither batch "
            "slots nor KV blocks are known to be full."
        )


def _cannot(readings: Readings, outcomes: Sequence[Judged]) -> Iterator[str]:
    plan = readings.plan
    for cell, state, why in readings.unmeasured():
        yield f"Cell {plan.name(cell)} has no measurement: {state}{'' if why is None else f' ({why})'}."
    if NONE not in readings.measured:
        yield f"Without {plan.base} no effect can be told: all are told against it."
        return
    seen: dict[str, None] = {}
    for outcome in outcomes:
        for sentence in _untold(outcome):
            seen.setdefault(sentence)
        missing = _lacking(readings, outcome.metric)
        if missing:
            names = listed([plan.name(cell) for cell in missing])
            seen.setdefault(
                f"{outcome.report.title} was measured in cell {names}, but not as a number above 0 that is "
                "no bound; effects on it do without."
            )
    yield from seen


def _lacking(readings: Readings, metric: str) -> list[Cell]:
    there = {observation.cell for observation in readings.observations(metric)}
    return [cell for cell in readings.measured if cell not in there]


def _untold(outcome: Judged) -> Iterator[str]:
    """What has no estimate for want of cells, not of precision."""
    report = outcome.report
    for kind, values in (
        ("isolated effect", [(factor.factor, factor.isolated) for factor in report.factors]),
        ("effect in company", [(factor.factor, factor.in_company) for factor in report.factors]),
    ):
        lacking = [name for name, effect in values if effect is None]
        if lacking:
            yield f"Cannot be estimated: the {kind} of {listed(lacking)}."
    mixed = [
        *(((factor.factor,), factor.mixed_with) for factor in report.factors if factor.average is None),
        *((pair.pair, pair.mixed_with) for pair in report.interactions if pair.effect is None),
    ]
    if mixed:
        names = listed([term(factors) for factors, _ in mixed])
        yield f"Averages and interactions that these cells cannot tell apart, so not estimated: {names}."
    if report.combination is None:
        yield "Cannot be estimated: all together against the product of the isolated effects."


def _notes(readings: Readings, outcomes: Sequence[Judged], finished: Sequence[StoredTrial]) -> Iterator[str]:
    plan = readings.plan
    if plan.study.engine == "simulated":
        yield "SIMULATED: nothing here was measured."
    left = len(to_do(plan, finished))
    if left:
        yield f"Unfinished: {left} runs are left; the same command goes on."
    yield "Intervals are 95 %, each for itself: of twenty that hold no effect one leaves out 1 by chance."
    for outcome in outcomes:
        if not outcome.report.informative:
            yield (
                f"Every cell kept up with the offered load, so {outcome.report.title} is the load's own and "
                "says nothing; a higher speed, or measuring capacity, would."
            )
    steps = [(outcome, step) for outcome in outcomes if (step := readings.step(outcome.metric))]
    for outcome, step in steps:
        yield (
            f"{outcome.report.title.capitalize()} is known in steps of {math.expm1(step):.0%}, "
            "which its intervals hold beside the noise."
        )
    if plan.design.fraction != "full":
        yield (
            f"A fraction of resolution {plan.design.fraction} was measured: averages and interactions hold a "
            "share of the terms named as their aliases."
        )
    elif len(plan.factors) > 2 and len(readings.measured) < len(plan.design.cells):
        yield (
            "With cells missing, averages and interactions assume that three factors do nothing together "
            "that their pairs do not; their aliases say what of that they hold."
        )
    if plan.kept:
        yield (
            f"None on is {plan.base}, not the control: what else differs from the control "
            f"({listed([factor.name for factor in plan.kept])}) is on in every cell."
        )
    if any(
        change.setting in ("model", "quantization", "kv_cache_dtype") for change in _changes(plan.factors)
    ):
        yield "What fewer bits do to the answers is not measured here."
    yield from _doubts(readings)


def _doubts(readings: Readings) -> Iterator[str]:
    trials = [trial for _, trial in readings.runs]
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    places = {(trial.ran.node, trial.ran.hardware) for trial in trials if trial.measurement is not None}
    if len(places) > 1:
        yield f"Runs were on {len(places)} nodes or kinds of hardware; what differs there is in the noise."
    doubted = [str(trial.number) for trial in trials if trial.measurement and trial.measurement.disagreements]
    if doubted:
        yield f"Client and engine disagree in run {listed(doubted)}: distrust them."
    failing = sum(measurement.failed_requests > 0 for measurement in measured)
    if failing:
        yield f"Requests failed in {failing} of {len(measured)} measured runs."
    bounds = [str(trial.number) for trial in trials if side_of(trial.measurement, "capacity_rps")]
    if bounds:
        yield f"The capacity of run {listed(bounds)} is only a bound, so it is in no effect."
