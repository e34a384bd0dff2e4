import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from cluster.node.secrecy import secret_values
from cluster.order import Cause, Outcome
from tests.tuner import loads, stories
from tests.tuner.verdicts import verdict
from tuner.front import read_view
from tuner.ledger import Ledger, Standing, _make_database
from tuner.ledger_lock import LOCK, writing
from tuner.quality import verdict_file
from tuner.records import State, StoredTrial, StudyFile, trial_folder, write_outcome, write_study

# MLflow 3.17 on SQLAlchemy 2.1, where these tests look at what the ledger wrote.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

NewMlflow = Callable[[], str]


class Desk:
    """A study on disk, an MLflow, and the ledger between them."""

    def __init__(self, folder: Path, uri: str, study: StudyFile | None = None) -> None:
        self.folder = folder / "tea"
        self.artifacts = folder / "artifacts"
        self.uri = uri
        self.said: list[str] = []
        self.now_s = 0.0
        self.ledger = self.new_ledger()
        write_study(self.folder, study or stories.study_file())

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def new_ledger(self) -> Ledger:
        return Ledger(self.uri, artifacts=self.artifacts, say=self.said.append, now=lambda: self.now_s)

    def store(self, number: int, outcome: Outcome) -> StoredTrial:
        trial = stories.stored(outcome, number)
        write_outcome(self.folder, trial, outcome)
        return trial

    def sync(self, ledger: Ledger | None = None, standing: Standing = "RUNNING") -> bool:
        return (ledger or self.ledger).sync(self.folder, read_view(self.folder), standing)

    def runs(self) -> list[Run]:
        (experiment,) = (e for e in self.client.search_experiments() if e.name == "tuner/small")
        return list(self.client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL))

    def study_run(self) -> Run:
        (run,) = (run for run in self.runs() if "trial" not in run.data.tags)
        return run

    def trial_run(self, number: int) -> Run:
        (run,) = (run for run in self.runs() if run.data.tags.get("trial") == str(number))
        return run

    def artifact_names(self, run: Run) -> set[str]:
        return {item.path for item in self.client.list_artifacts(run.info.run_id)}


@pytest.fixture
def desk(tmp_path: Path, new_mlflow: NewMlflow) -> Desk:
    return Desk(tmp_path, new_mlflow())


def test_a_measured_trial_is_a_run_nested_in_its_studys_run(desk: Desk) -> None:
    desk.store(7, stories.measured())
    assert desk.sync()
    run, study = desk.trial_run(7), desk.study_run()
    assert run.data.tags["mlflow.parentRunId"] == study.info.run_id
    # The simulated engine's numbers are marked where a name stands alone.
    assert run.info.run_name == "trial 7 (simulated) · ngram · depth 3 · seqs 16"
    assert study.info.run_name == "simulated · tea"
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 30_000
    assert run.data.params["speculation.depth"] == "3"
    assert run.data.params["engine.max_num_seqs"] == "16"
    assert run.data.params["engine.speculative_config.method"] == "ngram"
    assert run.data.params["effective.kv_blocks"] == "100"
    assert {
        name: run.data.metrics[name]
        for name in ("goodput_rps", "interval/goodput_rps_low", "interval/goodput_rps_high")
    } == {
        "goodput_rps": 2.0,
        "interval/goodput_rps_low": 1.5,
        "interval/goodput_rps_high": 2.5,
    }
    assert run.data.metrics["tpot_p95_ms"] == pytest.approx(40.0)
    assert "interval/tpot_p95_ms_high" not in run.data.metrics
    tags = {name: run.data.tags.get(name) for name in ("status", "on_front", "engine", "cpu", "simulated")}
    assert tags == {
        "status": "measured",
        "on_front": "true",
        "engine": "simulated",
        "cpu": "a CPU",
        "simulated": "true",
    }
    assert desk.artifact_names(run) == {
        "outcome.json",
        "requests.parquet",
        "counters.parquet",
        "engine.log",
        "command.txt",
    }


def test_a_failed_trial_is_a_failed_run_with_its_cause_and_no_metric_of_the_replay(desk: Desk) -> None:
    desk.store(1, stories.failed(Cause.OUT_OF_MEMORY, "no KV blocks left"))
    desk.sync()
    run = desk.trial_run(1)
    assert run.info.status == "FAILED"
    assert (run.data.tags["cause"], run.data.tags["reason"]) == ("out of memory", "no KV blocks left")
    assert run.data.tags["on_front"] == "false"
    assert run.data.metrics == {}


