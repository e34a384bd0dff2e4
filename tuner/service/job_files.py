"""Every file of a job and of the service, by name.

runs/service/queue.db           the queue (`tuner.service.queue`)
            /lock               held by the service that has these runs
            /traces/<digest>.jsonl.gz   uploaded traces, by what they hold
            /jobs/<id>/space.yaml  trace.jsonl.gz   of a study: its space; its trace, where it is made
                      /job.json      what its process is asked
                      /lock          held for as long as its process lives
                      /process.json  which process that is
                      /events.jsonl  what happened, an event a line
                      /running.json  what its trials are doing now
                      /log.txt       what the process printed
                      /ended.json    how it ended; not there while it runs, or where it died
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.values import Json

SERVICE = "service"
UPLOADING = ".upload-"
"""How the folder of an upload under way begins."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ServiceFiles:
    """The service's own folder under the runs folder."""

    runs: Path
    """Absolute, so that what is written down holds wherever the service is started again."""

    @property
    def folder(self) -> Path:
        return self.runs / SERVICE

    @property
    def database(self) -> Path:
        return self.folder / "queue.db"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    def trace(self, digest: str) -> Path:
        """Raises ValueError for what is no digest."""
        return self.traces / f"{_checked(_DIGEST, digest)}.jsonl.gz"

    def job(self, id: str) -> "JobFiles":
        """Raises ValueError for what is no id."""
        return JobFiles(self.folder / "jobs" / _checked(_ID, id))

    def make(self) -> None:
        """Make the folders, for their owner only."""
        self.runs.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, self.traces, self.folder / "jobs"):
            folder.mkdir(mode=0o700, exist_ok=True)

    def sweep(self) -> None:
        """Take away what uploads left that were under way when a service was killed."""
        for left in self.folder.glob(f"{UPLOADING}*"):
            shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """One job's."""

    folder: Path

    @property
    def space(self) -> Path:
        return self.folder / "space.yaml"

    @property
    def made_trace(self) -> Path:
        return self.folder / "trace.jsonl.gz"

    @property
    def job(self) -> Path:
        return self.folder / "job.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def process(self) -> Path:
        return self.folder / "process.json"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def running(self) -> Path:
        return self.folder / "running.json"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def ended(self) -> Path:
        return self.folder / "ended.json"


def write_json(path: Path, value: Mapping[str, Json]) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_json(path: Path) -> dict[str, Json] | None:
    """What a file written by `write_json` holds; None where there is none."""
    try:
        raw: dict[str, Json] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return raw


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a file here")
    return text
