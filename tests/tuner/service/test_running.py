"""What the service says of trials under way, from the file that a job's process keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.phase import Phase, PhaseName
from tests.tuner import stories
from tuner.events import Finished, Noted, Retried, Started, UnderWay
from tuner.service.running import Running, running_trials

REPLAY = Phase(name=PhaseName.REPLAYING, replay=2, speed=1.25, requests=8)


def under_way(number: int, phase: Phase, node: str | None = "gpu-a") -> UnderWay:
    return UnderWay(number=number, node=node, phase=phase)


def finished(number: int) -> Finished:
    return Finished(
        number=number,
        config={},
        is_control=False,
        outcome=stories.measured(),
        unscored=None,
        on_front=False,
        objectives=(),
        done=1,
        total=2,
        eta_s=None,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "running.json"


def told(path: Path) -> list[Any]:
    return list(running_trials(path))


def test_each_trial_under_way_is_there_with_its_newest_phase_and_since_when(path: Path) -> None:
    running = Running(path)
    running.take(under_way(3, Phase(name=PhaseName.STARTING, stage="importing")))
    running.take(under_way(1, REPLAY, node=None))
    running.take(under_way(3, Phase(name=PhaseName.WARMING_UP)))
    first, third = told(path)
    assert {name: value for name, value in first.items() if name != "since"} == {
        "trial": 1,
        "node": None,
        "phase": "replaying",
        "stage": None,
        "replay": 2,
        "speed": 1.25,
    }
    assert (third["trial"], third["node"], third["phase"], third["stage"]) == (3, "gpu-a", "warming up", None)
    assert first["since"].endswith("+00:00")


def test_a_trial_that_ended_or_goes_again_is_no_longer_there(path: Path) -> None:
    running = Running(path)
    for number in (1, 2, 3):
        running.take(under_way(number, REPLAY))
    assert running.take(finished(1))
    assert running.take(Retried(number=2, reason="lost node: gone"))
    assert [trial["trial"] for trial in told(path)] == [3]
    assert running.take(under_way(2, REPLAY))  # the same phase as before, in another try


def test_only_another_phase_is_news_and_nothing_is_written_for_how_far_it_is(path: Path) -> None:
    running = Running(path)
    assert running.take(under_way(1, REPLAY))
    before = path.stat().st_ino
    assert not running.take(
        under_way(1, Phase(name=PhaseName.REPLAYING, replay=2, speed=1.25, requests=8, ended=5))
    )
    assert path.stat().st_ino == before
    assert running.take(under_way(1, Phase(name=PhaseName.STOPPING)))
    assert path.stat().st_ino != before


def test_all_else_is_news_and_changes_nothing(path: Path) -> None:
    running = Running(path)
    for event in ("a remark", Noted(text="x")):
        assert running.take(event)
    assert told(path) == []


def test_a_trial_that_told_nothing_yet_was_sent_out(path: Path) -> None:
    running = Running(path)
    assert running.take(Started(number=1, config={}, is_control=False))
    (only,) = told(path)
    assert (only["trial"], only["phase"], only["node"]) == (1, "sent out", None)
    assert running.take(under_way(1, Phase(name=PhaseName.SENT)))  # where to
    (only,) = told(path)
    assert (only["phase"], only["node"]) == ("sent out", "gpu-a")


def test_a_process_that_begins_runs_nothing_and_where_there_is_no_file_nothing_runs(path: Path) -> None:
    assert told(path) == []
    path.write_text("")  # as a machine's crash may leave it
    assert told(path) == []
    path.write_text(json.dumps({"trials": [{"trial": 1}]}))
    Running(path)
    assert told(path) == []
