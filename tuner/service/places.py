"""Where jobs run: sets of GPUs that one job has to itself, and room for simulated ones. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.mistakes import Mistake
from tuner.service.jobs import Job

MACHINE = "machine"
"""The one place of a service that was told no sets of GPUs: all that this machine has, or its CPUs."""

_SET = re.compile(r"\d+(,\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Holds one job at a time."""

    name: str
    simulated: bool = False
    """Whether it is for simulated jobs, and for them only."""
    devices: tuple[int, ...] | None = None
    """GPUs of this machine, by index; None: not told apart here."""

    def fits(self, job: Job) -> bool:
        """Whether a job can run here."""
        return self.takes(simulated=job.simulated, gpus=job.gpus)

    def takes(self, *, simulated: bool, gpus: int) -> bool:
        """Whether a job of such needs can run here."""
        enough = self.devices is None or gpus <= len(self.devices)
        return self.simulated == simulated and (simulated or enough)


def places_of(device_sets: Iterable[str], *, cluster: bool, simulated: int) -> tuple[Place, ...]:
    """The places of a service.

    Args:
        device_sets: "0,1" and so on; none: all there is is one place.
        cluster: whether jobs go to a Ray cluster, which places trials itself.
        simulated: simulated jobs at a time.

    Raises:
        Mistake: a set is none, two share a GPU, or there is a cluster to place trials.
    """
    sets = [_devices(text) for text in device_sets]
    if sets and cluster:
        raise Mistake("--gpus is of this machine, and --ray leaves it to the cluster where trials run")
    every = [device for devices in sets for device in devices]
    if len(every) != len(set(every)):
        raise Mistake("--gpus: a GPU is in two sets, or twice in one; give each set GPUs of its own")
    real = [Place(name=f"gpus {','.join(map(str, devices))}", devices=devices) for devices in sets] or [
        Place(name=MACHINE)
    ]
    return (*real, *(Place(name=f"simulated {number + 1}", simulated=True) for number in range(simulated)))


def free(places: Sequence[Place], active: Sequence[Job]) -> tuple[Place, ...]:
    """Places that no active job holds, the smallest first, so that small jobs leave large sets alone.

    A job that runs elsewhere, since the service was started with other places, may share GPUs with any of
    them: until it has ended, none for such jobs is free.
    """
    known = {place.name for place in places}
    held = {job.place for job in active}
    if any(not job.simulated and job.place not in known for job in active):
        held |= {place.name for place in places if not place.simulated}
    return tuple(
        sorted(
            (place for place in places if place.name not in held),
            key=lambda place: len(place.devices or ()),
        )
    )


def _devices(text: str) -> tuple[int, ...]:
    if not _SET.fullmatch(text):
        raise Mistake(f"--gpus {text!r} is no set of GPUs; write indices by comma: 0,1")
    return tuple(int(word) for word in text.split(","))
