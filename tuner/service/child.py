"""A job's process: `python -m tuner.service.child FOLDER`. One use case, its events written down as it goes.

The same calls as the command line's. It ends with a file that says how, unless it is killed; a study that has
begun goes on from what is on disk.
"""

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.values import Json
from tuner.interrupts import stops_in_order
from tuner.mistakes import Mistake
from tuner.service import event_log
from tuner.service.job_files import JobFiles, read_json, write_json
from tuner.service.jobs import Kind, State
from tuner.service.processes import LOCK_FD_VARIABLE

RAY_VARIABLE = "TUNER_JOB_RAY"
TRACKING_VARIABLE = "TUNER_JOB_TRACKING_URI"
"""What the operator says of all jobs comes by the environment: it may hold a password, and may change."""

if TYPE_CHECKING:
    from tuner.ablation.run import AblationEvent
    from tuner.events import Event


def main() -> None:
    """Run the job and write down how it ended."""
    # What this process starts must not hold its lock: an engine may outlive it by some seconds.
    lock = int(os.environ.pop(LOCK_FD_VARIABLE))
    os.set_inheritable(lock, False)
    # Beyond the block below nothing is lost by a stop, and how it ended is to be written down.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    files = JobFiles(Path(sys.argv[1]))
    state: State
    reason: str | None
    try:
        with stops_in_order():
            _write_process(files)
            state, reason = _run(files)
    except KeyboardInterrupt:
        state, reason = State.PAUSED, "stopped"
    except Mistake as mistake:
        state, reason = State.FAILED, str(mistake)
    except OSError as error:
        state, reason = State.FAILED, f"{error.filename or 'the machine'}: {error.strerror or error}"
    print(f"{state}: {reason}", flush=True)
    write_json(files.ended, {"state": state, "reason": reason})
    # For whoever was forked with it too: its work is over, however long it takes the process to be gone.
    fcntl.flock(lock, fcntl.LOCK_UN)


def _run(files: JobFiles) -> tuple[State, str | None]:
    job = read_json(files.job)
    if job is None:
        raise Mistake(f"no job in {files.folder}")
    request: Any = job["request"]
    event_log.append(files.events, "started", {"text": "started"})
    if job["kind"] == Kind.STUDY:
        return State.FINISHED, _search(files, request, runs=Path(str(job["runs"])))
    return State.FINISHED, _ablate(files, request, runs=Path(str(job["runs"])))


def _search(files: JobFiles, request: dict[str, Any], *, runs: Path) -> str:
    from tuner import trace_usecases, usecases
    from tuner.events import UnderWay
    from tuner.records import STUDY
    from tuner.service.running import Running
    from tuner.service.told import event_json
    from tuner.session import SearchRequest
    from tuner.terminal import Progress

    make = request.pop("make")
    if make is not None:
        if not files.made_trace.exists():
            trace_usecases.make(make, files.made_trace)
        request["trace"] = str(files.made_trace)
    begun = (runs / request["name"] / STUDY).exists()
    lines: list[str] = []
    progress = Progress(say=lines.append)
    running = Running(files.running)

    def show(event: "Event | str") -> None:
        progress.show(event)
        if running.take(event):
            _tell(files, *event_json(event), lines, wait=not isinstance(event, UnderWay))

    asked = SearchRequest(
        **request,
        resume=begun,
        runs=runs,
        address=os.environ.get(RAY_VARIABLE),
        tracking_uri=os.environ.get(TRACKING_VARIABLE),
    )
    found = usecases.search(asked, show)
    return found.why


def _ablate(files: JobFiles, request: dict[str, Any], *, runs: Path) -> str:
    from tuner import usecases
    from tuner.ablation.terminal import Progress
    from tuner.service.asked import ablation_asked
    from tuner.service.told import ablation_event_json

    lines: list[str] = []
    progress = Progress(say=lines.append)

    def show(event: "AblationEvent | str") -> None:
        progress.show(event)
        _tell(files, *ablation_event_json(event), lines)

    asked = usecases.AblationRequest(
        study=request["study"],
        ablation=ablation_asked(request),
        address=os.environ.get(RAY_VARIABLE),
        tracking_uri=os.environ.get(TRACKING_VARIABLE),
        runs=runs,
    )
    found = usecases.ablate(asked, show, lambda: True)
    assert found is not None  # it was agreed to
    write_json(files.folder / "found.json", {"folder": found.folder.name})
    return "the ablation is done"


def _tell(files: JobFiles, name: str, data: dict[str, Json], lines: list[str], *, wait: bool = True) -> None:
    """One event to the log, with the words that a terminal would show."""
    text = "\n".join(lines)
    lines.clear()
    if text:
        print(text, flush=True)
    event_log.append(files.events, name, {**data, "text": text}, wait=wait)


def _write_process(files: JobFiles) -> None:
    from cluster.node.processes import process

    own = process(os.getpid())
    assert own is not None
    write_json(files.process, {"pid": own.pid, "started": own.started})


if __name__ == "__main__":
    main()
