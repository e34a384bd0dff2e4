"""Jobs run without processes: a test says when each ends, and how."""

from collections.abc import Mapping

from tuner.service.job_files import JobFiles
from tuner.service.jobs import State
from tuner.service.processes import Ended


class FakeProcesses:
    """Keeps what was started; jobs go by their id."""

    def __init__(self, *, at_once: bool = False) -> None:
        """Args:
        at_once: whether every process finishes as soon as it is looked at.
        """
        self.running: dict[str, Mapping[str, str]] = {}
        self.starts: list[str] = []
        self.asked_to_stop: list[str] = []
        self.killed: list[str] = []
        self.ready = True
        """Whether processes have come to say which they are."""
        self._ended: dict[str, Ended] = {}
        self._at_once = at_once

    def start(self, files: JobFiles, environment: Mapping[str, str]) -> bool:
        id = files.folder.name
        assert id not in self.running, "started twice"
        self.starts.append(id)
        self.running[id] = environment
        self._ended.pop(id, None)
        return True

    def alive(self, files: JobFiles) -> bool:
        if self._at_once and files.folder.name in self.running:
            self.end(files.folder.name, State.FINISHED)
        return files.folder.name in self.running

    def ended(self, files: JobFiles) -> Ended | None:
        return self._ended.get(files.folder.name)

    def stop(self, files: JobFiles, *, at_once: bool) -> bool:
        if self.ready:
            (self.killed if at_once else self.asked_to_stop).append(files.folder.name)
        return self.ready

    def end(self, id: str, state: State, reason: str | None = None) -> None:
        """The process writes down how it ended, and is gone."""
        del self.running[id]
        self._ended[id] = Ended(state=state, reason=reason)

    def die(self, id: str) -> None:
        """The process is gone, and has written nothing."""
        del self.running[id]
