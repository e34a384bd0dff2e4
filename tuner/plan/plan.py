"""What a search of a space on a trace would do. Whatever a user got wrong leaves here as a `Mistake`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cluster.node.engine import EngineFailure
from cluster.node.simulation.settings import describe
from cluster.order import Order
from cluster.traffic.pace import Service
from cluster.traffic.trace import TraceError
from cluster.traffic.workload import Sessions, Workload
from objectives.goal import Goal
from objectives.metrics import METRICS
from search_spaces.accelerators import Accelerator, accelerator
from search_spaces.deployment import Reader
from search_spaces.faults import SpaceError
from search_spaces.load import load_space
from search_spaces.measure import Capacity
from search_spaces.model_shape import ModelShape, UnknownShape
from search_spaces.points import raw_count
from search_spaces.roofline import weight_bytes
from search_spaces.schemes import Scheme
from search_spaces.space import Config, Space
from tuner.loads import measured_text
from tuner.mistakes import Mistake
from tuner.plan.duration import duration_report, past_studies
from tuner.plan.foresee import defaults_of, foreseen_control, foreseen_front, service_of
from tuner.plan.memory import fit_report
from tuner.plan.shapes import FitReport, Foreseen, PlanReport, SpaceSize
from tuner.preflight import check_objectives, check_sessions, check_verdict, goal_of
from tuner.records import StudyFile
from tuner.sampler.pool import drawn
from tuner.sampler.prior import predictor, traffic_of
from tuner.session import DEFAULT_TRIALS, SearchRequest, new_study, orders
from tuner.trace_usecases import shown
from tuner.traffic import study_trace

LOOKED_AT = 1500
"""Configs of a large space that are drawn: shares are known to 3 percentage points then, fronts roughly."""

_SIMULATED = 3
"""Configs that are played to tell how long a trial takes."""


def plan(reference: str, *, trace: str | None, trials: int | None, runs: Path) -> PlanReport:
    """What `tuner search` would do with this space, trace and budget. Nothing runs but a simulation.

    Args:
        reference: a space file, or a shipped one's name.
        trace: instead of the space's own traffic.
        trials: the budget; None: the space's.
        runs: where studies lie that tell how long trials take.

    Raises:
        Mistake: what `tuner search` would refuse beforehand.
    """
    try:
        space = load_space(reference)
        goal = goal_of(space)
        recorded, origin = study_trace(space, trace)
        workload = Workload(
            trace=recorded,
            speed=space.traffic.speed,
            sessions=Sessions(space.traffic.sessions),
            seed=space.traffic.seed,
            tokenizer=space.model,
        )
        study = new_study("plan", SearchRequest(trials=trials), space, goal, workload, origin)
        check_verdict(space, study.slo, recorded)
        check_sessions(space, workload.sessions)
        check_objectives(space, goal, recorded)
    except (SpaceError, TraceError) as error:
        raise Mistake(str(error)) from error
    configs = drawn(space, np.random.default_rng(0), LOOKED_AT)
    count = space.count()
    size = SpaceSize(valid=count.configs, exact=count.exact, points=raw_count(space.parameters))
    device = _device(space)
    fit = _fit(space, configs, device, workload, every=count.exact and count.configs == len(configs))
    control, service, front = _foreseen(space, goal, workload, study, configs)
    budget = trials or space.budget.trials or DEFAULT_TRIALS
    duration = duration_report(
        study,
        past_studies(runs, space),
        _orders(study, space, workload, front),
        trials=min(budget, count.configs + 1) if count.exact and count.configs is not None else budget,
        gpus=_gpus(space, study, workload),
        weights=_weights(space),
    )
    seen = shown(recorded, origin, speed=workload.speed, service=service)
    return PlanReport(
        space=space.name,
        model=space.model,
        measured=measured_text(study),
        objectives=tuple((o.name, METRICS[o.metric].shown_unit) for o in goal.objectives),
        size=size,
        fit=fit,
        control=control,
        front=front,
        duration=duration,
        trace=seen,
        remarks=tuple(_remarks(space, fit, control, front, seen.enough[-1].seconds)),
    )


def plan_json(found: PlanReport) -> dict[str, Any]:
    """As data; units are in the names."""
    took = found.duration
    return asdict(found) | {
        "size": asdict(found.size) | {"valid_share": found.size.valid_share},
        "duration": asdict(took)
        | {"trial_s": took.trial_s, "whole_s": took.whole_s, "gpu_hours": took.gpu_hours},
        "trace": found.trace.to_json(),
    }


def _device(space: Space) -> Accelerator | None:
    """What the space runs on, an H100 where it does not say; None where there are no figures for it."""
    named = space.resources.accelerator or ("cpu" if space.resources.gpus == 0 else "H100-80G")
    try:
        return accelerator(named)
    except ValueError:
        return None


def _described(model: str) -> tuple[ModelShape, Scheme]:
    try:
        return describe(model)
    except EngineFailure as error:
        raise UnknownShape(str(error)) from error


def _fit(
    space: Space, configs: Sequence[Config], device: Accelerator | None, workload: Workload, *, every: bool
) -> FitReport:
    if device is None:
        return FitReport(
            accelerator=None,
            looked_at=len(configs),
            every=every,
            unknown=len(configs),
            misfits=(),
            choices=(),
            short_of_kv=0,
            kv_sequences=None,
        )
    reader = Reader(device, _described)
    return fit_report(space, configs, reader, device, traffic_of(workload), every_config=every)


def _foreseen(
    space: Space, goal: Goal, workload: Workload, study: StudyFile, configs: Sequence[Config]
) -> tuple[Foreseen | None, Service | None, tuple[Foreseen, ...]]:
    """Of the control what is expected and how long its requests take; and the predicted front."""
    predict = predictor(space, workload, study.slo)
    bare, only = defaults_of(space)
    of_control = predictor(bare, workload, study.slo)
    if predict is None or of_control is None or not configs:
        return None, None, ()
    defaults = of_control([only])
    return (
        foreseen_control(goal, defaults),
        service_of(defaults),
        foreseen_front(space, goal, predict, configs),
    )


def _orders(study: StudyFile, space: Space, workload: Workload, front: Sequence[Foreseen]) -> Iterator[Order]:
    """The control and the predicted front's ends."""
    order = orders(study, space, workload, simulated=True)
    yield order(0, None)
    for number, foreseen in enumerate([*front[:1], *front[1:][-1:]][: _SIMULATED - 1], 1):
        if foreseen.config is not None:
            yield order(number, space.config(foreseen.config))


