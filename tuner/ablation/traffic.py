"""The study's traffic once more: its own space, trace, speed, sessions and seed, or a mistake."""

from dataclasses import replace

from cluster.traffic.sessions import Sessions
from cluster.traffic.workload import Workload
from search_spaces.load import parse_space
from search_spaces.space import Space
from tuner.loads import measure_of, sessions
from tuner.mistakes import Mistake
from tuner.models import local_model
from tuner.records import StudyFile
from tuner.traffic import study_trace


def same_traffic(study: StudyFile) -> tuple[Space, Workload]:
    """The space that the study searches, and what its trials were played.

    Raises:
        SpaceError: this version cannot read the space.
        TraceError, Mistake: its trace is not there any more, or another one is.
    """
    space = parse_space(study.space_text, str(study.options.get("space", "space.yaml")))
    space = replace(space, measure=measure_of(study))
    path = study.options.get("trace")
    trace, origin = study_trace(space, path if isinstance(path, str) else None)
    if trace.digest != study.trace_digest:
        raise Mistake(
            f"study {study.name} replayed another trace ({study.trace_digest[:12]}, not {trace.digest[:12]} "
            f"of {origin}); put the one it was begun with back"
        )
    speed = study.options.get("speed")
    return space, Workload(
        trace=trace,
        speed=float(speed) if isinstance(speed, int | float) else space.traffic.speed,
        sessions=Sessions(sessions(study)),
        seed=space.traffic.seed,
        tokenizer=local_model(space.model) if study.engine != "simulated" else space.model,
    )
