"""What is promised of a config, with all that it takes to hold it to that: of a study, or from an export.

An exported folder keeps it in its `provenance.json`, so that it can be verified where the study is not.
Secrets are blanked in what a study stores, and so here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from objectives.goal import Goal, violations
from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from search_spaces.measure import Measure, measure_from
from search_spaces.space import Space
from search_spaces.values import Json
from tuner.loads import measure_of, sessions
from tuner.mistakes import Mistake
from tuner.records import StoredTrial, StudyFile

_Raw = dict[str, Any]  # what json.loads gives; typed on the way out of this module


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was searched on, and where more like it may come from."""

    origin: str
    """In words."""
    digest: str
    trace: str | None
    """The file that it was read from; None where it was made."""
    make: Mapping[str, Json] | None
    """The recipe that it was made by."""
    max_context: int | None
    """Tokens that a request may have in all; None: unlimited."""
    speed: float
    sessions: str
    """"recorded" or "causal"."""
    seed: int
    """Of the prompts."""
    model: str
    """Whose tokenizer makes them."""
    duration_s: float | None
    """First arrival to last, as recorded; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is served: the control, of which there is no folder."""

    model: str
    arguments: Mapping[str, Json]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a run takes of a node."""

    gpus: int
    cpus: int
    accelerator: str | None
    gpu_hour_price: float | None
    trust_remote_code: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """The promise of one config. Metrics go by their names inside (`objectives.metrics`)."""

    study: str
    study_id: str
    space: str
    trial: int
    """Number of the config's first trial."""
    engine: str
    """"vllm" or "simulated"."""
    version: str | None
    """Of the engine that it was measured with."""
    hardware: str | None
    """That it was measured on."""
    objectives: tuple[str, ...]
    slo: Slo
    slo_held: bool
    """Whether it held at the load that the latencies are of: only then it is promised there."""
    measure: Measure
    values: Mapping[str, Estimate]
    """Of the objectives, what the config is judged by."""
    control: Mapping[str, Estimate] | None
    """The control's; None where it was not measured."""
    control_launch: Launch | None
    traffic: Traffic
    resources: Resources

    @property
    def goal(self) -> Goal:
        return Goal.of(self.objectives)


def promised_of(
    study: StudyFile, space: Space, standing: StoredTrial, control: StoredTrial | None
) -> Promised:
    """The promise of a study's config.

    Args:
        standing: the config's, with what it is judged by (`tuner.promise`).
        control: the control's, likewise; None where the study has none.

    Raises Mistake where the config has no measurement to promise.
    """
    if standing.measurement is None:
        raise Mistake(
            f"trial {standing.number} was not measured ({standing.reason}); nothing is promised of it"
        )
    names = [objective.metric for objective in Goal.of(study.objectives).objectives]
    path, longest = study.options.get("trace"), space.engine.get("max_model_len")
    speed, duration_s = study.options.get("speed"), study.trace_figures.get("duration_s")
    named = path if isinstance(path, str) else space.traffic.trace
    return Promised(
        study=study.name,
        study_id=study.id,
        space=study.space_name,
        trial=standing.number,
        engine=standing.ran.engine or study.engine,
        version=standing.ran.version,
        hardware=standing.ran.hardware,
        objectives=study.objectives,
        slo=study.slo,
        # 1 - 0.05 and 57 / 60 differ by rounding alone.
        slo_held=all(missed <= 1e-9 for missed in violations(standing.measurement, study.slo).values()),
        measure=measure_of(study),
        values=_of(standing.measurement, names),
        control=None if control is None or control.measurement is None else _of(control.measurement, names),
        control_launch=None
        if control is None
        else Launch(
            model=control.model, arguments=dict(control.arguments), environment=dict(control.environment)
        ),
        traffic=Traffic(
            origin=study.trace,
            digest=study.trace_digest,
            trace=named,
            make=None if named is not None or space.traffic.make is None else dict(space.traffic.make),
            max_context=longest if isinstance(longest, int) else None,
            speed=float(speed) if isinstance(speed, int | float) else space.traffic.speed,
            sessions=sessions(study).value,
            seed=space.traffic.seed,
            model=space.model,
            duration_s=float(duration_s) if isinstance(duration_s, int | float) else None,
        ),
        resources=Resources(
            gpus=standing.gpus,
            cpus=space.resources.cpus,
            accelerator=space.resources.accelerator,
            gpu_hour_price=space.resources.gpu_hour_price,
            trust_remote_code=space.trust_remote_code,
        ),
    )


def promised_json(promised: Promised) -> dict[str, Json]:
    """As `provenance.json` holds it. An end of an interval that is not finite is null."""
    raw: _Raw = asdict(promised)
    raw["measure"] = promised.measure.model_dump(mode="json")
    found: dict[str, Json] = _plain(raw)
    return found


def promised_from(raw: Json, where: str) -> Promised:
    """What `promised_json` made. Raises Mistake where it is none; `where`: what to call it."""
    try:
        if not isinstance(raw, dict):
            raise ValueError(f"an object is missing, got {type(raw).__name__}")
        said: _Raw = raw
        control, launch = said["control"], said["control_launch"]
        return Promised(
            **said
            | {
                "objectives": tuple(said["objectives"]),
                "slo": Slo(**said["slo"]),
                "measure": measure_from(said["measure"]),
                "values": _estimates(said["values"]),
                "control": None if control is None else _estimates(control),
                "control_launch": None if launch is None else Launch(**launch),
                "traffic": Traffic(**said["traffic"]),
                "resources": Resources(**said["resources"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Mistake(f"{where}: says not what is promised ({type(error).__name__}: {error})") from error


def _of(measurement: Measurement, names: list[str]) -> dict[str, Estimate]:
    return {name: measurement.metrics[name] for name in names if name in measurement.metrics}


def _estimates(raw: _Raw) -> dict[str, Estimate]:
    return {name: Estimate(**one) for name, one in raw.items()}


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if abs(value) < float("inf") else None
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