def test_the_studys_run_holds_the_front_the_space_and_the_trace(desk: Desk) -> None:
    desk.store(0, stories.measured(1.0, 0.05))
    desk.store(1, stories.measured(2.0, 0.03))
    desk.sync()
    run = desk.study_run()
    assert run.info.status == "RUNNING"
    assert desk.artifact_names(run) == {"front.json", "front.html", "space.yaml", "study.json"}
    path = desk.client.download_artifacts(run.info.run_id, "front.json")
    assert [trial["number"] for trial in json.loads(Path(path).read_text())["front"]] == [1]
    assert run.data.params["trace.digest"] == "ab" * 32
    assert run.data.params["slo.ttft_s"] == "0.5"
    # 4 requests/s as recorded, played 1.5 times as fast
    assert (run.data.params["speed"], run.data.params["offered_rps"]) == ("1.5", "6")
    trial = desk.trial_run(1).data.params
    assert (trial["workload.speed"], trial["workload.offered_rps"]) == ("1.5", "6")
    assert run.data.metrics["trials_measured"] == 2.0
    note = run.data.tags["mlflow.note.content"]
    assert "| 1 | 2 (1.5 to 2.5) | 30 (27 to ?) |" in note
    assert "the engine's defaults" in note


def test_only_the_tags_of_trials_that_came_or_left_change_as_the_front_moves(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.store(1, stories.measured(2.0, 0.03))
    desk.store(2, stories.measured(1.0, 0.02))
    desk.sync()
    changed: list[tuple[str, str]] = []
    set_tag = MlflowClient.set_tag

    def seen(client: MlflowClient, run_id: str, key: str, value: str) -> None:
        changed.append((client.get_run(run_id).data.tags["trial"], value))
        set_tag(client, run_id, key, value)

    monkeypatch.setattr(MlflowClient, "set_tag", seen)
    desk.store(3, stories.measured(3.0, 0.025))  # dominates 1, not 2
    desk.sync()
    assert changed == [("1", "false")]
    assert [desk.trial_run(number).data.tags["on_front"] for number in (1, 2, 3)] == ["false", "true", "true"]


def test_a_verdict_that_another_trial_brings_later_reaches_the_runs_of_its_artefact(
    tmp_path: Path, new_mlflow: NewMlflow
) -> None:
    study = dataclasses.replace(stories.study_file(), engine="vllm", options={"quality": {}})
    desk = Desk(tmp_path, new_mlflow(), study)
    trials = [desk.store(1, stories.measured(2.0, 0.03)), desk.store(2, stories.measured(1.0, 0.02))]
    ledger = desk.new_ledger()
    assert desk.sync(ledger)
    assert [desk.trial_run(n).data.tags["quality"] for n in (1, 2)] == ["not checked"] * 2
    folder = trial_folder(desk.folder, 2)
    for name, content in verdict_file(verdict(trials[1].artefact)).items():
        (folder / name).write_bytes(content)
    assert desk.sync(ledger)
    assert trials[0].artefact == trials[1].artefact
    assert [desk.trial_run(n).data.tags["quality"] for n in (1, 2)] == ["passed"] * 2


def test_a_repeat_is_a_run_of_its_own_and_the_study_names_what_is_recommended(desk: Desk) -> None:
    desk.store(1, stories.measured(9.0, 0.04))
    desk.store(2, stories.measured(8.0, 0.03))
    outcome = stories.measured(7.0, 0.04)
    write_outcome(desk.folder, dataclasses.replace(stories.stored(outcome, 3), repeats=1), outcome)
    assert desk.sync()
    again, first = desk.trial_run(3), desk.trial_run(1)
    assert again.data.tags["repeats"] == "1"
    assert "repeats" not in first.data.tags
    # Each run has what its trial measured; what they come to is on the study's.
    assert (first.data.metrics["goodput_rps"], again.data.metrics["goodput_rps"]) == (9.0, 7.0)
    assert again.data.tags["on_front"] == "false"
    assert desk.study_run().data.tags["recommended"] == "1"
    assert desk.study_run().data.tags["front"] == "2"
    note = desk.study_run().data.tags["mlflow.note.content"]
    assert "Best by goodput: trial 1, 7 " in note
    assert "Measured again after they were chosen: trial 1 (once); " in note


def test_syncing_again_from_another_process_changes_nothing(desk: Desk) -> None:
    desk.store(1, stories.measured())
    desk.store(2, stories.failed())
    desk.sync()
    before = {run.info.run_id: run.to_dictionary() for run in desk.runs()}
    assert desk.sync(desk.new_ledger())
    assert {run.info.run_id: run.to_dictionary() for run in desk.runs()} == before


_STEPS = ("create_run", "log_batch", "log_artifacts", "log_text", "set_terminated")


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_run_left_half_written_is_completed_and_never_doubled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, step: str, calls: int
) -> None:
    desk.store(1, stories.measured())
    desk.store(2, stories.failed())

    class Killed(BaseException):
        pass

    original = getattr(MlflowClient, step)
    left = [calls]

    def deadly(client: MlflowClient, *arguments: object, **named: object) -> object:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return original(client, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, step, deadly)
        with contextlib.suppress(Killed):
            desk.sync()
    assert desk.sync(desk.new_ledger())
    assert sorted(run.data.tags.get("trial", "study") for run in desk.runs()) == ["1", "2", "study"]
    run = desk.trial_run(1)
    assert run.info.status == "FINISHED"
    history = desk.client.get_metric_history(run.info.run_id, "goodput_rps")
    assert [point.value for point in history] == [2.0]
    assert len(desk.artifact_names(run)) == 5
    assert len(desk.artifact_names(desk.study_run())) == 4


