"""A made-up report of an ablation, from effects that are laid down: what a page is tried on."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from objectives.effects import Effect, Effects, Observation, effects
from objectives.factorial import Cell, Design, Fraction, Term, design
from tuner.ablation.report import (
    AliasReport,
    AnswerReport,
    CellReport,
    DropReport,
    EffectReport,
    FactorEffectReport,
    FactorReport,
    InteractionReport,
    MeanReport,
    OutcomeReport,
    ProgressReport,
    Report,
    RunReport,
    SettingReport,
    SetupReport,
    WithoutReport,
)

FACTORS = ("quantisation", "prefix-cache", "speculation")

_OUTCOMES = (
    # metric, title, unit, at none on, each factor's ratio in turn, what any two do beyond their product
    ("goodput_rps", "goodput", "requests/s", 4.0, (1.4, 1.25, 1.3), 0.85),
    ("ttft_mean_ms", "TTFT mean", "ms", 380.0, (0.8, 0.45, 1.15), 1.0),
    ("tpot_mean_ms", "TPOT mean", "ms", 24.0, (0.7, 1.0, 0.75), 1.1),
    ("e2e_mean_ms", "E2E mean", "ms", 5200.0, (0.72, 0.9, 0.8), 1.1),
)


def report(
    names: Sequence[str] = FACTORS,
    *,
    lost: Iterable[Cell] = (),
    replicates: int = 2,
    simulated: bool = True,
    fraction: Fraction | None = None,
) -> Report:
    """Of any factors; the cells in `lost` have failed at start."""
    whole = design(names, fraction)
    gone = set(lost)
    outcomes = tuple(_outcomes(whole, gone, replicates))
    cells = tuple(_cell(whole, cell, gone, replicates) for cell in whole.cells)
    return Report(
        study="night",
        trial=7,
        title="trial 7 · w4a16 · ngram · depth 3",
        simulated=simulated,
        load="fixed load: speed 1.5, 6 requests/s offered",
        setup=SetupReport(
            model="org/Model-8B",
            engine=("vllm 0.32.0",),
            hardware=("NVIDIA H100",),
            nodes=("node-3",),
            gpus=1,
            traffic=("chat.jsonl (0123456789ab)", "400 requests"),
            slo="TTFT at most 500 ms, for 95% of requests",
            begun="2026-01-02 03:04 UTC",
            ended="2026-01-02 05:06 UTC",
        ),
        base="the control",
        fraction=whole.fraction,
        progress=ProgressReport(planned=18, done=18, failed=len(gone), blocks=replicates),
        factors=tuple(
            FactorReport(
                name=name,
                settings=(SettingReport(setting=f"{name}.setting", off=None, on=f"{name}-on"),),
            )
            for name in names
        ),
        same=(SettingReport(setting="max_num_seqs", off=256, on=64),),
        outcomes=outcomes,
        cells=cells,
        summary=tuple(f"{outcome.sentence}." for outcome in outcomes),
        drops=tuple(DropReport(factor=name, verdict="keep", why="it helps") for name in names),
        without=WithoutReport(
            dropped=(),
            cell="all",
            against_all={},
            config={"quantisation": "w4a16", "speculation.depth": 3},
            trial=7,
            command="vllm serve org/Model-8B-W4A16 --enable-prefix-caching",
            next=("tuner export night --trial 7 --to vllm --out deploy/",),
        ),
        answers=(
            AnswerReport(question="Did quantisation do it?", known=True, answer="Yes: it did."),
            AnswerReport(question="At what batch?", known=False, answer="Cannot tell from these runs: one."),
        ),
        cannot=tuple(
            f"Cell {name(whole, cell)} has no measurement: failed." for cell in sorted(gone, key=len)
        ),
        notes=("SIMULATED: nothing here was measured.",) if simulated else (),
    )


def name(whole: Design, cell: Cell) -> str:
    if not cell:
        return "control"
    return "all" if len(cell) == len(whole.factors) else " + ".join(f for f in whole.factors if f in cell)


def _value(whole: Design, cell: Cell, start: float, alone: Sequence[float], beyond: float) -> float:
    """What is laid down of a cell; factors past the third do nothing."""
    on = [place for place, factor in enumerate(whole.factors) if factor in cell and place < len(alone)]
    pairs = len(list(itertools.combinations(on, 2)))
    return start * math.prod(alone[place] for place in on) * beyond**pairs


def _outcomes(whole: Design, gone: set[Cell], replicates: int) -> Iterator[OutcomeReport]:
    noise = np.random.default_rng(1)
    for metric, title, unit, start, alone, beyond in _OUTCOMES:
        seen = [
            Observation(
                cell=cell,
                block=block,
                value=_value(whole, cell, start, alone, beyond) * math.exp(noise.normal(0, 0.03)),
            )
            for block in range(replicates)
            for cell in whole.cells
            for _ in range(2 if not cell and replicates > 1 else 1)
            if cell not in gone
        ]
        if frozenset() not in gone:
            yield _outcome(whole, metric, title, unit, effects(whole, seen))


def _outcome(whole: Design, metric: str, title: str, unit: str, told: Effects) -> OutcomeReport:
    more = metric.endswith("_rps")
    return OutcomeReport(
        metric=metric,
        title=title,
        unit=unit,
        better="more" if more else "less",
        informative=True,
        cells={name(whole, cell): _known(effect) for cell, effect in told.cells.items() if cell},
        factors=tuple(
            FactorEffectReport(
                factor=factor,
                isolated=_effect(one.isolated),
                in_company=_effect(one.in_company),
                average=_effect(one.average),
                mixed_with=_terms(one.mixed_with),
                aliases=tuple(AliasReport(factors=tuple(sorted(a.term)), share=a.share) for a in one.aliases),
            )
            for factor, one in told.factors.items()
        ),
        interactions=tuple(
            InteractionReport(
                pair=pair.pair,
                effect=_effect(pair.effect),
                contend=(pair.effect.ratio < 1) is more if pair.effect and pair.effect.told else None,
                mixed_with=_terms(pair.mixed_with),
                aliases=tuple(
                    AliasReport(factors=tuple(sorted(a.term)), share=a.share) for a in pair.aliases
                ),
            )
            for pair in told.interactions
        ),
        product=_effect(told.product),
        combination=_effect(told.combination),
        shortfall=_effect(told.shortfall),
        sentence=f"{title}: in words",
        noise=told.noise,
        degrees_of_freedom=told.degrees_of_freedom,
    )


def _cell(whole: Design, cell: Cell, gone: set[Cell], replicates: int) -> CellReport:
    failed = cell in gone
    metrics = {
        metric: _value(whole, cell, start, alone, beyond) for metric, _, _, start, alone, beyond in _OUTCOMES
    } | {
        "accepted_tokens_per_target_step": 2.1 if "speculation" in cell else 1.0,
        "batch_occupancy": 0.6,
        "kv_occupancy": 0.042,
        "step_ms": 21.5,
        "bytes_per_token": 3.21e9,
    }
    reason = "the engine refuses it" if failed else None
    return CellReport(
        name=name(whole, cell),
        on=tuple(factor for factor in whole.factors if factor in cell),
        state="failed" if failed else "measured",
        why=reason,
        runs=tuple(
            RunReport(
                number=10 * whole.cells.index(cell) + block,
                block=block,
                state="failed" if failed else "measured",
                cause="unsupported" if failed else None,
                reason=reason,
            )
            for block in range(1 if failed else replicates)
        ),
        metrics={} if failed else {metric: _mean(value, replicates) for metric, value in metrics.items()},
        accepted_per_position=(0.72, 0.41, 0.2) if "speculation" in cell and not failed else None,
        draft_share=0.17 if "speculation" in cell and not failed else None,
    )


def _mean(value: float, runs: int) -> MeanReport:
    ends = [0.97 * value, 1.03 * value]
    return MeanReport(mean=statistics.fmean(ends), least=ends[0], most=ends[1], runs=runs)


def _known(effect: Effect) -> EffectReport:
    return EffectReport(ratio=effect.ratio, low=effect.low, high=effect.high, told=effect.told)


def _effect(effect: Effect | None) -> EffectReport | None:
    return None if effect is None else _known(effect)


def _terms(terms: Iterable[Term]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(sorted(term)) for term in terms)
