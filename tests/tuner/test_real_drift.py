"""A study on two real Ray nodes, one of which becomes slower in the middle of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from objectives.goal import Goal
from tests.tuner.real_nodes import Nodes, trial_runs, two_nodes, until
from tests.tuner.told_engine import SLOWER
from tuner.node_controls import EVERY, NodeState, doubtful, standings
from tuner.records import StoredTrial, read_study, read_trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # MLflow 3.17 on SQLAlchemy 2.1, where these tests look at what the ledger wrote.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

_TOTAL = 60
_HELD = (8, 9)
"""Trials that wait, one on each node, until one node is slow: its control was good by then, and is not due
again yet."""


@dataclass
class _Story:
    nodes: Nodes
    log: str
    front: dict[str, Any]
    """`tuner front --json` at the end."""

    @cached_property
    def trials(self) -> tuple[StoredTrial, ...]:
        return read_trials(self.nodes.here / "runs" / "s")

    @cached_property
    def goal(self) -> Goal:
        return Goal.of(read_study(self.nodes.here / "runs" / "s").objectives)

    @cached_property
    def doubted(self) -> frozenset[int]:
        return doubtful(self.trials, self.goal)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[_Story]:
    here = tmp_path_factory.mktemp("drift")
    with two_nodes(here, mlflow_template, _HELD) as nodes:
        driver = nodes.search("--space", str(here / "tiny.yaml"), "--trials", str(_TOTAL))
        until(lambda: len(list(here.glob("held-*"))) == 2, "trial held on each node", nodes.log)
        (here / "slow-b").touch()
        nodes.let(*_HELD)
        assert driver.wait(300) == 0, nodes.log()[-3000:]
        shown = nodes.run("front", "s", "--runs", str(here / "runs"), "--json")
        assert shown.returncode == 0, shown.stderr
        yield _Story(nodes, nodes.log(), json.loads(shown.stdout))


def test_a_node_that_becomes_slow_is_set_aside_at_its_next_control_and_told_by_name(story: _Story) -> None:
    assert {name: one.state for name, one in standings(story.trials, story.goal).items()} == {
        "a": NodeState.GOOD,
        "b": NodeState.ASIDE,
    }
    (told,) = [line for line in story.log.splitlines() if "is set aside" in line]
    assert "node b is set aside, its control (trial" in told
    there = sorted((t for t in story.trials if t.ran.node == "b"), key=lambda trial: trial.started)
    # Good, and twice out of its noise after so many trials; and nothing after that.
    assert [at for at, trial in enumerate(there) if trial.is_control] == [0, EVERY + 1, EVERY + 2]
    assert len(there) == EVERY + 3
    first, *_, last = (trial.measurement for trial in there if trial.is_control)
    assert first is not None
    assert last is not None
    longer = last.metrics["tpot_p95_s"].value / first.metrics["tpot_p95_s"].value
    assert longer == pytest.approx(SLOWER, rel=0.35)


def test_what_it_measured_since_its_last_good_control_is_measured_on_the_other_node(story: _Story) -> None:
    by_number = {trial.number: trial for trial in story.trials}
    lost = sorted(number for number in story.doubted if not by_number[number].is_control)
    assert len(lost) == EVERY
    assert {by_number[number].ran.node for number in story.doubted} == {"b"}
    for number in lost:
        (again,) = (trial for trial in story.trials if trial.repeats == number)
        assert again.ran.node == "a"
        assert again.config == by_number[number].config
    assert len(story.trials) == _TOTAL


def test_no_front_shows_what_a_slow_node_measured(story: _Story) -> None:
    shown = {trial["number"] for trial in story.front["front"]}
    assert shown
    assert not shown & story.doubted


def test_every_trial_is_in_mlflow_once_those_of_the_slow_node_too(story: _Story) -> None:
    logged = [run.data.tags["trial"] for run in trial_runs(story.nodes.here / "runs" / "mlflow.db")]
    assert sorted(logged) == sorted(str(trial.number) for trial in story.trials)
