"""A study held against a newer trace. What a user got wrong leaves here as a `Mistake`; nothing prints."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.order import Order
from cluster.traffic.pace import Service
from cluster.traffic.tokenizer import load_encode
from cluster.traffic.workload import Workload
from objectives.bootstrap import Array
from objectives.front import possibly_on_front
from objectives.metrics import METRICS
from search_spaces.space import Config, Space
from search_spaces.values import Json
from tuner.ablation.report import report_json
from tuner.ablation.traffic import same_traffic
from tuner.bracket import estimate_text
from tuner.chosen import chosen_few
from tuner.drift.compare import changes, comparable, distances, moved
from tuner.drift.measure import DRIFT, Run, measure, planned
from tuner.drift.outlook import chances
from tuner.drift.shapes import Change, DriftReport, Outlook, Remeasured, Verdict
from tuner.events import Event
from tuner.front import FrontView, losses, read_view, view
from tuner.mistakes import Mistake
from tuner.plan.foresee import defaults_of, service_of
from tuner.preflight import check_room, check_verdict
from tuner.records import State, StoredTrial, StudyFile, read_study, read_trials
from tuner.sampler.guidance import Foresight
from tuner.sampler.prior import predictor
from tuner.session import SearchRequest, orders, trace_figures
from tuner.studies import study_folder
from tuner.titles import config_title, number
from tuner.traffic import study_trace
from tuner.usecases import dispatch_for, search, users_mistakes

OFF = 0.5
"""Chance of being dominated from which on a config is said to have moved off the front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRequest:
    """What `tuner drift` was asked."""

    study: str | None
    trace: str
    trial: int | None = None
    """The chosen config; None: what the study recommends."""
    measure: bool = False
    """Whether to measure the front's few points on the new trace."""
    address: str | None = None
    runs: Path = Path("runs")


def drift(asked: DriftRequest, say: Callable[[str], None]) -> DriftReport:
    """What has changed, and whether the chosen config still stands.

    Args:
        say: told what runs, where something is measured.

    Raises:
        Mistake: the study, its own trace or the new one cannot be had, or there is nothing to compare.
    """
    with users_mistakes():
        folder = study_folder(asked.study, asked.runs)
        seen = read_view(folder)
        space, workload = same_traffic(seen.study)
        trace, _ = study_trace(space, asked.trace)
        for side, origin in ((workload.trace, f"the trace of study {seen.study.name}"), (trace, asked.trace)):
            if not comparable(side):
                raise Mistake(f"{origin} has too few requests to be compared, or all of them at once")
        chosen = _chosen(seen, asked.trial)
        today = replace(workload, trace=trace)
        outlook, service, notes = _outlook(seen, space, workload, today, chosen)
        found = changes(workload.trace, trace, service=service)
        apart = distances(workload.trace, trace)
        remeasured = _remeasured(asked, folder, seen, space, today, chosen, say) if asked.measure else ()
    rate = trace_figures(trace)["rate"]
    rate_rps = float(rate) if isinstance(rate, int | float) else None
    own = next((one for one in outlook if one.chosen), None)
    capacity = _capacity(seen, own)
    verdict, why = _verdict(found, moved(found, apart), own, capacity, rate_rps, remeasured)
    return DriftReport(
        study=seen.study.name,
        simulated=seen.study.engine == "simulated",
        trial=chosen.number,
        title=_title(seen.study, chosen),
        trace=asked.trace,
        changes=found,
        distances=apart,
        outlook=outlook,
        capacity_rps=capacity,
        rate_rps=rate_rps,
        remeasured=remeasured,
        verdict=verdict,
        why=why,
        next=_next(seen.study, asked),
        notes=notes,
    )


def drift_json(found: DriftReport) -> dict[str, Json]:
    """As JSON takes it: what is not finite is null."""
    return report_json(found) | {"verdict": found.verdict.name.lower(), "retune": found.verdict.retune}


def retune(asked: DriftRequest, show: Callable[[Event | str], None]) -> str:
    """Search the study's space on the new trace, warm-started from the study; the new study's name.

    Args:
        show: given every event of the search.

    Raises:
        Mistake: what `tuner search` would refuse.
    """
    with users_mistakes():
        study = read_study(study_folder(asked.study, asked.runs))
    request = SearchRequest(
        space=str(study.options.get("space")),
        trace=asked.trace,
        warm_from=study.name,
        engine=study.engine,
        address=asked.address,
        runs=asked.runs,
    )
    return search(request, show).view.study.name


