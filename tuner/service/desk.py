"""What can be asked of the service, over the queue and the use cases. HTTP is `tuner.service.routes`'.

Whatever the asker got wrong leaves here as a `Mistake`.
"""

import io
import json
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cluster.traffic.make import recipe_from
from search_spaces.arguments import render, render_control
from search_spaces.load import shipped_spaces, space_text
from search_spaces.space import Space
from search_spaces.values import Json
from tuner import export_usecases, usecases
from tuner.ablation.plan import ABLATIONS, REPORT
from tuner.explain_words import explanation_json
from tuner.export.refusals import Mark
from tuner.front import FrontView, front_json
from tuner.mistakes import Mistake
from tuner.records import STUDY
from tuner.sampler import sampler_named
from tuner.service import event_log
from tuner.service.allow_list import AllowList, check_space
from tuner.service.asked import STUDY_NAME, AblationSubmission, Submission, plain
from tuner.service.job_files import ServiceFiles, read_json, write_json
from tuner.service.jobs import Job, Kind, State
from tuner.service.queue import Conflict, NewJob, Queue
from tuner.service.running import running_trials
from tuner.service.scheduler import Scheduler
from tuner.service.told import job_json, trial_json, trials_json
from tuner.session import DEFAULT_SAMPLER, measured_so


class NotFound(Mistake):
    """There is no such thing."""


class NotYours(Mistake):
    """A job is somebody else's."""