def test_an_mlflow_that_is_down_is_told_of_once_and_caught_up_with_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        raise ConnectionError("connection refused")

    desk.store(1, stories.measured())
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "get_experiment_by_name", down)
        assert not desk.sync()
        desk.store(2, stories.measured())
        assert not desk.sync()
    assert [said.partition(" (")[0] for said in desk.said] == [f"MLflow at {desk.uri} cannot be written"]
    assert "connection refused" in desk.said[0]
    desk.now_s += 30
    assert desk.sync()
    assert desk.said[-1].endswith("is written again and has everything")
    assert {desk.trial_run(number).info.status for number in (1, 2)} == {"FINISHED"}


def test_an_mlflow_that_is_down_is_tried_less_and_less_and_once_more_at_the_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def down(*_: object, **__: object) -> None:
        tried.append(desk.now_s)
        raise ConnectionError("connection refused")

    desk.store(1, stories.measured())
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "get_experiment_by_name", down)
        while desk.now_s < 3000:
            assert not desk.sync()
            desk.now_s += 1
        assert not desk.sync(standing="KILLED")  # who stops a search is not kept waiting
        assert not desk.sync(standing="FINISHED")
    assert tried == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3000]
    assert desk.sync(standing="FINISHED")
    assert desk.trial_run(1).info.status == "FINISHED"