def _chosen(seen: FrontView, asked: int | None) -> StoredTrial:
    scored = {trial.number: trial for trial in seen.standing if losses(seen.goal, trial) is not None}
    if asked is None:
        if seen.recommended is None:
            raise Mistake(f"study {seen.study.name} has no trial with a score, so nothing was chosen")
        return seen.recommended
    first = next((t.repeats for t in seen.trials if t.number == asked and t.repeats is not None), asked)
    if first not in scored:
        known = ", ".join(map(str, scored)) or "none"
        raise Mistake(f"study {seen.study.name} has no trial {asked} with a score; there are {known}")
    return scored[first]


def _title(study: StudyFile, trial: StoredTrial) -> str:
    return "the engine's defaults" if trial.is_control else config_title(trial.config or {}, study)


def _outlook(
    seen: FrontView, space: Space, before: Workload, now: Workload, chosen: StoredTrial
) -> tuple[tuple[Outlook, ...], tuple[Service, Service] | None, tuple[str, ...]]:
    """What is expected of every measured config, shown of the front and the control; how long the chosen
    one's requests are expected to take, then and now; and what a reader must know of it."""
    rivals = [trial for trial in seen.standing if losses(seen.goal, trial) is not None]
    told = [_foresight(seen, space, workload, rivals) for workload in (before, now)]
    if told[0] is None or told[1] is None:
        return (), None, ("there are no figures for the accelerator or the model: nothing is predicted",)
    metrics = [objective.metric for objective in seen.goal.objectives]
    if not all(metric in one for one in told if one is not None for metric in metrics):
        return (), None, ("an objective is not predicted by the first-order model",)
    old, new = (np.array([one[metric] for metric in metrics]).T for one in told if one is not None)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = new / old
    usable = np.isfinite(ratios).all(axis=1) & (ratios > 0).all(axis=1)
    place = rivals.index(chosen)
    if not usable[place]:
        return (), None, ("nothing is predicted of the chosen config",)
    kept = [one for one, use in zip(rivals, usable, strict=True) if use]
    ratios = ratios[usable]
    rows = [seen.goal.loss_estimates(one.measurement) for one in kept if one.measurement is not None]
    chance = chances(rows, ratios)
    shown = {chosen.number, *seen.numbers, *(trial.number for trial in seen.control)}
    found = []
    for index, trial in enumerate(kept):
        if trial.number not in shown:
            continue
        values = {name: estimate.value for name, estimate in seen.objective_values(trial).items()}
        found.append(
            Outlook(
                number=trial.number,
                title=_title(seen.study, trial),
                is_control=trial.is_control,
                chosen=trial.number == chosen.number,
                measured=values,
                expected={
                    name: values[name] * float(ratios[index, column])
                    for column, name in enumerate(seen.goal.names)
                },
                off_front=float(chance.now[index]),
                off_front_before=float(chance.before[index]),
            )
        )
    service = tuple(_service(one, place) for one in told if one is not None)
    lost = len(rivals) - len(kept)
    notes = (f"of {lost} measured configs nothing is predicted, so they are left out",) if lost else ()
    pair = (service[0], service[1]) if service[0] is not None and service[1] is not None else None
    return tuple(sorted(found, key=lambda one: (not one.chosen, one.number))), pair, notes


def _foresight(
    seen: FrontView, space: Space, workload: Workload, trials: Sequence[StoredTrial]
) -> Mapping[str, Array] | None:
    """What is predicted of each trial, by metric; NaN where nothing is."""
    bare, defaults = defaults_of(space)
    of_space, of_control = (predictor(one, workload, seen.study.slo) for one in (space, bare))
    if of_space is None or of_control is None:
        return None
    parts: list[Foresight] = []
    for trial in trials:
        control = trial.is_control or trial.config is None
        config = defaults if control else Config(dict(trial.config or {}))
        parts.append((of_control if control else of_space)([config]))
    names = {name for part in parts for name in part.metrics}
    nothing = np.full(1, np.nan)
    return {name: np.array([part.metrics.get(name, nothing)[0] for part in parts]) for name in names}


def _service(told: Mapping[str, Array], place: int) -> Service | None:
    metrics = {name: values[place : place + 1] for name, values in told.items()}
    return service_of(Foresight(metrics=metrics, fits=np.ones(1, dtype=np.bool_)))


def _capacity(seen: FrontView, own: Outlook | None) -> float | None:
    """Of the chosen config on the new traffic, in requests per second."""
    for objective in seen.goal.objectives:
        if objective.metric == "capacity_rps" and own is not None:
            return own.expected[objective.name] / METRICS[objective.metric].factor
    return None


