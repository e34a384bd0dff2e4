"""From what lies in a study's folder to its report. Nothing is measured or drawn here."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from objectives.metrics import METRICS
from search_spaces.values import Json
from tuner.ablation.plan import ABLATIONS, REPORT
from tuner.bracket import bracket, estimate_text, replays
from tuner.chosen import chosen_few
from tuner.curve import SERIES, curve
from tuner.export.launch import launch_of, without_secrets
from tuner.export.refusals import Mark
from tuner.export.vllm import config_yaml, environment_file
from tuner.export.yaml_text import comment_text
from tuner.export_usecases import read_subject
from tuner.front import FrontView, read_view
from tuner.loads import measured_text
from tuner.records import State, StoredTrial
from tuner.remeasure import rivals, stable, times_text
from tuner.report.checks import quality_check, verified_check
from tuner.report.shapes import (
    AblationReport,
    ConfigReport,
    FailureReport,
    LaunchReport,
    NumberReport,
    ObjectiveReport,
    PointReport,
    Report,
    TimeReport,
)
from tuner.titles import config_title, interval, number
from tuner.verify.stored import verifications
from tuner.verify.verification import Verification

_LISTED = 6
"""Numbers in a sentence."""

_SENTENCE = 160
"""Characters of a failure's reason; its trial's folder has all of it."""


def read_report(folder: Path) -> Report:
    """The report of the study in this folder.

    Raises RecordError where that is no study, or a damaged one.
    """
    seen = read_view(folder)
    configs = _configs(seen, folder)
    front = tuple(trial.number for trial in seen.best_first)
    best = None if seen.recommended is None else seen.recommended.number
    return Report(
        study=seen.study.name,
        simulated=seen.study.engine == "simulated",
        summary=tuple(_summary(seen, {config.number: config for config in configs})),
        facts=_facts(seen),
        objectives=_objectives(seen),
        limits=seen.study.slo.limits() | {"slo_attainment": seen.study.slo.attainment},
        configs=configs,
        chosen=chosen_few(seen),
        front=front,
        recommended=best,
        failures=_failures(seen),
        time=_time(seen.trials),
        ablations=tuple(_ablations(folder)),
        launch=_launch(seen, configs, folder),
    )


def _objectives(seen: FrontView) -> tuple[ObjectiveReport, ...]:
    return tuple(
        ObjectiveReport(
            name=objective.name,
            unit=METRICS[objective.metric].shown_unit,
            better="more" if objective.direction == "maximise" else "less",
        )
        for objective in seen.goal.objectives
    )


def _configs(seen: FrontView, folder: Path) -> tuple[ConfigReport, ...]:
    scored = [trial for trial in seen.standing if trial.state is State.MEASURED]
    # By the end of each, so that of several of one config the latest is kept.
    verified = {one.trial: one for one in sorted(verifications(folder), key=lambda one: one.finished)}
    return tuple(_config(seen, verified, trial) for trial in scored)


def _config(seen: FrontView, verified: Mapping[int, Verification], trial: StoredTrial) -> ConfigReport:
    measurement = trial.measurement
    assert measurement is not None  # it has a score
    return ConfigReport(
        number=trial.number,
        title=_title(seen, trial),
        is_control=trial.is_control,
        on_front=trial.number in seen.numbers,
        recommended=seen.recommended is not None and seen.recommended.number == trial.number,
        config=None if trial.config is None else dict(trial.config),
        objectives=_numbers(seen, trial),
        against_control=_against_control(seen, trial),
        measured_again=len(seen.promise(trial.number).fresh),
        alike=_alike(seen, trial.number),
        quality=quality_check(
            seen.checks.verdicts.get(trial.artefact), seen.checks.unchecked.get(trial.artefact)
        ),
        verified=verified_check(verified.get(trial.number)),
        doubts=measurement.disagreements,
        warnings=measurement.warnings,
        curve=_curve(trial),
    )


def _numbers(seen: FrontView, trial: StoredTrial) -> dict[str, NumberReport]:
    values = seen.objective_values(trial)
    return {
        objective.name: NumberReport(
            value=values[objective.name].value,
            low=values[objective.name].low,
            high=values[objective.name].high,
            text=estimate_text(trial.measurement, objective.metric),
        )
        for objective in seen.goal.objectives
    }


def _against_control(seen: FrontView, trial: StoredTrial) -> dict[str, float]:
    control = next((one for one in seen.control if one.state is State.MEASURED), None)
    if control is None or trial.is_control:
        return {}
    base, own = seen.objective_values(control), seen.objective_values(trial)
    return {name: own[name].value / base[name].value for name in own if name in base and base[name].value}


def _alike(seen: FrontView, one: int) -> tuple[int, ...]:
    return tuple(first if second == one else second for first, second in seen.alike if one in (first, second))


def _curve(trial: StoredTrial) -> tuple[PointReport, ...]:
    found = bracket(trial.measurement)
    held = None if found is None else found.held
    points = []
    for replay in curve(trial.measurement):
        shown = {METRICS[name].shown: replay.shown(name) for name in SERIES}
        points.append(
            PointReport(
                rps=replay.rps,
                held=replay.point.held,
                cut=replay.point.cut_s is not None,
                at_capacity=replay.point is held,
                most_met=replay.most_met,
                metrics={
                    name: NumberReport(value=e.value, low=e.low, high=e.high, text=interval(e))
                    for name, e in shown.items()
                    if e is not None
                },
            )
        )
    return tuple(points)


def _summary(seen: FrontView, configs: Mapping[int, ConfigReport]) -> Iterable[str]:
    counts = ", ".join(f"{count} {state}" for state, count in seen.counts.items())
    best = seen.recommended
    if best is None:
        yield f"No trial gave a score ({counts})."
        return
    chosen, aim = configs[best.number], seen.goal.objectives[0]
    unit = METRICS[aim.metric].shown_unit
    own = f"{chosen.objectives[aim.name].text} {unit}"
    if chosen.is_control:
        yield f"No trial beat the engine's defaults on {aim.name}: {own}."
    else:
        beside = ""
        if aim.name in chosen.against_control:
            control = next(config for config in configs.values() if config.is_control)
            times = chosen.against_control[aim.name]
            beside = f", ×{number(times)} of the control's {control.objectives[aim.name].text}"
        yield f"Trial {best.number} is recommended: {aim.name} {own}{beside}. It is {chosen.title}."
        for objective in seen.goal.objectives[1:]:
            ratio = chosen.against_control.get(objective.name)
            told = "" if ratio is None else f", ×{number(ratio)} of the control's"
            shown = METRICS[objective.metric].shown_unit
            yield f"Its {objective.name} is {chosen.objectives[objective.name].text} {shown}{told}."
    yield _sure(seen, chosen)
    if not chosen.is_control:
        yield f"Quality: {chosen.quality.state}, {chosen.quality.words}."
        yield f"Verification: {chosen.verified.state}, {chosen.verified.words}."
    yield f"{len(seen.trials)} trials: {counts}."


def _sure(seen: FrontView, chosen: ConfigReport) -> str:
    times = chosen.measured_again
    again = f"It was measured again {times_text(times)}" if times else "It was measured once"
    others = rivals(seen)
    if not others:
        return f"{again}; by the intervals no other config may be better."
    also = "" if stable(seen) else ", and not all of them were measured again as often"
    return f"{again}; by the intervals {listed(others)} may be as good{also}."


def listed(numbers: Sequence[int]) -> str:
    """`trial 4`, `trials 4, 7 and 12 more`."""
    shown = ", ".join(map(str, numbers[:_LISTED]))
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return f"trial{'' if len(numbers) == 1 else 's'} {shown}{more}"


def _facts(seen: FrontView) -> dict[str, str]:
    study = seen.study
    ran = [trial.ran for trial in seen.trials]
    engines = dict.fromkeys(f"{one.engine} {one.version or ''}".strip() for one in ran if one.engine)
    hardware = dict.fromkeys(one.hardware for one in ran if one.hardware)
    models = dict.fromkeys(trial.model for trial in seen.control or seen.trials)
    limits = ", ".join(
        f"{name.partition('_')[0].upper()} at most {limit:g} ms" for name, limit in study.slo.limits().items()
    )
    aims = ", ".join(f"{o.name} ({o.better} is better)" for o in _objectives(seen))
    facts = {
        "model": ", ".join(models),
        "space": study.space_name,
        "engine": ", ".join(engines) or study.engine,
        "hardware": ", ".join(hardware),
        "traffic": f"{study.trace}, {_figures(study.trace_figures)}".rstrip(", "),
        "measured": measured_text(study),
        "SLO": f"{limits} for {study.slo.attainment:.0%} of requests"
        if limits
        else "none, so every answer counts",
        "objectives": aims,
        "search": f"sampler {study.sampler}, seed {study.seed}, {len(seen.trials)} trials",
        "begun": f"{study.created:%Y-%m-%d %H:%M} UTC",
        "tuner": study.tuner_version,
    }
    return {name: text for name, text in facts.items() if text}


def _figures(figures: Mapping[str, Json]) -> str:
    told = (
        ("requests", "{:g} requests"),
        ("input_mean", "{:.0f} tokens in"),
        ("output_mean", "{:.0f} out on average"),
        ("prefix_share", "{:.0%} of prompt tokens shared"),
    )
    found = [(words, figures.get(name)) for name, words in told]
    return ", ".join(words.format(value) for words, value in found if isinstance(value, int | float))


def _title(seen: FrontView, trial: StoredTrial) -> str:
    return "the engine's defaults" if trial.is_control else config_title(trial.config or {}, seen.study)


def _failures(seen: FrontView) -> tuple[FailureReport, ...]:
    found: dict[str, list[StoredTrial]] = {cause: [] for cause in seen.failures}
    for trial in seen.trials:
        if trial.state is State.UNSCORED:
            found.setdefault("no score", []).append(trial)
        elif trial.cause is not None:
            found[trial.cause.value].append(trial)
    return tuple(
        FailureReport(
            cause=cause,
            trials=tuple(trial.number for trial in trials),
            example=_example(seen, trials[0]),
        )
        for cause, trials in found.items()
    )


def _example(seen: FrontView, trial: StoredTrial) -> str:
    return f"trial {trial.number}, {_title(seen, trial)}: {_cut(trial.reason or 'no reason is known')}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SENTENCE else f"{line[: _SENTENCE - 1]}…"


def _time(trials: Sequence[StoredTrial]) -> TimeReport:
    took = [(trial.finished - trial.started).total_seconds() for trial in trials]
    start, replay = (
        sum(getattr(trial.ran, name) or 0.0 for trial in trials) for name in ("start_s", "replay_s")
    )
    whole = sum(trial.ran.total_s or seconds for trial, seconds in zip(trials, took, strict=True))
    starts = [trial.ran.start_s for trial in trials if trial.ran.start_s is not None]
    totals = [trial.ran.total_s for trial in trials if trial.ran.total_s is not None]
    return TimeReport(
        trials=len(trials),
        start_s=start,
        replay_s=replay,
        rest_s=max(whole - start - replay, 0.0),
        elapsed_s=(max(t.finished for t in trials) - min(t.started for t in trials)).total_seconds()
        if trials
        else None,
        gpu_hours=sum(t.gpus * (t.ran.total_s or s) for t, s in zip(trials, took, strict=True)) / 3600,
        start_median_s=statistics.median(starts) if starts else None,
        trial_median_s=statistics.median(totals) if totals else None,
        replays=replays(trial.measurement for trial in trials).text,
    )


class _Summarised(BaseModel):
    """What is read of an ablation's report.json; the rest of it is the ablation's own page's."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    summary: tuple[str, ...]


