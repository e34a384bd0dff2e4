"""The load that a study's trials are measured under, as figures and in few words."""

from cluster.traffic.sessions import Sessions
from objectives.measurement import Mode
from search_spaces.measure import Capacity, Closed, Fixed, Measure, measure_from
from tuner.records import StudyFile

NO_USERS = "no load a user makes"
"""Said wherever a closed loop's numbers stand: its requests wait for each other, as users do not."""

_MODES = {Capacity: Mode.CAPACITY, Fixed: Mode.FIXED, Closed: Mode.CLOSED}


def measure_of(study: StudyFile) -> Measure:
    """What each of the study's trials measures. A study that does not say is of a version with one load."""
    kept = study.options.get("measure")
    if not isinstance(kept, dict):
        return Fixed()
    try:
        return measure_from(kept)
    except ValueError:
        return Fixed()  # kept by another version; what each trial measured is told by its own mode


def mode(study: StudyFile) -> Mode:
    """The kind of load."""
    return _MODES[type(measure_of(study))]


def speed(study: StudyFile) -> float | None:
    """How many times as fast as recorded the trace is played; None where study.json does not say.

    None in a closed loop as well, which heeds no recorded times.
    """
    found = study.options.get("speed")
    return float(found) if isinstance(found, int | float) and mode(study) is not Mode.CLOSED else None


def sessions(study: StudyFile) -> Sessions:
    """When later turns leave. A study that does not say is of a version that played all as recorded."""
    return Sessions(str(study.options.get("sessions", Sessions.RECORDED)))


def offered_rps(study: StudyFile) -> float | None:
    """Requests per second that every trial is offered: the trace's own rate times the speed.

    None where one of them is not known: a trace whose requests all arrive at once has no rate. None with
    causal sessions too, whose rate is what each trial makes of it.
    """
    rate, times = study.trace_figures.get("rate"), speed(study)
    if not isinstance(rate, int | float) or times is None or sessions(study) is Sessions.CAUSAL:
        return None
    return rate * times


def concurrency(study: StudyFile) -> int | None:
    """Requests in flight in a closed loop; None where the load is none."""
    measure = measure_of(study)
    return measure.concurrency if isinstance(measure, Closed) else None


def closed_text(study: StudyFile) -> str | None:
    """`closed loop, 16 in flight: no load a user makes`; None where the load is open."""
    many = concurrency(study)
    return None if many is None else f"{Mode.CLOSED}, {many} in flight: {NO_USERS}"


def load_text(study: StudyFile) -> str:
    """`speed 1.5, 6 requests/s offered`, or what the closed loop is; empty where nothing is known."""
    times, offered = speed(study), offered_rps(study)
    closed = closed_text(study)
    parts = [
        *([] if closed is None else [closed]),
        *([] if times is None else [f"speed {times:g}"]),
        *(["sessions causal"] if times is not None and sessions(study) is Sessions.CAUSAL else []),
        *([] if offered is None else [f"{offered:.3g} requests/s offered"]),
    ]
    return ", ".join(parts)


def measured_text(study: StudyFile) -> str:
    """What its trials measure, at what load: `capacity; reference load: speed 1.5, 6 requests/s offered`."""
    load = load_text(study)
    match mode(study):
        case Mode.CAPACITY:
            return f"{Mode.CAPACITY}; reference load: {load}" if load else Mode.CAPACITY
        case Mode.FIXED:
            return f"{Mode.FIXED}: {load}" if load else Mode.FIXED
        case Mode.CLOSED:
            return load


def marks(kind: Mode | None, *, simulated: bool) -> tuple[str, ...]:
    """What must stand beside a name that may stand alone: "simulated", "closed loop"."""
    return (
        *(["simulated"] if simulated else []),
        *([str(Mode.CLOSED)] if kind is Mode.CLOSED else []),
    )