def _verdict(
    found: Sequence[Change],
    has_moved: bool,
    own: Outlook | None,
    capacity: float | None,
    rate: float | None,
    remeasured: Sequence[Remeasured],
) -> tuple[Verdict, str]:
    measured = next((one for one in remeasured if one.chosen), None)
    if measured is not None:
        if measured.failed is not None:
            return Verdict.MOVED, f"measured on the new traffic it failed: {measured.failed}"
        if measured.ruled_out:
            return Verdict.MOVED, "measured on the new traffic, another config dominates it beyond the noise"
    if capacity is not None and rate is not None and capacity < rate:
        return Verdict.OVERLOADED, (
            f"it is expected to serve {number(capacity)} requests/s within the SLO, and {number(rate)} come"
        )
    if measured is not None:
        where = "is on the front" if measured.on_front else "is not told from the front"
        state = Verdict.STANDS if has_moved else Verdict.STEADY
        return state, f"measured on the new traffic, it {where}"
    names = ", ".join(change.name for change in found if change.matters)
    if not has_moved:
        return Verdict.STEADY, "no property has changed by more than chance and by enough to matter"
    what = f"changed: {names}" if names else "the distributions of lengths or gaps have changed"
    if own is None:
        return Verdict.STANDS, f"{what}; nothing can be predicted of the config, so measure: --measure"
    if own.off_front >= OFF:
        return Verdict.MOVED, f"{what}; chance of being dominated {own.off_front:.0%}, {_was(own)}"
    return Verdict.STANDS, f"{what}; chance of being dominated {own.off_front:.0%}, {_was(own)}"


def _was(own: Outlook) -> str:
    return f"by noise alone on the old traffic {own.off_front_before:.0%}"


def _remeasured(
    asked: DriftRequest,
    folder: Path,
    seen: FrontView,
    space: Space,
    today: Workload,
    chosen: StoredTrial,
    say: Callable[[str], None],
) -> tuple[Remeasured, ...]:
    """The control, the chosen config and a few of the front on the new trace, side by side."""
    check_verdict(space, seen.study.slo, today.trace)
    few = dict.fromkeys([*chosen_few(seen), chosen.number])
    configs = [trial for one in few for trial in seen.standing if trial.number == one]
    simulated = seen.study.engine == "simulated"
    study = replace(
        seen.study,
        trace=asked.trace,
        trace_digest=today.trace.digest,
        trace_figures=trace_figures(today.trace),
    )
    make = orders(study, space, today, simulated=simulated)
    place = folder / DRIFT / today.trace.digest[:12]
    runs = planned(configs)

    def order_of(run: Run) -> Order:
        trial = run.config
        control = trial.is_control or trial.config is None
        return make(run.number, None if control else space.config(dict(trial.config or {})))

    done = {trial.number for trial in read_trials(place)}
    if any(run.number not in done for run in runs):
        with dispatch_for(seen.study.engine, asked.address) as dispatch:
            check_room(make(0, None), dispatch, space)
            if not simulated:
                load_encode(today.tokenizer)
            measure(place, runs, order_of, dispatch, say)
    return judged(view(study, read_trials(place), seen.checks), configs, chosen.number)


def judged(seen: FrontView, configs: Sequence[StoredTrial], chosen: int) -> tuple[Remeasured, ...]:
    """What the runs show of each config.

    Args:
        seen: of the runs; a config's first run has its place among `configs` as number.
    """
    standing = {trial.number: trial for trial in seen.standing}
    rows = [
        seen.goal.loss_estimates(t.measurement) if t.measurement and losses(seen.goal, t) else None
        for t in standing.values()
    ]
    possible = dict(zip(standing, possibly_on_front(rows).tolist(), strict=True))
    found = []
    for place, config in enumerate(configs):
        trial = standing[place]
        measured = trial.state is State.MEASURED
        found.append(
            Remeasured(
                number=config.number,
                title=_title(seen.study, config),
                is_control=config.is_control,
                chosen=config.number == chosen,
                objectives={
                    objective.name: estimate_text(trial.measurement, objective.metric)
                    for objective in seen.goal.objectives
                }
                if measured
                else {},
                on_front=place in seen.numbers,
                ruled_out=measured and not possible[place],
                failed=None if measured else trial.reason or "no reason is known",
            )
        )
    return tuple(found)


def _next(study: StudyFile, asked: DriftRequest) -> str:
    """The command that tunes again."""
    space = str(study.options.get("space", "SPACE"))
    words = ["tuner", "search", "--space", space, "--trace", asked.trace, "--warm-from", study.name]
    if study.engine == "simulated":
        words += ["--engine", "simulated"]
    if asked.runs != Path("runs"):
        words += ["--runs", str(asked.runs)]
    return shlex.join(words)