def _ablations(folder: Path) -> Iterable[AblationReport]:
    for path in sorted(folder.glob(f"{ABLATIONS}/*/{REPORT}")):
        try:
            found = _Summarised.model_validate_json(path.read_bytes())
        except ValidationError:
            words: tuple[str, ...] = ("its report cannot be read by this version of the tuner",)
        else:
            words = found.summary
        yield AblationReport(name=path.parent.name, summary=words)


def _launch(seen: FrontView, configs: Sequence[ConfigReport], folder: Path) -> LaunchReport | None:
    best = seen.recommended
    if best is None:
        return None
    chosen = next(config for config in configs if config.number == best.number)
    beware = [
        *(
            ["SIMULATED: none of its numbers was measured on an engine"]
            if best.ran.engine == "simulated"
            else []
        ),
        *([] if chosen.measured_again else ["measured once: the best of several is also lucky"]),
        *(
            [f"quality {chosen.quality.state}: {chosen.quality.words}"]
            if chosen.quality.state != "passed"
            else []
        ),
        *(
            [f"verification {chosen.verified.state}: {chosen.verified.words}"]
            if chosen.verified.state != "passed"
            else []
        ),
    ]
    launch = launch_of(read_subject(folder, best.number, tuple(Mark)))
    return LaunchReport(
        trial=best.number,
        yaml=comment_text(beware) + config_yaml(launch.model, without_secrets(launch.arguments)),
        environment=environment_file(launch.environment),
        secrets=tuple(f"{secret.was}, in {secret.variable}" for secret in launch.secrets),
        beware=tuple(beware),
    )
