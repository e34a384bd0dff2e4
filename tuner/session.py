"""From what `tuner search` was asked to a study and its orders: a new one, or one that goes on."""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cluster.node.secrecy import HIDDEN
from cluster.order import CapacityLoad, ClosedLoop, FixedLoad, Load, Order
from cluster.traffic.show import figures
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Sessions, Workload
from objectives.goal import Goal
from objectives.slo import Slo
from search_spaces.arguments import render, render_control
from search_spaces.faults import SpaceError
from search_spaces.load import load_space, parse_space
from search_spaces.measure import (
    CAPACITY_ONLY,
    Capacity,
    Closed,
    Fixed,
    Measure,
    measure_from,
    measured_as,
    unmeasured,
    word_of,
)
from search_spaces.space import Config, Space
from search_spaces.values import Json
from tuner import __version__
from tuner.mistakes import Mistake
from tuner.models import localised
from tuner.records import STUDY, RecordError, StudyFile, read_study
from tuner.redaction import without_passwords
from tuner.studies import study_folder
from tuner.study import LOCK

DEFAULT_SAMPLER = "ehvi"
DEFAULT_TRIALS = 40

_SAME = ("sampler", "seed", "engine", "trace", "speed", "sessions", "measure", "storage", "warm_from")
"""What a resumed study must be asked as it was begun, or not asked at all."""

_STUDY_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_RESERVED = ("models", "mlartifacts", "service")
"""Folders under the runs folder that are not studies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What `tuner search` was asked. None leaves a choice to the space, or to the study that is resumed."""

    space: str | None = None
    """May be left out of a study that is resumed: it has its own."""
    trials: int | None = None
    """Finished trials in all, the control included."""
    stop_when_stable: bool = False
    """End before that once neither the front nor the recommendation changes."""
    name: str | None = None
    resume: bool = False
    sampler: str | None = None
    seed: int | None = None
    trace: str | None = None
    speed: float | None = None
    sessions: str | None = None
    """"recorded" or "causal"."""
    measure: str | None = None
    """"capacity", "fixed" or "closed:16"; settings of the kind are the space's."""
    engine: str | None = None
    """"vllm" or "simulated"."""
    address: str | None = None
    """Of a Ray cluster; None: a Ray of this machine's own."""
    storage: str | None = None
    tracking_uri: str | None = None
    warm_from: str | None = None
    """An earlier study, whose best configs are tried first."""
    runs: Path = Path("runs")


def new_folder(asked: SearchRequest, space: Space) -> Path:
    """Where a new study goes. Raises Mistake for a name that cannot be one, or is taken."""
    name = f"{space.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}" if asked.name is None else asked.name
    if not _STUDY_NAME.fullmatch(name):
        raise Mistake(f"--study {name!r} must be letters, digits, dots, dashes and underscores")
    folder = asked.runs / name
    if (folder / STUDY).exists():
        raise Mistake(f"study {name} exists under {asked.runs}; add --resume to go on with it")
    taken = folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK})
    if taken or name in _RESERVED:
        raise Mistake(f"{folder} is no study's; give the search another --study")
    return folder


def resumed(asked: SearchRequest) -> tuple[SearchRequest, StudyFile, Space]:
    """The study to go on with, its own space, and the request with what the study was begun with.

    Raises:
        Mistake: there is no such study, or something is asked otherwise than it was begun.
        RecordError: the study cannot be read.
    """
    before = read_study(study_folder(asked.name, asked.runs))
    space = parse_space(before.space_text, str(before.options["space"]))
    if asked.space is not None and replace(load_space(asked.space), source=space.source) != space:
        raise Mistake(
            f"study {before.name} searched another space than {asked.space} is now; "
            "leave --space out to go on, or give the changed space another --study"
        )
    space = replace(space, measure=_measure_of(before))
    was: dict[str, Json] = {
        "sampler": before.sampler,
        "seed": before.seed,
        "engine": before.engine,
        "sessions": Sessions.RECORDED.value,  # of studies from when there was nothing else
        "warm_from": None,
        **before.options,
        "measure": word_of(space.measure),
    }
    for name in _SAME:
        wanted = getattr(asked, name)
        if isinstance(wanted, str):
            wanted = without_passwords(wanted)
        if wanted is not None and wanted != was[name]:
            raise Mistake(
                f"study {before.name} was begun with {name} {was[name]}, not {wanted}; "
                "leave it out, or give the new search another --study"
            )
    kept = {
        name: was[name] if getattr(asked, name) is None else getattr(asked, name)
        for name in (*_SAME, "trials", "tracking_uri")
    }
    for name in ("storage", "tracking_uri"):
        if HIDDEN in str(kept[name]):
            raise Mistake(
                f"study {before.name} was begun with --{name.replace('_', '-')} {kept[name]}; "
                "its password was not written down, so give it again"
            )
    return replace(asked, name=before.name, **kept), before, space  # type: ignore[arg-type]