@dataclass(frozen=True, slots=True)
class Desk:
    """One service's."""

    queue: Queue
    files: ServiceFiles
    scheduler: Scheduler
    allowed: AllowList

    def submit(self, user: str, asked: Submission, key: str | None) -> tuple[Job, bool]:
        """Queue a study; and whether it is new, which one that was submitted before under the key is not."""
        again = self._submitted(user, key, plain(asked))
        if again is not None:
            return again, False
        space = self._space(asked)
        trace = self._trace(asked, space)
        simulated = asked.engine == "simulated"
        gpus = 0 if simulated else _gpus(space)
        self._check_room(simulated=simulated, gpus=gpus)
        name = asked.name or f"{space.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        if not re.fullmatch(STUDY_NAME, name):
            raise Mistake(f"the space's name {space.name!r} cannot begin a study's; give the study a name")
        if (self.files.runs / name).exists():
            raise Conflict(f"study {name} exists; give the new one another name")
        request: dict[str, Json] = {
            **plain(asked, "space", "shipped", "trace"),
            "name": name,
            "trace": None if trace is None else str(trace),
        }
        new = NewJob(
            id=secrets.token_hex(6),
            kind=Kind.STUDY,
            study=name,
            user=user,
            request=plain(asked),
            simulated=simulated,
            gpus=gpus,
            idempotency_key=key,
        )
        return self._queue(new, request, space.text), True

    def ablate(self, user: str, study: str, asked: AblationSubmission, key: str | None) -> tuple[Job, bool]:
        """Queue an ablation of a trial; and whether it is new."""
        again = self._submitted(user, key, plain(asked))
        if again is not None:
            return again, False
        seen = self._view(study)
        self._trial(seen, asked.trial)
        of = self.queue.study(study)
        new = NewJob(
            id=secrets.token_hex(6),
            kind=Kind.ABLATION,
            study=study,
            user=user,
            request=plain(asked),
            simulated=seen.study.engine == "simulated",
            gpus=0 if of is None else of.gpus,
            idempotency_key=key,
        )
        return self._queue(new, {**plain(asked), "study": study}, None), True

    def studies(self) -> list[Json]:
        return [self._told(job) for job in self.queue.studies()]

    def study(self, study: str) -> dict[str, Json]:
        """A study with all that it was asked, the space's text too."""
        job = self._job(study)
        return self._told(job) | {"request": dict(job.request)}

    def stop(self, user: str, study: str, wanted: State) -> dict[str, Json]:
        """Pause or cancel a study."""
        return self._stop(user, self._job(study), wanted)

    def resume(self, user: str, study: str) -> dict[str, Json]:
        job = self._own(user, self._job(study))
        resumed = self.queue.resume(job.id, _now())
        event_log.append(self.files.job(job.id).events, "queued", {"text": "queued again"})
        self.scheduler.nudge()
        return self._told(resumed)

    def cancel_ablation(self, user: str, study: str, id: str) -> dict[str, Json]:
        return self._stop(user, self._ablation(study, id), State.CANCELLED)

    def trials(self, study: str) -> list[Json]:
        return trials_json(self._view(study))

    def trial(self, study: str, number: int) -> dict[str, Json]:
        seen = self._view(study)
        self._trial(seen, number)
        return next(trial_json(seen, trial) for trial in seen.trials if trial.number == number)

    def front(self, study: str) -> dict[str, Json]:
        return front_json(self._view(study))

    def explanation(self, study: str, number: int) -> dict[str, Json]:
        self._trial(self._view(study), number)
        return explanation_json(usecases.explain(study, number, self.files.runs))

    def ablations(self, study: str) -> list[Json]:
        self._known(study)
        return [self._told(job) for job in self.queue.ablations(study)]

    def ablation(self, study: str, id: str) -> dict[str, Json]:
        """An ablation, with its report where it is done."""
        job = self._ablation(study, id)
        found = read_json(self.files.job(job.id).folder / "found.json")
        report: Json = None
        if found is not None:
            folder = self.files.runs / study / ABLATIONS / str(found["folder"])
            report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        return {**self._told(job), "report": report}

    def export(self, study: str, number: int, target: str, allowed: Sequence[Mark]) -> bytes:
        """A trial's export, as a zip of its folder."""
        self._trial(self._view(study), number)
        with tempfile.TemporaryDirectory(prefix="tuner-export-") as folder:
            out = Path(folder) / f"{study}-{number}"
            export_usecases.export(study, number, target, out, runs=self.files.runs, allowed=allowed)
            return _zipped(out)

    def events_of(self, study: str, ablation: str | None = None) -> tuple[Path, Callable[[], bool]]:
        """Where the events of a study, or of an ablation of it, lie, and whether more may come."""
        job = self._job(study) if ablation is None else self._ablation(study, ablation)

        def going_on() -> bool:
            now = self.queue.get(job.id)
            return now is not None and not now.state.over

        return self.files.job(job.id).events, going_on

    def _submitted(self, user: str, key: str | None, request: dict[str, Json]) -> Job | None:
        found = None if key is None else self.queue.submitted(user, key)
        if found is not None and dict(found.request) != request:
            raise Conflict("this idempotency key came with another request before; give each its own")
        return found

    def _queue(self, new: NewJob, request: dict[str, Json], space: str | None) -> Job:
        files = self.files.job(new.id)
        files.folder.mkdir(mode=0o700)
        try:
            if space is not None:
                files.space.write_text(space, encoding="utf-8")
                request["space"] = str(files.space)
            write_json(files.job, {"kind": new.kind.value, "runs": str(self.files.runs), "request": request})
            event_log.append(files.events, "queued", {"text": f"queued by {new.user}"})
            job = self.queue.add(new, _now())
        except BaseException:
            shutil.rmtree(files.folder, ignore_errors=True)
            raise
        self.scheduler.nudge()
        return job

    def _space(self, asked: Submission) -> Space:
        """Read and looked at: it asks for nothing that is not allowed."""
        if asked.shipped is not None:
            if asked.shipped not in shipped_spaces():
                raise Mistake(f"no shipped space {asked.shipped!r}; there are {', '.join(shipped_spaces())}")
            space = usecases.read_space(space_text(asked.shipped), asked.shipped)
        else:
            space = usecases.read_space(asked.space or "", "space.yaml")
            check_space(space, self.allowed)
        sampler_named(asked.sampler or DEFAULT_SAMPLER)
        return measured_so(space, asked.measure)

    def _trace(self, asked: Submission, space: Space) -> Path | None:
        """An uploaded trace's file; None where the trace is made."""
        if asked.trace is not None:
            path = self.files.trace(asked.trace)
            if not path.is_file():
                raise NotFound("there is no such trace; upload it first")
            return path
        if asked.make is not None:
            with usecases.users_mistakes():
                recipe_from(asked.make, where="make")
        elif space.traffic.trace is not None:
            raise Mistake(
                f"{space.source} names a trace's file, and this service reads none here; upload the trace"
            )
        elif space.traffic.make is None:
            raise Mistake(
                f"{space.source} names no traffic; upload a trace, or give figures to make one from"
            )
        return None

    def _check_room(self, *, simulated: bool, gpus: int) -> None:
        """Raise Mistake where a study would wait for ever."""
        places = self.scheduler.places
        if any(place.takes(simulated=simulated, gpus=gpus) for place in places):
            return
        if simulated:
            raise Mistake("this service runs no simulated studies")
        most = max(len(place.devices or ()) for place in places if not place.simulated)
        raise Mistake(f"a trial takes up to {gpus} GPUs, and this service gives a study {most} at most")

    def _stop(self, user: str, job: Job, wanted: State) -> dict[str, Json]:
        self._own(user, job)
        stopped = self.queue.stop(job.id, wanted, _now())
        if stopped.state.over:
            event_log.append(
                self.files.job(job.id).events, stopped.state.value, {"text": stopped.state.value}
            )
        self.scheduler.nudge()
        return self._told(stopped)

    def _told(self, job: Job) -> dict[str, Json]:
        return job_json(job, running_trials(self.files.job(job.id).running) if job.state.active else [])

    def _own(self, user: str, job: Job) -> Job:
        if job.user != user:
            raise NotYours(f"{job.kind} {job.study} is {job.user}'s; only they may change what becomes of it")
        return job

    def _job(self, study: str) -> Job:
        job = self.queue.study(study)
        if job is None:
            raise NotFound(f"no study {study} was submitted here")
        return job

    def _ablation(self, study: str, id: str) -> Job:
        job = self.queue.get(id)
        if job is None or job.kind is not Kind.ABLATION or job.study != study:
            raise NotFound(f"study {study} has no ablation {id}")
        return job

    def _known(self, study: str) -> None:
        """A study of this service, or one that `tuner search` made under the same runs folder."""
        if self.queue.study(study) is None and not (self.files.runs / study / STUDY).is_file():
            raise NotFound(f"there is no study {study}")

    def _view(self, study: str) -> FrontView:
        self._known(study)
        if not (self.files.runs / study / STUDY).is_file():
            raise Conflict(f"study {study} has not begun")
        return usecases.front(study, self.files.runs)

    def _trial(self, seen: FrontView, number: int) -> None:
        if number not in {trial.number for trial in seen.trials}:
            raise NotFound(f"study {seen.study.name} has no finished trial {number}")


def _now() -> datetime:
    return datetime.now(UTC)


def _gpus(space: Space) -> int:
    """Most GPUs that a trial of the space takes, as far as a few configs that reach every end show."""
    asked = [render_control(space), *(render(space, config) for config in space.covering())]
    return max(rendered.gpus for rendered in asked)


def _zipped(folder: Path) -> bytes:
    """The same folder gives the same bytes: files by name, without times."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder)}")
            entry.external_attr = (path.stat().st_mode & 0o777) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return packed.getvalue()
