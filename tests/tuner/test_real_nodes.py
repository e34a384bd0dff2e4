"""A study on real Ray nodes that are killed in the middle of trials, which `told_engine` holds and slows.

One study goes through it all: its nodes die in trials until none is left; it goes on with two new ones, and
its driver is killed while both measure; then it ends.
"""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import optuna
import pytest

from cluster.node.processes import is_running
from cluster.order import Cause
from tests.tuner.real_nodes import Nodes, trial_runs, two_nodes, until
from tuner.records import State, StoredTrial, read_trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # MLflow 3.17 on SQLAlchemy 2.1, where these tests look at what the ledger wrote.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

_TOTAL = 14


@dataclass
class _Story:
    """What became of it."""

    nodes: Nodes
    died_first: str = ""
    """The node that died in trial 2."""
    none_left: int = 0
    """What the driver ended with when no node was left."""
    log: list[str] = field(default_factory=list)
    """What the drivers on the cluster had said by the end of each."""
    kept: dict[int, str] = field(default_factory=dict)
    """Outcomes on disk when the driver was killed."""
    second: "subprocess.CompletedProcess[str] | None" = None
    """The driver that came while another one searched."""
    driver: int = 0
    """The process id of that other one."""
    ended_s: float = 0.0
    """How long trials' processes outlived their driver."""

    @property
    def folder(self) -> Path:
        return self.nodes.here / "runs" / "s"

    @cached_property
    def trials(self) -> tuple[StoredTrial, ...]:
        return read_trials(self.folder)

    @cached_property
    def by_number(self) -> dict[int, StoredTrial]:
        return {trial.number: trial for trial in self.trials}

    @cached_property
    def database(self) -> list[optuna.trial.FrozenTrial]:
        """All trials that the sampler was told of."""
        storage = f"sqlite:///{self.nodes.here / 'runs' / 'studies.db'}"
        return optuna.load_study(study_name="s", storage=storage).trials

    def told(self, number: int) -> optuna.trial.FrozenTrial:
        """A trial as the sampler knows it."""
        return self.database[number]

    def text(self, trial: StoredTrial) -> str:
        """Its outcome on disk."""
        return (self.folder / "trials" / f"{trial.number:04}" / "outcome.json").read_text()

    def on(self, name: str) -> list[StoredTrial]:
        """What this node measured, in the order it was sent out."""
        return sorted((t for t in self.trials if t.ran.node == name), key=lambda trial: trial.started)


def _outcomes(folder: Path) -> dict[int, str]:
    return {int(file.parent.name): file.read_text() for file in folder.glob("trials/[0-9]*/outcome.json")}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[_Story]:
    here = tmp_path_factory.mktemp("nodes")
    with two_nodes(here, mlflow_template, range(2, _TOTAL)) as nodes:
        told = _Story(nodes)
        _two_nodes_die(told)
        for name in ("d", "e"):
            nodes.start(name)
        _the_driver_dies(told)
        _the_study_ends(told)
        yield told


def _session(told: _Story, driver: "subprocess.Popen[bytes]") -> int:
    """Wait for a driver's end; what it ended with."""
    code = driver.wait(300)
    told.log.append(told.nodes.log())
    return code


def _two_nodes_die(told: _Story) -> None:
    """One in trial 2, which another one then measures; two in trial 5. A node joins between."""
    nodes = told.nodes
    driver = nodes.search("--space", str(nodes.here / "tiny.yaml"), "--trials", str(_TOTAL))
    dead = told.died_first = nodes.held(2, ("a", "b"))
    alive = nodes.held(3, ("a", "b"))
    nodes.start("c")
    nodes.kill(dead)
    nodes.let(2, 3)
    # Wherever it is, c begins with its control, which has the next number.
    nodes.let(4)
    first = nodes.held(5, (alive, "c"))
    second = nodes.held(6, (alive, "c"))
    nodes.kill(first)
    # Or a new trial would be sent to the one node left before the loss is known, and be held there.
    until(lambda: "trial 5 is run again" in nodes.log(), "loss of trial 5's node", nodes.log)
    nodes.let(6)
    assert nodes.held(5, (second,)) == second
    nodes.kill(second)
    told.none_left = _session(told, driver)


def _the_driver_dies(told: _Story) -> None:
    """While both new nodes measure, and after another driver was refused."""
    nodes = told.nodes
    driver = nodes.search("--resume", "--trials", str(_TOTAL))
    until(lambda: len(list(nodes.here.glob("held-*-[de]"))) == 2, "two trials under way", nodes.log)
    words = ("search", "--engine", "simulated", "--study", "s", "--resume", "--trials", str(_TOTAL))
    told.second = nodes.run(*words, "--runs", str(nodes.here / "runs"))
    told.driver = driver.pid
    told.kept = _outcomes(told.folder)
    held = [json.loads(file.read_text()) for file in nodes.here.glob("held-*-[de]")]
    driver.kill()
    began = time.monotonic()
    running = [tuple(one["process"]) for one in held]
    until(lambda: not any(is_running(*one) for one in running), "end of the trials' processes", nodes.log)
    told.ended_s = time.monotonic() - began
    _session(told, driver)
    for file in nodes.here.glob("hold-*"):
        file.unlink()