def _gpus(space: Space, study: StudyFile, workload: Workload) -> int:
    return orders(study, space, workload, simulated=True)(0, None).gpus


def _weights(space: Space) -> float | None:
    """Bytes of the model as its checkpoint has them, over the devices of the control."""
    try:
        shape, scheme = _described(space.model)
    except (KeyError, UnknownShape):
        return None
    return weight_bytes(shape, scheme, "bfloat16")


def _remarks(
    space: Space,
    fit: FitReport,
    control: Foreseen | None,
    front: Sequence[Foreseen],
    long_enough_s: float | None,
) -> Iterator[str]:
    lost = sum(misfit.configs for misfit in fit.misfits)
    if fit.accelerator is None:
        yield f"there are no figures for {space.resources.accelerator}: nothing is predicted"
    if lost and lost == fit.looked_at:
        yield "no config is expected to start"
    if long_enough_s is None:
        yield (
            "the trace is too short to tell configs apart that differ by a few per cent: "
            "give it a longer one, or the search will call them alike"
        )
    if isinstance(space.measure, Capacity):
        if control is not None and not control.holds:
            yield (
                "the SLO is not expected to hold with the engine's defaults at speed "
                f"{space.traffic.speed:g}, which all configs are played at: lower traffic.speed, or their "
                "latencies are those of an overload"
            )
    elif control is not None and control.holds:
        yield (
            "the engine's defaults are expected to keep up at this speed, so goodput tells nothing: raise "
            "traffic.speed, or measure capacity"
        )
    if front and control is not None and fit.unknown:
        yield f"of {fit.unknown} of {fit.looked_at} configs nothing is predicted: no figures for a model"
