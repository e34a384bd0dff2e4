"""Jobs for tests of what is decided about them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tuner.service.jobs import Job, Kind, State

START = datetime(2026, 1, 1, tzinfo=UTC)


def job(user: str, sequence: int, *, simulated: bool = True, gpus: int = 0) -> Job:
    """A queued study; the n-th is queued n seconds after the start."""
    return Job(
        id=f"{sequence:012x}",
        sequence=sequence,
        kind=Kind.STUDY,
        study=f"{user}-{sequence}",
        user=user,
        request={},
        simulated=simulated,
        gpus=gpus,
        state=State.QUEUED,
        queued=START + timedelta(seconds=sequence),
    )


def running(of: Job, place: str) -> Job:
    return replace(of, state=State.RUNNING, place=place)
