"""Jobs and processes brought together: whose process ended is told so, who is next is started.

`step` looks at everything once and is all there is to it: the service calls it whenever something may have
changed, and once when it starts, which is how studies are found again that went on without it, and those that
died meanwhile go on from what they have on disk.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tuner.records import TRIALS
from tuner.service import event_log
from tuner.service.fairness import in_turn
from tuner.service.job_files import JobFiles, ServiceFiles
from tuner.service.jobs import Job, Kind, State
from tuner.service.places import Place, free
from tuner.service.processes import Ended, Processes
from tuner.service.queue import Queue

MOST_DEATHS = 3
"""Processes of a job that may die one after the other without one finished trial between them."""

GRACE = timedelta(minutes=3)
"""From asking a process to end to ending it: an engine may take a minute to stop."""

LOOK_S = 0.5
"""Between looks at processes, while any runs."""

_log = logging.getLogger("tuner.service.scheduler")


class Scheduler:
    """Starts, follows and ends the processes of jobs."""

    def __init__(
        self,
        queue: Queue,
        files: ServiceFiles,
        places: Sequence[Place],
        processes: Processes,
        *,
        environment: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Args:
        environment: variables that every process is given.
        """
        self._environment = dict(environment or {})
        self._queue = queue
        self._files = files
        self._places = tuple(places)
        self._processes = processes
        self._now = now
        self._asked: dict[str, datetime] = {}
        """When a process was first asked to end, by job."""
        self._nudge = threading.Event()
        self._over = threading.Event()

    @property
    def places(self) -> tuple[Place, ...]:
        return self._places

    def nudge(self) -> None:
        """Something may have changed: look now."""
        self._nudge.set()

    def run(self) -> None:
        """Look whenever there is reason to, until `close`."""
        while not self._over.is_set():
            self._nudge.clear()
            try:
                self.step()
                pause = LOOK_S if self._queue.active() else None
            except Exception:  # noqa: BLE001 (a full disk or a bug must not end the scheduling of all studies)
                _log.exception("cannot go on; looking again", extra={"event": "scheduler_failed"})
                pause = 10 * LOOK_S
            self._nudge.wait(pause)

    def close(self) -> None:
        """End `run`; processes go on."""
        self._over.set()
        self._nudge.set()

    def step(self) -> None:
        """Bring jobs and processes together, once."""
        for job in self._queue.active():
            try:
                self._follow(job)
            except Exception:  # noqa: BLE001 (what is wrong with one job holds up no other)
                _log.exception("cannot follow a job", extra={"event": "follow_failed", "job": job.id})
        for simulated in (False, True):
            self._start(simulated=simulated)

    def _follow(self, job: Job) -> None:
        files = self._files.job(job.id)
        if self._processes.alive(files):
            if job.state is State.STOPPING:
                self._ask_to_end(job, files)
            return
        self._asked.pop(job.id, None)
        ended = self._processes.ended(files)
        if ended is not None and ended.state is not State.PAUSED:
            self._end(job, ended.state, ended.reason)
        elif job.state is State.STOPPING:
            self._end(job, job.wanted or State.PAUSED, None)
        else:
            self._died(job, files, ended)

    def _ask_to_end(self, job: Job, files: JobFiles) -> None:
        """Ask once: a second signal cuts short what the first began. End it where that takes too long."""
        asked = self._asked.get(job.id)
        if asked is None:
            if self._processes.stop(files, at_once=False):
                self._asked[job.id] = self._now()
        elif self._now() - asked > GRACE:
            self._processes.stop(files, at_once=True)

    def _died(self, job: Job, files: JobFiles, ended: Ended | None) -> None:
        """Its process is gone and the job is not over: go on, unless that leads nowhere."""
        done = self._finished_trials(job)
        deaths = 1 if done > job.done_at_death else job.deaths + 1
        self._queue.died(job.id, deaths=deaths, done=done)
        how = "died" if ended is None else "was stopped from outside"
        _log.warning("a process %s", how, extra={"event": "job_died", "job": job.id, "study": job.study})
        if deaths >= MOST_DEATHS:
            reason = f"its process {how} {deaths} times and no trial finished between; its log says why"
            self._end(job, State.FAILED, reason)
            return
        self._tell(job, "died", f"its process {how}; it goes on from what is on disk")
        if job.place in {place.name for place in self._places}:
            self._launch(job, job.place)
        else:  # the service was started with other places
            self._queue.requeue(job.id)

    def _start(self, *, simulated: bool) -> None:
        """Fill the free places of one kind, each with the first in turn that fits."""
        active = self._queue.active()
        running = [job for job in active if job.simulated == simulated]
        for place in free(self._places, active):
            if place.simulated != simulated:
                continue
            waiting = [job for job in self._queue.waiting() if place.fits(job)]
            last = self._queue.last_started(simulated=simulated)
            for job in in_turn(waiting, running, last)[:1]:
                if self._queue.start(job.id, place.name, self._now()):
                    running.append(job)
                    _log.info(
                        "started",
                        extra={
                            "event": "job_started",
                            "job": job.id,
                            "study": job.study,
                            "user": job.user,
                            "place": place.name,
                        },
                    )
                    self._launch(job, place.name)

    def _launch(self, job: Job, place: str | None) -> None:
        environment = {**self._environment, **_environment(self._places, place)}
        self._processes.start(self._files.job(job.id), environment)

    def _end(self, job: Job, state: State, reason: str | None) -> None:
        # Told before it is written down: who follows the events sees the end in them.
        self._tell(job, state.value, reason or state.value)
        self._queue.end(job.id, state, reason, self._now())
        _log.info(
            "ended",
            extra={
                "event": "job_ended",
                "job": job.id,
                "study": job.study,
                "user": job.user,
                "state": state.value,
                "reason": reason,
            },
        )

    def _tell(self, job: Job, name: str, text: str) -> None:
        event_log.append(self._files.job(job.id).events, name, {"text": text})

    def _finished_trials(self, job: Job) -> int:
        study = self._files.runs / job.study
        folder = study / TRIALS if job.kind is Kind.STUDY else study / "ablations"
        pattern = "[0-9]*" if job.kind is Kind.STUDY else f"*/{TRIALS}/[0-9]*"
        return sum(1 for _ in folder.glob(pattern))


def _environment(places: Sequence[Place], name: str | None) -> Mapping[str, str]:
    """What keeps a job to its place."""
    for place in places:
        if place.name == name and place.devices is not None:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, place.devices))}
    return {}
