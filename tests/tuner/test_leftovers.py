import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.node.guard import read_record
from cluster.node.guarded import PACKAGE_ROOT, RECORD_NAME
from cluster.node.owner import OWNER, Life, Owner, mark, owner_of, trial_folder
from cluster.node.processes import process
from tests.tuner import stories
from tuner.cli import main
from tuner.leftovers import Kind, find_leftovers, remove
from tuner.records import read_trials, write_outcome, write_study
from tuner.study import locked


def wait_until(holds: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def running(pids: tuple[int, ...]) -> list[int]:
    return [pid for pid in pids if (found := process(pid)) is not None and not found.zombie]


TRIAL = textwrap.dedent(
    """
    import os, time
    from cluster.node.guarded import GuardedProcess
    from cluster.node.owner import trial_folder
    with trial_folder() as folder:
        with GuardedProcess(["sh", "-c", "sleep 300 & sleep 300"], folder=folder, log=folder / "engine.log",
                            environment=os.environ, grace_s=1.0):
            print(folder, flush=True)
            time.sleep(300)
    """
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A temporary folder of its own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def trial(place: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process with an engine under way; `place` holds its folder."""
    started = subprocess.Popen(
        [sys.executable, "-c", TRIAL],
        cwd=PACKAGE_ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    )
    yield started
    started.kill()
    started.communicate()


def folder_of(trial: "subprocess.Popen[str]") -> Path:
    assert trial.stdout is not None
    return Path(trial.stdout.readline().strip())


def test_an_engine_without_guard_and_trial_is_found_by_its_record_and_ended(
    place: Path, runs: Path, trial: "subprocess.Popen[str]"
) -> None:
    folder = folder_of(trial)
    assert find_leftovers(runs, place) == ()
    record = read_record(folder / RECORD_NAME)
    assert record is not None
    trial.kill()  # and the guard at once, before it has ended anything
    os.kill(record.pid, signal.SIGKILL)
    trial.wait()
    assert wait_until(lambda: running((record.command_pid, record.pid)) == [])
    left = find_leftovers(runs, place)
    # The shell's children, its record's folder, and the one that the guard made for the engine.
    assert [one.kind for one in left] == [Kind.PROCESSES, Kind.FOLDER, Kind.FOLDER]
    assert len(left[0].pids) == 2
    assert f"process {trial.pid}, which is gone" in left[0].why
    for one in left:
        remove(one)
    assert running(left[0].pids) == []
    assert list(place.iterdir()) == []
    assert find_leftovers(runs, place) == ()


def test_nothing_is_left_of_a_trial_that_is_killed_alone(
    place: Path, runs: Path, trial: "subprocess.Popen[str]"
) -> None:
    folder = folder_of(trial)
    record = read_record(folder / RECORD_NAME)
    assert record is not None
    trial.kill()
    trial.wait()
    assert wait_until(lambda: record.ours == ())
    assert [(one.kind, one.path) for one in find_leftovers(runs, place)] == [(Kind.FOLDER, folder)]


def test_a_folder_in_use_is_no_leftover(runs: Path) -> None:
    with trial_folder() as folder:
        found = owner_of(folder)
        assert found is not None
        assert (found.pid, found.life) == (os.getpid(), Life.ALIVE)
        assert folder not in [one.path for one in find_leftovers(runs)]
    assert not folder.exists()


@pytest.fixture
def mine(place: Path) -> Owner:
    mark(place)
    found = owner_of(place)
    assert found is not None
    (place / OWNER).unlink()
    return found


def _another(owner: Owner, **changes: object) -> Owner:
    return replace(owner, **changes)  # type: ignore[arg-type]  # as the fields are


@pytest.mark.parametrize(
    ("changes", "life"),
    [
        ({}, Life.ALIVE),
        ({"started": 1}, Life.DEAD),  # its number was used again
        ({"boot": "another"}, Life.DEAD),
        ({"node": "another"}, Life.ELSEWHERE),
        ({"namespace": 1}, Life.ELSEWHERE),
        ({"pid": 2**22 + 1}, Life.DEAD),
    ],
)
def test_only_who_is_known_to_be_dead_is_dead(
    place: Path, runs: Path, mine: Owner, changes: dict[str, object], life: Life
) -> None:
    owner = _another(mine, **changes)
    assert owner.life is life
    (place / "work").mkdir()
    (place / "work" / OWNER).write_text(json.dumps(asdict(owner)))
    assert len(find_leftovers(runs, place)) == (1 if life is Life.DEAD else 0)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"pid": 1}'])
def test_a_folder_that_does_not_say_whose_it_is_is_left_alone(
    place: Path, runs: Path, text: str | None
) -> None:
    for name in ("tuner-trial-abc", "ray-abc", "somebody-elses"):
        (place / name).mkdir()
        if text is not None:
            (place / name / OWNER).write_text(text)
    assert find_leftovers(runs, place) == ()


def test_what_goes_while_it_is_looked_at_is_no_fault(
    place: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "link").symlink_to(place)
    there = tuple(place.iterdir())
    monkeypatch.setattr(Path, "iterdir", lambda path: iter((*there, place / "gone")))
    assert find_leftovers(runs, place) == ()


def test_a_folder_of_another_user_says_nothing_of_our_processes(
    place: Path, runs: Path, mine: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "work").mkdir()
    (place / "work" / OWNER).write_text(json.dumps(asdict(_another(mine, started=1))))
    assert len(find_leftovers(runs, place)) == 1
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert find_leftovers(runs, place) == ()


def study(runs: Path) -> Path:
    """A study with trials 1 and 2 whole, 3 half-written and 4 torn, itself half-written again."""
    folder = runs / "tea"
    write_study(folder, stories.study_file())
    outcome = stories.measured()
    for number in (1, 2, 4):
        write_outcome(folder, stories.stored(outcome, number), outcome)
    (folder / "trials" / ".0003.part").mkdir()
    (folder / "trials" / "0004" / "outcome.json").write_text('{"half')
    (folder / ".study.json.part").touch()
    return folder


def test_what_is_half_written_is_removed_and_nothing_else(place: Path, runs: Path) -> None:
    folder = study(runs)
    (runs / f".mlflow.db.{2**22 + 1}.part").touch()
    (runs / f".mlflow.db.{os.getpid()}.part").touch()
    (folder / "trials" / "notes").mkdir()
    left = find_leftovers(runs, place)
    assert sorted((one.kind.value, one.path.name) for one in left) == [
        ("half-written", ".0003.part"),
        ("half-written", f".mlflow.db.{2**22 + 1}.part"),
        ("half-written", ".study.json.part"),
        ("torn record", "0004"),
    ]
    for one in left:
        remove(one)
    assert [trial.number for trial in read_trials(folder)] == [1, 2]
    assert sorted(path.name for path in (folder / "trials").iterdir()) == ["0001", "0002", "notes"]
    assert (runs / f".mlflow.db.{os.getpid()}.part").exists()


def test_a_study_that_is_being_searched_is_left_alone(place: Path, runs: Path) -> None:
    folder = study(runs)
    with locked(folder):
        assert find_leftovers(runs, place) == ()
    assert len(find_leftovers(runs, place)) == 3


def test_a_record_of_another_version_is_no_leftover(place: Path, runs: Path) -> None:
    write_study(runs / "tea", stories.study_file())
    outcome = stories.measured()
    file = write_outcome(runs / "tea", stories.stored(outcome, 1), outcome) / "outcome.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    assert find_leftovers(runs, place) == ()


def clean(runs: Path, *words: str, answer: str = "") -> tuple[int, str]:
    ran = CliRunner().invoke(main, ["doctor", "--clean", "--runs", str(runs), *words], input=answer)
    return ran.exit_code, ran.stdout


def test_a_person_is_asked_before_anything_is_removed(
    place: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))
    folder = study(runs)
    code, told = clean(runs, answer="n\n")
    assert code == 0
    assert told.splitlines()[-1] == "nothing was removed"
    assert "torn record" in told
    assert (folder / "trials" / "0004").exists()
    code, told = clean(runs, answer="y\n")
    assert told.splitlines()[-1] == "removed 3"
    assert not (folder / "trials" / "0004").exists()
    assert clean(runs) == (0, "nothing is left of a crash\n")


def test_a_script_says_yes_and_reads_what_was_removed(
    place: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))
    study(runs)
    code, told = clean(runs, "--yes", "--json")
    assert code == 0
    answer = json.loads(told)
    assert answer["removed"] is True
    assert {one["kind"] for one in answer["leftovers"]} == {"half-written", "torn record"}
    assert json.loads(clean(runs, "--yes", "--json")[1]) == {"removed": False, "leftovers": []}


def test_without_an_answer_nothing_is_removed(
    place: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))
    folder = study(runs)
    code, _ = clean(runs)
    assert code != 0
    assert (folder / "trials" / "0004").exists()
