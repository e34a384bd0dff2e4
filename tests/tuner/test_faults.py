"""What a study must survive. docs/faults.md lists the faults, and which test injects each."""

import json
import logging
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from cluster.order import Measured, Order, Outcome
from tests.tuner import stories
from tests.tuner.dispatches import FakeDispatch
from tests.tuner.test_study import Desk, good
from tuner.records import State, TornRecord, read_outcome, read_trials, write_outcome, write_study
from tuner.sampler import SamplerError
from tuner.study import Retried, StudyError, search

# MLflow 3.17 on SQLAlchemy 2.1, where these tests look at what the ledger wrote.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

TOTAL = 5
SEED = "1"
"""Of the writes that drivers are killed at; any other must do as well."""


@pytest.fixture
def killed(tmp_path: Path, mlflow_template: Path) -> Path:
    """The folder of a study that eight drivers died of, each at one of its writes, and the ninth ended."""
    shutil.copy(mlflow_template, tmp_path / "mlflow.db")
    words = [sys.executable, "-m", "tests.tuner.mortal", str(tmp_path), str(TOTAL), SEED, "8"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert len(told["died"]) == 8
    return tmp_path


@pytest.mark.timeout(600)
def test_drivers_killed_at_any_write_lose_nothing_run_nothing_twice_and_log_nothing_twice(
    killed: Path,
) -> None:
    trials = read_trials(killed / "tea")
    assert len(trials) == TOTAL
    first = Counter(json.dumps(dict(t.arguments), sort_keys=True) for t in trials if t.repeats is None)
    assert set(first.values()) == {1}
    assert Desk(killed).open().running() == ()

    client = MlflowClient(f"sqlite:///{killed}/mlflow.db")
    (experiment,) = (found for found in client.search_experiments() if found.name == "tuner/small")
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    by_trial = {run.data.tags.get("trial", "study"): run for run in runs}
    assert len(by_trial) == len(runs) == TOTAL + 1
    assert {run.info.status for run in runs} == {"FINISHED"}
    for trial in trials:
        run = by_trial[str(trial.number)]
        history = client.get_metric_history(run.info.run_id, "goodput_rps")
        assert [point.value for point in history] == [1.0 + trial.number]
        names = {item.path for item in client.list_artifacts(run.info.run_id)}
        assert {"outcome.json", "requests.parquet", "counters.parquet", "engine.log"} <= names


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@contextmanager
def a_disk_of(size: int) -> Iterator[None]:
    """As where a disk is full: no file may grow beyond this, EFBIG (setrlimit(2); Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_leaves_no_half_of_a_trial_and_says_what_to_do(tmp_path: Path) -> None:
    outcome = stories.measured(log="a line of the engine's\n" * 10_000)
    with a_disk_of(50_000), pytest.raises(OSError, match="File too large") as caught:
        write_outcome(tmp_path, stories.stored(outcome), outcome)
    assert caught.value.strerror is not None
    assert "trial 7 was not kept and is measured again: make room, then go on with --resume" in str(
        caught.value
    )
    assert list((tmp_path / "trials").iterdir()) == []
    write_outcome(tmp_path, stories.stored(outcome), outcome)
    assert [trial.number for trial in read_trials(tmp_path)] == [7]


def test_a_series_that_does_not_fit_is_no_trial_either(tmp_path: Path) -> None:
    outcome = replace(stories.measured(), records=stories.RECORDS * 2000)
    with a_disk_of(4000), pytest.raises(OSError, match="make room"):
        write_outcome(tmp_path, stories.stored(outcome), outcome)
    assert read_trials(tmp_path) == ()
    assert list((tmp_path / "trials").iterdir()) == []


def test_a_study_that_does_not_fit_was_not_begun(tmp_path: Path) -> None:
    with a_disk_of(100), pytest.raises(OSError, match="the study was not begun: make room"):
        write_study(tmp_path / "tea", stories.study_file())
    assert list((tmp_path / "tea").iterdir()) == []


def test_a_search_whose_disk_filled_up_goes_on_when_there_is_room(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(order: Order) -> Outcome:
        return (
            replace(good(order), ran=replace(good(order).ran, log="x" * 2**20))
            if order.number == 2
            else good(order)
        )

    with a_disk_of(2**19), pytest.raises(OSError, match="trial 2 was not kept"):
        desk.search(5, full)
    assert desk.open().running() == ()
    desk.search(5)
    assert len(read_trials(desk.folder)) == 5


def test_a_study_database_that_is_locked_ends_the_search_with_what_is_measured_on_disk(
    tmp_path: Path,
) -> None:
    # 0.1 s instead of the 5 s that SQLite waits by itself.
    desk = Desk(tmp_path, storage=f"sqlite:///{tmp_path}/study.db?timeout=0.1")
    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:

        def locking(order: Order) -> Measured:
            if order.number == 2:
                other.execute("BEGIN EXCLUSIVE")
            return good(order)

        with pytest.raises(SamplerError, match=r"database is locked.*what was measured is on disk.*--resume"):
            desk.search(5, locking)
        other.rollback()
    assert [trial.number for trial in read_trials(desk.folder)] == [0, 1, 2]
    desk.search(5)
    trials = read_trials(desk.folder)
    assert [trial.number for trial in trials] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("left", [None, "", '{"schema": 1, "nu', "\0" * 512])
def test_a_torn_record_is_left_out_with_a_warning_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: str | None
) -> None:
    outcome = stories.measured()
    for number in (1, 2):
        write_outcome(tmp_path, stories.stored(outcome, number), outcome)
    file = tmp_path / "trials" / "0001" / "outcome.json"
    if left is None:
        file.unlink()
    else:
        file.write_text(left)
    assert [trial.number for trial in read_trials(tmp_path)] == [2]
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert str(file) in warning.getMessage()
    assert "tuner doctor --clean" in warning.getMessage()
    with pytest.raises(TornRecord):
        read_outcome(file.parent)


@pytest.mark.parametrize("database_too", [False, True])
def test_a_study_with_a_torn_record_measures_another_trial_in_its_place(
    desk: Desk, tmp_path: Path, database_too: bool
) -> None:
    desk.search(4)
    (desk.folder / "trials" / "0003" / "outcome.json").write_text("")
    if database_too:
        (tmp_path / "study.db").unlink()
    desk.search(4)
    assert [trial.number for trial in read_trials(desk.folder)] == [0, 1, 2, 4]
    assert {trial.state for trial in read_trials(desk.folder)} == {State.MEASURED}


def test_a_search_that_meant_to_begin_a_study_that_another_began_meanwhile_is_refused(desk: Desk) -> None:
    desk.search(2)
    desk.study = replace(desk.study, id="another")
    with pytest.raises(StudyError, match="was begun by another search meanwhile"):
        desk.search(4)
    assert len(read_trials(desk.folder)) == 2


class Hung(FakeDispatch):
    """Never ends trial 2, so often as is said."""

    def __init__(self, times: int) -> None:
        super().__init__(good, gpus=2)
        self.left = times

    def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        hung = [order for order in self.waiting if order.number == 2] if self.left else []
        if hung and len(self.waiting) == 1:
            return None
        if hung and self.waiting[0] is hung[0]:
            self.waiting.rotate(-1)
        return super().next(timeout_s)

    def cancel(self) -> None:
        super().cancel()
        self.left = max(0, self.left - 1)


class Clock:
    """Goes on by so much at every look."""

    def __init__(self, step_s: float) -> None:
        self._now = stories.MORNING
        self._step = timedelta(seconds=step_s)

    def __call__(self) -> datetime:
        self._now += self._step
        return self._now


def test_a_trial_that_never_ends_is_sent_out_again_with_what_was_under_way(desk: Desk) -> None:
    dispatch = Hung(times=1)
    events = search(desk.plan(6), dispatch, desk.open(), desk.journal, now=Clock(60.0))
    retried = {event.number: event.reason for event in events if isinstance(event, Retried)}
    assert retried[2].startswith("did not end within ")
    assert set(retried.values()) - {retried[2]} <= {"another one did not end"}
    trials = read_trials(desk.folder)
    assert len(trials) == 6
    assert [trial.attempts for trial in trials if trial.number == 2] == [2]
    assert {trial.attempts for trial in trials if trial.number != 2} == {1}


def test_a_trial_that_never_ends_twice_ends_the_search_and_not_its_config(desk: Desk) -> None:
    dispatch = Hung(times=9)
    with pytest.raises(StudyError, match=r"trial 2 was sent out 2 times and did not end.*--resume"):
        list(search(desk.plan(6), dispatch, desk.open(), desk.journal, now=Clock(60.0)))
    assert dispatch.cancelled
    assert 2 not in {trial.number for trial in read_trials(desk.folder)}
    assert desk.open().running() == ()
    desk.search(6)
    assert len(read_trials(desk.folder)) == 6


def test_a_slow_trial_is_waited_for_as_long_as_it_may_take(desk: Desk) -> None:
    waits = 0

    class Slow(FakeDispatch):
        def next(self, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
            nonlocal waits
            if waits < 300 and any(order.number == 2 for order in self.waiting):
                waits += 1
                return None
            return super().next(timeout_s)

    # The control took a minute by this clock, which goes on by half a minute a look: 2 h are allowed.
    events = list(search(desk.plan(3), Slow(good), desk.open(), desk.journal, now=Clock(5.0)))
    assert waits == 300
    assert not [event for event in events if isinstance(event, Retried)]
