"""A Ray cluster of real nodes on this machine, and the `tuner` command on it, its engine told by files."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from cluster.node.processes import descendants
from tests.cluster.dispatch.raylets import LEAST_STORE, free_ports, node

_ROOT = Path(__file__).resolve().parents[2]
SPACE = """
name: tiny
model: HuggingFaceTB/SmolLM2-135M
resources: {gpus: 0, cpus: 1}
engine: {max_model_len: 2048}
parameters:
  max_num_seqs: {int: [8, 256]}
  max_num_batched_tokens: {int: [512, 8192]}
traffic:
  make: {requests: 40, rate: 20, input_mean: 200, input_max: 1000, output_mean: 20, output_max: 100, seed: 3}
slo: {ttft_p95_ms: 5000}
measure: fixed
objectives: [goodput, tpot_p95]
"""
"""Each trial takes a second, of which most is dispatch."""


@dataclass
class Nodes:
    """A Ray cluster of `ray start` processes: a head that runs no trials, and nodes that run one each."""

    here: Path
    stack: ExitStack
    port: int = field(default_factory=lambda: free_ports(1)[0])
    up: dict[str, int] = field(default_factory=dict)
    """Process ids of what started the nodes, by the nodes' names."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @cached_property
    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        told = {"TUNER_TEST_TOLD": str(self.here), "TUNER_TEST_NODE": "here"}
        return kept | quiet | told | {"HOME": str(self.here)}

    def start(self, name: str) -> None:
        """Begin a node, and wait until it is there."""
        place = [f"--address={self.address}", "--num-cpus=1"]
        if name == "head":
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))
            place = ["--head", f"--port={self.port}", f"--temp-dir={folder}", "--num-cpus=0"]
            place.append("--include-dashboard=false")
        own = self.here / f"tmp-{name}"
        own.mkdir()
        environment = self.environment | {"TUNER_TEST_NODE": name, "TMPDIR": str(own)}
        shared = [f"--node-name={name}", "--num-gpus=0", f"--object-store-memory={LEAST_STORE}"]
        shared += ["--node-ip-address=127.0.0.1", "--dashboard-agent-listen-port=0"]
        started = node(environment, self.here / f"{name}.log", *place, *shared)
        self.up[name] = self.stack.enter_context(started)

    def kill(self, name: str) -> None:
        """SIGKILL to the node and all of its workers."""
        started = self.up.pop(name)
        for pid in (*(one.pid for one in descendants(started)), started):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        for name in tuple(self.up):
            self.kill(name)

    def held(self, number: int, among: tuple[str, ...]) -> str:
        """The node where this trial waits now; waits until it does."""
        told = {name: self.here / f"held-{number}-{name}" for name in among}
        until(lambda: any(file.exists() for file in told.values()), f"trial {number} at {among}", self.log)
        return next(name for name, file in told.items() if file.exists())

    def let(self, *numbers: int) -> None:
        """These trials are measured from now on."""
        for number in numbers:
            (self.here / f"hold-{number}").unlink()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tests.tuner.told_command", *words]

    def search(self, *words: str) -> "subprocess.Popen[bytes]":
        """A driver, as a user starts it."""
        asked = (
            "search",
            "--ray",
            self.address,
            "--engine",
            "simulated",
            "--study",
            "s",
            "--sampler",
            "random",
        )
        with (self.here / "search.log").open("ab") as log:
            return self.stack.enter_context(
                subprocess.Popen(
                    self.command(*asked, "--runs", str(self.here / "runs"), *words),
                    cwd=_ROOT,
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                )
            )

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Another command, to its end."""
        words = tuple(self.command(*words))
        return subprocess.run(
            words, cwd=_ROOT, env=self.environment, capture_output=True, text=True, timeout=240
        )

    def log(self) -> str:
        return (self.here / "search.log").read_text()


@contextmanager
def two_nodes(here: Path, mlflow_template: Path, held: Iterable[int]) -> Iterator[Nodes]:
    """A head and the nodes a and b, and in the folder the space and an MLflow database for a search.

    Args:
        held: numbers of the trials that wait until they are let.
    """
    (here / "tiny.yaml").write_text(SPACE)
    (here / "runs").mkdir()
    shutil.copy(mlflow_template, here / "runs" / "mlflow.db")
    for number in held:
        (here / f"hold-{number}").touch()
    with ExitStack() as stack:
        nodes = Nodes(here, stack)
        stack.callback(nodes.kill_all)
        for name in ("head", "a", "b"):
            nodes.start(name)
        yield nodes


def trial_runs(database: Path) -> list[Run]:
    """Of the trials, in MLflow, whatever their state."""
    client = MlflowClient(f"sqlite:///{database}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, max_results=1000)
    return [run for run in found if "mlflow.parentRunId" in run.data.tags]


def until(holds: Callable[[], bool], what: str, log: Callable[[], str]) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline, f"no {what}\n{log()[-3000:]}"
        time.sleep(0.05)