def measured_so(space: Space, word: str | None) -> Space:
    """The space with what `--measure` says instead of its own; its objectives follow where it names none.

    Raises Mistake for a word that says nothing, and where an objective that the space names is not measured.
    """
    if word is None:
        return space
    try:
        measure = measured_as(space.measure, word)
    except ValueError as error:
        raise Mistake(f"--measure {error}") from error
    lost = unmeasured(space.named_objectives, measure)
    if lost:
        raise Mistake(
            f"--measure {word} does not measure {lost[0]!r}, an objective of {space.source}; name "
            f"{CAPACITY_ONLY[lost[0]]} there instead, or leave its objectives out"
        )
    return replace(space, measure=measure)


def _measure_of(study: StudyFile) -> Measure:
    """What its trials measure: one load, in a study that was begun when there was nothing else."""
    kept = study.options.get("measure", {"kind": "fixed"})
    try:
        return measure_from(kept if isinstance(kept, dict) else {"kind": kept})
    except ValueError as error:
        raise RecordError(f"study {study.name} cannot go on: its {STUDY} says {error}") from error


def new_study(
    name: str,
    asked: SearchRequest,
    space: Space,
    goal: Goal,
    workload: Workload,
    origin: str,
    first: Sequence[Config] = (),
) -> StudyFile:
    """A study as it is begun; `origin`: where its trace came from, in words; `first`: what it tries first."""
    return StudyFile(
        name=name,
        id=uuid.uuid4().hex,
        space_name=space.name,
        space_text=space.text,
        trace=origin,
        trace_digest=workload.trace.digest,
        trace_figures=trace_figures(workload.trace),
        objectives=goal.names,
        slo=Slo.from_limits(space.slo),
        sampler=asked.sampler or DEFAULT_SAMPLER,
        seed=asked.seed or 0,
        engine=asked.engine or "vllm",
        created=datetime.now(UTC),
        tuner_version=__version__,
        options={
            "space": space.source,
            "trials": asked.trials,
            "trace": asked.trace,
            "speed": workload.speed,
            "sessions": workload.sessions.value,
            "measure": space.measure.model_dump(mode="json"),
            "quality": space.quality.model_dump(mode="json"),
            "storage": asked.storage,
            "tracking_uri": asked.tracking_uri,
            "warm_from": asked.warm_from,
            "first": [dict(config.values) for config in first],
        },
    )


def first_of(study: StudyFile, space: Space) -> tuple[Config, ...]:
    """What the study tries first. Raises RecordError where that is no longer of its space."""
    kept = study.options.get("first", [])
    try:
        return tuple(space.config(values) for values in kept)  # type: ignore[union-attr, arg-type]
    except (SpaceError, TypeError) as error:
        raise RecordError(f"study {study.name} cannot go on: its {STUDY} says of `first`: {error}") from error


def orders(
    study: StudyFile, space: Space, workload: Workload, *, simulated: bool
) -> Callable[[int, Config | None], Order]:
    """The order of a trial's number and config; None: the control."""

    def order(number: int, config: Config | None) -> Order:
        rendered = render_control(space) if config is None else render(space, config)
        if not simulated:
            rendered = localised(rendered)
        return Order(
            study=study.name,
            number=number,
            model=rendered.model,
            arguments=rendered.arguments,
            environment=rendered.environment,
            workload=workload,
            slo=study.slo,
            load=load_of(space.measure),
            gpus=rendered.gpus,
            cpus=space.resources.cpus,
            accelerator=space.resources.accelerator if rendered.gpus else None,
            percentiles=Goal.of(study.objectives).percentiles,
            gpu_hour_price=space.resources.gpu_hour_price,
            trust_remote_code=space.trust_remote_code,
        )

    return order


def load_of(measure: Measure) -> Load:
    """What a node is told to play."""
    match measure:
        case Capacity():
            return CapacityLoad(
                resolution=measure.resolution,
                lowest=measure.lowest,
                highest=measure.highest,
                repeats=measure.repeats,
            )
        case Fixed():
            return FixedLoad(repeats=measure.repeats)
        case Closed():
            return ClosedLoop(concurrency=measure.concurrency)


def trace_figures(trace: Trace) -> dict[str, Json]:
    seen = figures(trace)
    return {
        "requests": seen.requests,
        "duration_s": round(seen.duration_s, 3),
        "rate": seen.rate,
        "input_mean": seen.input_length.mean,
        "output_mean": seen.output_length.mean,
        "prefix_share": seen.prefix_share,
        "sessions": seen.sessions,
    }


def trace_words(trace: Trace) -> str:
    seen = figures(trace)
    return (
        f"{seen.requests} requests over {seen.duration_s:.0f} s, "
        f"{seen.input_length.mean:.0f} tokens in and {seen.output_length.mean:.0f} out on average, "
        f"{seen.prefix_share:.0%} of prompts shared"
    )
