"""What the trials of a job that run are doing: a small file that its process keeps and the service reads.

It says nothing once the process is gone, and is not kept for later: the events are.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from cluster.phase import Phase, PhaseName
from search_spaces.values import Json
from tuner.events import Event, Finished, Retried, Started, UnderWay
from tuner.service.told import phase_json


class Running:
    """One process's trials; where it begins none runs.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phases: dict[int, Phase] = {}
        self._told: dict[int, dict[str, Json]] = {}
        self._write()

    def take(self, event: Event | str) -> bool:
        """Take in what happened; whether it is news, as how far a trial is in its phase is not."""
        match event:
            case Started():
                self._enters(event.number, None, Phase(name=PhaseName.SENT))
            case UnderWay():
                before, told = self._phases.get(event.number), self._told.get(event.number, {})
                if before is not None and before.is_further(event.phase) and told["node"] == event.node:
                    return False
                self._enters(event.number, event.node, event.phase)
            case Finished() | Retried():
                self._phases.pop(event.number, None)
                self._told.pop(event.number, None)
                self._write()
            case _:
                pass
        return True

    def _enters(self, number: int, node: str | None, phase: Phase) -> None:
        self._phases[number] = phase
        self._told[number] = {
            "trial": number,
            "node": node,
            **phase_json(phase),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._write()

    def _write(self) -> None:
        # Without waiting for the disk: it is of no use to whoever comes after a crash.
        part = self._path.with_name(f".{self._path.name}.part")
        trials = [self._told[number] for number in sorted(self._told)]
        part.write_text(json.dumps({"trials": trials}, allow_nan=False), encoding="utf-8")
        part.replace(self._path)


def running_trials(path: Path) -> list[Json]:
    """What the file says; nothing where there is none, or the machine's crash left it empty."""
    try:
        trials: list[Json] = json.loads(path.read_text(encoding="utf-8"))["trials"]
    except (FileNotFoundError, ValueError):
        return []
    return trials
