"""From what `tuner search` was asked to a study and its orders: a new one, or one that goes on."""

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cluster.order import Order
from cluster.traffic.show import figures
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from objectives.slo import Slo
from search_spaces.arguments import render, render_control
from search_spaces.space import Config, Space
from search_spaces.values import Json
from tuner import __version__
from tuner.mistakes import Mistake
from tuner.models import localised
from tuner.records import STUDY, StudyFile, read_study
from tuner.studies import study_folder

DEFAULT_SAMPLER = "tpe"
DEFAULT_TRIALS = 40

_OPTIONS = ("trace", "speed")
"""What a study keeps of the request under `StudyFile.options`."""

_STUDY_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What `tuner search` was asked. None leaves a choice to the space, or to the study that is resumed."""

    space: str
    trials: int | None = None
    """Finished trials in all, the control included."""
    name: str | None = None
    resume: bool = False
    sampler: str | None = None
    seed: int | None = None
    trace: str | None = None
    speed: float | None = None
    engine: str | None = None
    """"vllm" or "simulated"."""
    address: str | None = None
    """Of a Ray cluster; None: a Ray of this machine's own."""
    storage: str | None = None
    tracking_uri: str | None = None
    runs: Path = Path("runs")


def study_to_search(asked: SearchRequest, space: Space) -> tuple[Path, StudyFile | None]:
    """The study's folder, and the study where it is resumed."""
    if not asked.resume:
        name = asked.name or f"{space.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        if not _STUDY_NAME.fullmatch(name):
            raise Mistake(f"--study {name!r} must be letters, digits, dots, dashes and underscores")
        folder = asked.runs / name
        if (folder / STUDY).exists():
            raise Mistake(f"study {name} exists under {asked.runs}; add --resume to go on with it")
        return folder, None
    folder = study_folder(asked.name, asked.runs)
    before = read_study(folder)
    if before.space_text != space.text:
        raise Mistake(
            f"study {before.name} searched another space than {asked.space} is now; "
            f"give a changed space another --study"
        )
    return folder, before


def as_before(asked: SearchRequest, before: StudyFile) -> SearchRequest:
    """The request with what the study was begun with. Raises Mistake where it asks for something else."""
    for name, was in (
        ("sampler", before.sampler),
        ("seed", before.seed),
        ("engine", before.engine),
        *((name, before.options.get(name)) for name in _OPTIONS),
    ):
        wanted = getattr(asked, name)
        if wanted is not None and wanted != was:
            raise Mistake(
                f"study {before.name} was begun with {name} {was}, not {wanted}; "
                f"leave it out, or give the new search another --study"
            )
    options = {name: before.options[name] for name in _OPTIONS}
    return replace(
        asked,
        sampler=before.sampler,
        seed=before.seed,
        engine=before.engine,
        **options,  # type: ignore[arg-type]  # as this wrote them
    )


def new_study(
    name: str, asked: SearchRequest, space: Space, goal: Goal, workload: Workload, origin: str
) -> StudyFile:
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
        options={"trace": asked.trace, "speed": workload.speed},
    )


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
            gpus=rendered.gpus,
            cpus=space.resources.cpus,
            accelerator=space.resources.accelerator if rendered.gpus else None,
            trust_remote_code=space.trust_remote_code,
        )

    return order


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
