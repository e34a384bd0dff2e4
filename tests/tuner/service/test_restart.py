"""A real service and real processes: killed at any point, nothing is lost and nothing is done twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.node.processes import is_running
from tests.tuner.service.conftest import SPACE
from tuner.mistakes import Mistake
from tuner.service.client import Client, StreamedEvent, Unreachable
from tuner.service.job_files import ServiceFiles, read_json
from tuner.service.serve import ServeRequest, serve

TRIALS = 60
_TUNER = "from tuner.cli import main; main()"


class Served:
    """`tuner serve` as a process, killed and started again."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.files = ServiceFiles(runs)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Client:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TUNER, "serve", "--port", "0", "--runs", str(self.runs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("TUNER_")},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "serving" in line, line
        (page,) = [word for word in line.split() if word.startswith("http")]
        return Client(page.removesuffix("/docs;"), None)

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def process_of(self, id: str) -> tuple[int, int]:
        told = read_json(self.files.job(id).process)
        assert told is not None
        return int(str(told["pid"])), int(str(told["started"]))


@pytest.fixture
def served(tmp_path: Path, new_mlflow: Callable[[], str]) -> Iterator[Served]:
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.move(new_mlflow().removeprefix("sqlite:///"), runs / "mlflow.db")
    served = Served(runs)
    yield served
    for path in (runs / "service" / "jobs").glob("*/process.json"):
        told = json.loads(path.read_text())
        if is_running(told["pid"], told["started"]):
            os.killpg(told["pid"], signal.SIGKILL)
    if served._process is not None:
        served.end(signal.SIGKILL)


def _until(client: Client, last: str | None, name: str, count: int = 1) -> list[StreamedEvent]:
    """Events up to the one of that name."""
    seen = []
    for event in client.events("/v1/studies/s/events", last, follow=True):
        seen.append(event)
        count -= event.name == name
        if not count:
            return seen
    raise AssertionError(f"no {name} in {[event.name for event in seen]}")


def _is_over(pid: int, started: int) -> None:
    """A study's process gives its lock back, which tells that it is over, just before it ends."""
    until = time.monotonic() + 60
    while is_running(pid, started):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_study_outlives_its_service_goes_on_after_its_own_death_and_can_be_paused(served: Served) -> None:
    client = served.start()
    body = {"space": SPACE, "engine": "simulated", "trials": TRIALS, "name": "s", "sampler": "random"}
    id = client.post("/v1/studies", body)["id"]
    seen = _until(client, None, "trial_measured", 2)
    first = served.process_of(id)
    with pytest.raises(Mistake, match="another service"):
        serve(ServeRequest(runs=served.runs, host="127.0.0.1", port=0), lambda line: None)

    served.end(signal.SIGKILL)  # the service, not the study
    assert is_running(*first)
    with pytest.raises(Unreachable):
        client.get("/v1/studies/s")
    os.kill(first[0], signal.SIGKILL)  # and now the study, which nobody sees

    client = served.start()
    # The first may have measured more before it died: what it told comes first.
    seen += _until(client, seen[-1].id, "started")
    seen += _until(client, seen[-1].id, "trial_measured")
    second = served.process_of(id)
    assert second != first
    os.kill(second[0], signal.SIGSTOP)  # so that it does not finish before it is paused
    assert client.post("/v1/studies/s/pause")["becomes"] == "paused"
    os.kill(second[0], signal.SIGCONT)
    seen += _until(client, seen[-1].id, "paused")
    _is_over(*second)
    assert 3 <= len(client.get("/v1/studies/s/trials")["trials"]) < TRIALS

    client.post("/v1/studies/s/resume")
    seen += _until(client, seen[-1].id, "finished")
    assert client.get("/v1/studies/s")["state"] == "finished"
    trials = {trial["number"] for trial in client.get("/v1/studies/s/trials")["trials"]}
    assert len(trials) == TRIALS
    # Every trial that is on disk was told of once, whichever process measured it, but for one at the kill.
    told = [event.data["trial"] for event in seen if event.name in ("trial_measured", "trial_failed")]
    assert len(told) == len(set(told))
    assert set(told) <= trials
    assert len(trials - set(told)) <= 1
    # Of the last process all was told: each of its trials in its phases, in their order.
    last = max(number for number, event in enumerate(seen) if event.name == "started")
    phases: dict[int, list[str]] = {}
    for event in seen[last:]:
        if event.name == "trial_phase":
            assert event.data["text"] == ""  # no line of its own
            phases.setdefault(event.data["trial"], []).append(event.data["phase"])
        elif event.name == "trial_measured":
            assert phases.pop(event.data["trial"]) == [
                "starting the engine",
                "warming up",
                "replaying",
                "stopping the engine",
                "summarising",
            ]
    names = [event.name for event in seen]
    assert (names.count("died"), names.count("started"), names.count("finished")) == (1, 3, 1)
    assert served.end(signal.SIGTERM) in (0, -signal.SIGTERM)
