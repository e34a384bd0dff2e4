"""Which factors earn their place with all others on, and the config without those that do not."""

import shlex
from collections.abc import Iterator, Sequence

from search_spaces.arguments import to_flags
from search_spaces.settings import Settings
from tuner.ablation.outcomes import Judged, gain
from tuner.ablation.plan import config_of
from tuner.ablation.readings import Readings, effect_report
from tuner.ablation.report import DropReport, EffectReport, Verdict, WithoutReport
from tuner.ablation.words import listed, matters, times
from tuner.records import StoredTrial
from tuner.redaction import redacted_environment, redacted_settings

_Told = tuple[Judged, EffectReport]


def drops(readings: Readings, outcomes: Sequence[Judged]) -> tuple[DropReport, ...]:
    """A verdict on every factor, by what it adds last to all others."""
    return tuple(_verdict(name, outcomes) for name in readings.plan.names)


def _verdict(name: str, outcomes: Sequence[Judged]) -> DropReport:
    seen = [
        (outcome, effect)
        for outcome in outcomes
        if outcome.report.informative and (effect := _in_company(outcome, name)) is not None
    ]
    verdict: Verdict
    if not seen:
        verdict = "cannot tell"
        why = "all on, or all on without it, was not measured, so its effect in company is not known"
    elif any(effect.low is None for _, effect in seen):
        verdict, why = "cannot tell", "no cell was measured twice, so no effect is told from noise"
    else:
        told = [(outcome, effect) for outcome, effect in seen if matters(effect)]
        good = [(outcome, effect) for outcome, effect in told if gain(effect, outcome.report.better)]
        bad = [pair for pair in told if pair not in good]
        if good and bad:
            verdict, why = "trade", f"it helps ({_all(good)}) and harms ({_all(bad)}); which counts is yours"
        elif good:
            verdict, why = "keep", f"with all others on it gives {_all(good)}"
        elif bad:
            verdict, why = "drop", f"with all others on it harms: {_all(bad)}"
        else:
            verdict, why = "drop", f"with all others on no effect of 1 % or more is told: {_all(seen)}"
    return DropReport(factor=name, verdict=verdict, why=why)


def _in_company(outcome: Judged, name: str) -> EffectReport | None:
    return next(factor.in_company for factor in outcome.report.factors if factor.factor == name)


def _all(told: Sequence[_Told]) -> str:
    return listed([f"{outcome.report.title} {times(effect)}" for outcome, effect in told])


def without(
    readings: Readings,
    outcomes: Sequence[Judged],
    verdicts: Sequence[DropReport],
    trials: Sequence[StoredTrial],
    runs: str,
) -> WithoutReport | None:
    """The config without the factors to drop; None where no factor can be judged.

    Args:
        trials: the study's.
        runs: the folder of studies, as commands give it.
    """
    plan, every = readings.plan, readings.every
    if every not in readings.measured or all(one.verdict == "cannot tell" for one in verdicts):
        return None
    dropped = tuple(verdict.factor for verdict in verdicts if verdict.verdict == "drop")
    cell = every - set(dropped)
    settings = plan.settings(cell)
    config = config_of(plan, cell, trials)
    found = _trial(plan.trial, config, dropped, trials)
    if found is None and not cell and not plan.kept:
        found = next((trial for trial in trials if trial.is_control), None)
    return WithoutReport(
        dropped=dropped,
        cell=plan.name(cell) if cell in plan.design.cells else None,
        against_all=dict(_against(readings, outcomes, cell)) if dropped else {},
        config=None if config is None else {**config},
        trial=None if found is None else found.number,
        command=_command(settings),
        next=tuple(_next(readings, cell, found, runs)),
    )


def _trial(
    trial: StoredTrial,
    config: object,
    dropped: Sequence[str],
    trials: Sequence[StoredTrial],
) -> StoredTrial | None:
    if not dropped:
        return trial
    return next((one for one in trials if config is not None and one.config == config), None)


def _against(
    readings: Readings, outcomes: Sequence[Judged], cell: frozenset[str]
) -> Iterator[tuple[str, EffectReport]]:
    for outcome in outcomes:
        found = readings.against(readings.every, outcome.metric).get(cell)
        effect = effect_report(found, step=readings.step(outcome.metric))
        if effect is not None:
            yield outcome.report.metric, effect


def _command(settings: Settings) -> str:
    """The line that serves these settings, secrets left out."""
    variables = [
        f"{name}={shlex.quote(text)}" for name, text in redacted_environment(settings.environment).items()
    ]
    flags = to_flags(redacted_settings(settings.arguments))
    return " ".join([*variables, shlex.join(["vllm", "serve", settings.model, *flags])])


def _next(readings: Readings, cell: frozenset[str], trial: StoredTrial | None, runs: str) -> Iterator[str]:
    study = readings.plan.study
    flag = "" if runs == "runs" else f" --runs {shlex.quote(runs)}"
    if trial is not None and study.engine == "vllm" and trial.measurement is not None:
        yield f"tuner verify {study.name} --trial {trial.number}{flag}"
        yield f"tuner export {study.name} --trial {trial.number} --to vllm --out deploy/{flag}"
    elif trial is None and (mine := readings.trials(cell)):
        yield f"cat {readings.plan.folder / 'trials' / f'{mine[-1].number:04d}' / 'command.txt'}"