def _the_study_ends(told: _Story) -> None:
    """On this machine alone: what is measured there counts as well."""
    nodes = told.nodes
    asked = ("--engine", "simulated", "--study", "s", "--runs", str(nodes.here / "runs"))
    ended = nodes.run("search", *asked, "--resume", "--trials", str(_TOTAL))
    assert ended.returncode == 0, ended.stderr


def test_a_trial_whose_node_is_killed_runs_again_on_another_and_teaches_the_sampler_nothing_of_it(
    story: _Story,
) -> None:
    trial = story.by_number[2]
    assert (trial.state, trial.attempts) == (State.MEASURED, 2)
    assert trial.ran.node not in (story.died_first, None)
    assert "trial 2 is run again: lost node: " in story.log[0]
    told = story.told(2)
    assert told.state is optuna.trial.TrialState.COMPLETE
    assert "cause" not in told.user_attrs
    assert trial.measurement is not None
    assert told.values[1] == pytest.approx(1e3 * trial.measurement.metrics["tpot_p95_s"].value)
    assert story.on(story.died_first)  # it had measured before


def test_a_config_that_two_nodes_were_killed_with_is_at_fault_and_no_other_trial_is(story: _Story) -> None:
    (at_fault,) = (trial for trial in story.trials if trial.state is State.FAILED)
    assert (at_fault.number, at_fault.cause, at_fault.attempts) == (5, Cause.LOST_TWICE, 2)
    assert story.told(5).user_attrs["cause"] == Cause.LOST_TWICE.value
    assert at_fault.config not in [trial.config for trial in story.trials if trial is not at_fault]


def test_where_every_node_was_killed_one_line_says_so_and_that_the_study_can_go_on(story: _Story) -> None:
    assert story.none_left == 2
    *_, last = story.log[0].splitlines()
    assert last.startswith("error: no node is left for trial ")
    assert "--resume goes on" in last


def test_a_node_that_joins_begins_with_the_control(story: _Story) -> None:
    for name in "abc":
        assert story.on(name)[0].is_control


def test_a_second_driver_is_refused_by_the_name_of_the_first(story: _Story) -> None:
    assert story.second is not None
    assert story.second.returncode == 2
    *_, last = story.second.stderr.splitlines()
    assert last.startswith(f"error: study s is being searched by process {story.driver} on ")


def test_trials_of_a_killed_driver_end_on_a_cluster_that_goes_on(story: _Story) -> None:
    assert story.ended_s < 60
    assert {trial.number: story.text(trial) for trial in story.trials}.items() >= story.kept.items()
    assert len(story.kept) == 7


def test_the_study_has_exactly_the_trials_asked_for_in_the_database_and_in_mlflow(story: _Story) -> None:
    assert len(story.trials) == _TOTAL
    states = {one.number: one.state for one in story.database}
    measured = {trial.number for trial in story.trials if trial.state is State.MEASURED}
    assert {n for n, state in states.items() if state is optuna.trial.TrialState.COMPLETE} == measured
    assert not [n for n, state in states.items() if not state.is_finished()]
    cancelled = set(states) - {trial.number for trial in story.trials}
    assert {story.told(number).user_attrs["cause"] for number in cancelled} <= {Cause.CANCELLED.value}
    runs = trial_runs(story.nodes.here / "runs" / "mlflow.db")
    logged = Counter(run.data.tags["trial"] for run in runs)
    assert logged == Counter(str(trial.number) for trial in story.trials)
    first = [json.dumps(dict(trial.config or {})) for trial in story.trials if trial.repeats is None]
    assert max(Counter(first).values()) == 1


def test_nodes_tells_of_each_what_it_has_and_whether_a_trial_could_run_there(story: _Story) -> None:
    nodes = story.nodes
    words = ("--space", str(nodes.here / "tiny.yaml"), "--json")
    asked = nodes.run("nodes", "--ray", nodes.address, *words)
    assert asked.returncode == 0, asked.stderr
    found = {one["name"]: one for one in json.loads(asked.stdout)["nodes"]}
    assert {name: one["cpus"] for name, one in found.items()} == {"head": 0, "d": 1, "e": 1}
    assert {name: one["trials_at_once"] for name, one in found.items()} == {"head": 0, "d": 1, "e": 1}
    assert found["head"]["why_not"] == ["Ray gives out 0 CPUs there, and a trial takes 1"]
    assert {one["ray"] for one in found.values()} == {version("ray")}