def test_a_server_that_never_answers_is_asked_once_for_the_time_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0), backlog=20) as silent:
        desk = Desk(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        desk.store(1, stories.measured())
        for _ in range(5):
            assert not desk.sync()
        silent.settimeout(0.2)
        for _ in range(2):  # one to see whether anybody listens, one to ask
            silent.accept()[0].close()
        with pytest.raises(TimeoutError):
            silent.accept()
    assert len(desk.said) == 1


def test_the_defaults_bound_what_a_server_that_is_down_costs(desk: Desk) -> None:
    desk.sync()
    allowed = {name: os.environ[f"MLFLOW_HTTP_REQUEST_{name}"] for name in ("MAX_RETRIES", "TIMEOUT")}
    assert allowed == {"MAX_RETRIES": "0", "TIMEOUT": "20"}


def test_what_there_is_to_catch_up_with_is_written_a_part_at_a_time_while_a_search_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = MlflowClient.create_run

    def slow(client: MlflowClient, *arguments: object, **named: object) -> Run:
        desk.now_s += 4
        return create(client, *arguments, **named)  # type: ignore[arg-type]  # handed on as they came

    for number in range(1, 9):
        desk.store(number, stories.measured())
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", slow)
        written = []
        while not desk.sync():
            written.append(len(desk.runs()) - 1)
        assert written[0] < 4
        assert written == sorted(set(written))
        assert desk.said == []
    assert len(desk.runs()) == 9


def test_a_search_that_is_done_writes_all_that_is_missing_in_one_call(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        desk.store(number, stories.measured())
    ticks = itertools.count(step=100)
    ledger = Ledger(desk.uri, artifacts=desk.artifacts, say=desk.said.append, now=lambda: next(ticks))
    assert desk.sync(ledger, "FINISHED")
    assert len(desk.runs()) == 5


def test_two_writers_at_once_write_nothing_twice(desk: Desk) -> None:
    for number in range(1, 5):
        desk.store(number, stories.measured())
    ledgers = [desk.new_ledger() for _ in range(3)]
    with ThreadPoolExecutor(len(ledgers)) as pool:
        done = list(pool.map(lambda ledger: desk.sync(ledger, "FINISHED"), ledgers))
    assert done == [True] * 3
    assert sorted(run.data.tags.get("trial", "study") for run in desk.runs()) == ["1", "2", "3", "4", "study"]


def test_a_writer_that_another_has_the_study_from_says_so_and_comes_back(desk: Desk) -> None:
    desk.store(1, stories.measured())
    with writing(desk.folder, "another"):
        assert not desk.sync()
        assert not desk.sync()
    (said,) = desk.said
    assert said.startswith(f"study tea is being written to MLflow by process {os.getpid()} on ")
    assert desk.sync()


def test_what_another_process_wrote_meanwhile_is_not_written_again(desk: Desk) -> None:
    desk.store(1, stories.measured())
    assert desk.sync()
    desk.store(2, stories.measured())
    assert desk.sync(desk.new_ledger())
    assert desk.sync()
    assert sorted(run.data.tags.get("trial", "study") for run in desk.runs()) == ["1", "2", "study"]


def test_a_killed_writer_leaves_no_lock(desk: Desk) -> None:
    (desk.folder / LOCK).write_text("process 1 on elsewhere\nabc")
    desk.store(1, stories.measured())
    assert desk.sync()


def test_a_search_that_ended_by_itself_is_not_called_killed_by_who_comes_later(desk: Desk) -> None:
    desk.store(1, stories.measured())
    desk.sync(standing="FINISHED")
    desk.sync(desk.new_ledger(), "KILLED")
    assert desk.study_run().info.status == "FINISHED"


def test_a_studys_run_ends_when_its_last_trial_did_whenever_it_is_written(desk: Desk) -> None:
    outcome = stories.measured()
    long_after = stories.MORNING + timedelta(hours=1)
    # The lower number was the last to end.
    write_outcome(desk.folder, dataclasses.replace(stories.stored(outcome, 1), finished=long_after), outcome)
    desk.store(2, outcome)
    desk.sync(standing="FINISHED")
    info = desk.study_run().info
    assert info.end_time - info.start_time == 3_600_000


def test_a_database_that_is_locked_is_caught_up_with(tmp_path: Path, new_mlflow: NewMlflow) -> None:
    uri = new_mlflow()
    desk = Desk(tmp_path, uri)
    desk.store(1, stories.measured())
    with contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert not desk.sync()
        assert "database is locked" in desk.said[0]
        other.rollback()
    assert desk.sync(standing="FINISHED")
    assert desk.trial_run(1).info.status == "FINISHED"


@pytest.mark.parametrize("uri", ["http://me:hunter2@127.0.0.1:9", "nonsense://me:hunter2@host"])
def test_a_server_that_nobody_listens_at_stops_nothing(tmp_path: Path, uri: str) -> None:
    desk = Desk(tmp_path, uri)
    desk.store(1, stories.measured())
    assert not desk.sync()
    assert not desk.sync()
    (said,) = desk.said
    assert "hunter2" not in said
    assert "\n" not in said


def test_a_database_is_made_with_its_folder_and_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path, f"sqlite:///{tmp_path}/new/folder/mlflow.db")
    desk.store(1, stories.measured())
    assert desk.sync(), desk.said
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


MAKES_TABLES = """
import os, signal, sys
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tuner.ledger import _make_database

@event.listens_for(Engine, "before_cursor_execute")
def kill(connection, cursor, statement, *_):
    if "_alembic_tmp" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

_make_database(sys.argv[1])
"""
"""Dies where MLflow copies a table to change it: it refuses what that leaves ever after."""


def test_a_driver_killed_while_mlflow_makes_its_tables_leaves_no_database_that_it_refuses(
    tmp_path: Path,
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", MAKES_TABLES, uri], capture_output=True)
    assert made.returncode == -signal.SIGKILL
    assert not (tmp_path / "mlflow.db").exists()
    desk = Desk(tmp_path, uri)
    desk.store(1, stories.measured())
    assert desk.sync(), desk.said
    assert desk.trial_run(1).info.status == "FINISHED"


def test_a_database_that_another_made_meanwhile_is_taken(
    tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = MlflowClient.search_experiments

    def slow(client: MlflowClient, *arguments: object, **named: object) -> object:
        shutil.copy(mlflow_template, tmp_path / "mlflow.db")
        return search(client, *arguments, **named)  # type: ignore[arg-type]  # handed on as they came

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "search_experiments", slow)
        _make_database(f"sqlite:///{tmp_path}/mlflow.db")
    assert (tmp_path / "mlflow.db").read_bytes() == mlflow_template.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_no_secret_reaches_mlflow(tmp_path: Path, new_mlflow: NewMlflow) -> None:
    desk = Desk(tmp_path, new_mlflow())
    outcome = stories.measured(log="with hf_abcdefgh12 through http://me:hunter2@proxy")
    secret = {"HF_TOKEN": "hf_abcdefgh12", "HTTP_PROXY": "http://me:hunter2@proxy"}
    write_outcome(desk.folder, stories.stored(outcome, 1, **secret), outcome, secrets=secret_values(secret))
    assert desk.sync()
    assert desk.trial_run(1).data.params["environment.HF_TOKEN"] == "***"
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert b"hunter2" not in content, path
        assert b"hf_abcdefgh12" not in content, path


def test_what_a_person_deleted_is_not_written_again(desk: Desk) -> None:
    desk.store(1, stories.measured(1.0, 0.05))
    desk.sync()
    desk.client.delete_run(desk.trial_run(1).info.run_id)
    desk.store(2, stories.measured(2.0, 0.03))
    assert desk.sync(desk.new_ledger())
    assert desk.trial_run(1).info.lifecycle_stage == "deleted"


def test_two_studies_of_one_space_share_its_experiment_and_keep_their_runs_apart(desk: Desk) -> None:
    desk.store(1, stories.measured())
    desk.sync()
    other = desk.folder.with_name("coffee")
    write_study(other, dataclasses.replace(stories.study_file("coffee")))
    outcome = stories.measured()
    write_outcome(other, stories.stored(outcome, 1), outcome)
    desk.new_ledger().sync(other, read_view(other), "FINISHED")
    parents = {run.data.tags.get("mlflow.parentRunId") for run in desk.runs()}
    assert len(parents) == 3  # none for the two studies' own, one each for their trials
    assert len(desk.runs()) == 4


def test_an_experiment_that_was_deleted_is_restored(desk: Desk) -> None:
    desk.store(1, stories.measured())
    desk.sync()
    desk.client.delete_experiment(desk.study_run().info.experiment_id)
    assert desk.sync(desk.new_ledger())


def test_names_that_mlflow_refuses_are_changed_not_lost(desk: Desk) -> None:
    trial = dataclasses.replace(stories.stored(stories.measured()), arguments={"größe(x)": "y" * 9000})
    write_outcome(desk.folder, trial, stories.measured())
    assert desk.sync(), desk.said
    params = desk.trial_run(7).data.params
    assert params["engine.gr__e_x_"] == "y" * 6000


def test_unscored_trials_say_why(desk: Desk) -> None:
    outcome = stories.measured()
    trial = dataclasses.replace(
        stories.stored(outcome, 3), state=State.UNSCORED, reason="objective 'ttft_p99' was not measured"
    )
    write_outcome(desk.folder, trial, outcome)
    desk.sync()
    tags = desk.trial_run(3).data.tags
    assert (tags["status"], tags["on_front"]) == ("unscored", "false")
    assert "ttft_p99" in tags["reason"]
    assert "ttft_p99" in desk.study_run().data.tags["mlflow.note.content"]


def test_a_file_that_is_no_database_is_reported_not_raised(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database")
    desk = Desk(tmp_path, f"sqlite:///{tmp_path}/mlflow.db")
    assert not desk.sync()
    assert "not a database" in desk.said[0]


@pytest.fixture
def capacity_desk(tmp_path: Path, new_mlflow: NewMlflow) -> Desk:
    return Desk(tmp_path, new_mlflow(), loads.study())


def test_a_trials_run_holds_its_curve_as_series_over_the_offered_rate(capacity_desk: Desk) -> None:
    capacity_desk.store(1, loads.measured())
    assert capacity_desk.sync(), capacity_desk.said
    run = capacity_desk.trial_run(1)

    def series(name: str) -> list[tuple[int, float]]:
        history = capacity_desk.client.get_metric_history(run.info.run_id, name)
        return [(point.step, point.value) for point in history]

    # Steps are thousandths of a request a second; TTFT p95 is made up as 10 ms for each request a second.
    steps, values = zip(*series("curve/ttft_p95_ms"), strict=True)
    assert steps == (6000, 12000)
    assert values == pytest.approx((60, 120))
    assert series("curve/held") == [(6000, 1.0), (12000, 1.0), (12600, 0.0), (24000, 0.0)]
    assert (run.data.metrics["replays"], run.data.metrics["saved_s"]) == (4.0, 10.0)
    assert run.data.metrics["capacity_rps"] == 12.0
    tags = {name: run.data.tags.get(name) for name in ("mode", "held", "disagreements", "capacity")}
    assert tags == {
        "mode": "capacity",
        "held": "true",
        "disagreements": "false",
        "capacity": "12 (11.4 to 13.2) requests/s",
    }
    assert "curve.svg" in capacity_desk.artifact_names(run)


def test_curves_are_drawn_on_the_studys_run_and_written_once(capacity_desk: Desk) -> None:
    capacity_desk.store(1, loads.measured(disagreements=("tokens <differ>",)))
    capacity_desk.sync()
    study = capacity_desk.study_run()
    assert "curves.html" in capacity_desk.artifact_names(study)
    assert (study.data.tags["mode"], study.data.params["measure.resolution"]) == ("capacity", "0.05")
    run = capacity_desk.trial_run(1)
    assert run.data.tags["disagreements"] == "true"
    assert "- tokens &lt;differ>" in run.data.tags["mlflow.note.content"]
    before = {run.info.run_id: run.to_dictionary() for run in capacity_desk.runs()}
    assert capacity_desk.sync(capacity_desk.new_ledger())
    assert {run.info.run_id: run.to_dictionary() for run in capacity_desk.runs()} == before
    history = capacity_desk.client.get_metric_history(run.info.run_id, "curve/held")
    assert len(history) == 4


def test_a_curve_that_a_killed_driver_left_half_written_is_completed_once(
    capacity_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity_desk.store(1, loads.measured())
    log_text = MlflowClient.log_text

    def killed(client: MlflowClient, run_id: str, text: str, artifact_file: str) -> None:
        if artifact_file == "curve.svg":
            raise KeyboardInterrupt
        log_text(client, run_id, text, artifact_file)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_text", killed)
        with contextlib.suppress(KeyboardInterrupt):
            capacity_desk.sync()
    assert capacity_desk.trial_run(1).info.status == "RUNNING"
    assert capacity_desk.sync(capacity_desk.new_ledger())
    run = capacity_desk.trial_run(1)
    assert run.info.status == "FINISHED"
    assert "curve.svg" in capacity_desk.artifact_names(run)
    assert len(capacity_desk.client.get_metric_history(run.info.run_id, "curve/held")) == 4


def test_a_closed_loop_is_marked_in_names_and_tags_and_has_no_curve(
    tmp_path: Path, new_mlflow: NewMlflow
) -> None:
    desk = Desk(tmp_path, new_mlflow(), loads.closed_study())
    desk.store(1, loads.in_closed_loop())
    assert desk.sync(), desk.said
    run, study = desk.trial_run(1), desk.study_run()
    assert run.info.run_name.startswith("trial 1 (simulated, closed loop)")
    assert study.info.run_name == "simulated, closed loop · tea"
    assert (run.data.tags["mode"], run.data.params["workload.concurrency"]) == ("closed loop", "8")
    assert "no load a user makes" in run.data.tags["mlflow.note.content"]
    assert not {"workload.speed", "workload.offered_rps"} & set(run.data.params)
    assert "curve.svg" not in desk.artifact_names(run)
    assert "curves.html" not in desk.artifact_names(study)


def test_an_mlflow_whose_import_was_broken_off_is_told_and_not_raised(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    assert not desk.sync(standing="KILLED")
    (said,) = desk.said
    assert "MLflow cannot be loaded" in said
    assert "tuner sync" in said
