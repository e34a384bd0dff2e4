import dataclasses
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from tests.tuner import stories
from tests.tuner.test_ledger import NewMlflow
from tuner.cli import main
from tuner.front import read_view
from tuner.ledger import Ledger
from tuner.mistakes import Mistake
from tuner.records import write_outcome, write_study
from tuner.study import locked
from tuner.study_lock import searched_by
from tuner.sync_usecases import sync

# MLflow 3.17 on SQLAlchemy 2.1, where these tests look at what the ledger wrote.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


def study(runs: Path, name: str, trials: int, uri: str | None, total: int | None = None) -> Path:
    """A study on disk, of which MLflow knows nothing."""
    options = {"tracking_uri": uri, "trials": total}
    write_study(runs / name, dataclasses.replace(stories.study_file(name), options=options))
    for number in range(trials):
        outcome = stories.measured()
        write_outcome(runs / name, stories.stored(outcome, number), outcome)
    return runs / name


def logged(uri: str) -> list[Run]:
    client = MlflowClient(tracking_uri=uri)
    experiments = [found.experiment_id for found in client.search_experiments()]
    return list(client.search_runs(experiments))


def trials_of(uri: str) -> list[str]:
    return sorted(f"{run.data.tags['study']} {run.data.tags.get('trial', '-')}" for run in logged(uri))


def status_of(uri: str) -> str:
    (own,) = (run for run in logged(uri) if "trial" not in run.data.tags)
    return str(own.info.status)


class Server:
    """A real `mlflow server` that starts late."""

    def __init__(self, folder: Path, database: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._folder = folder
        self._database = database
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-m", "mlflow", "server", "--port", str(self._port), "--workers", "1"]
        store = ["--backend-store-uri", f"sqlite:///{self._database}"]
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*words, *store, "--artifacts-destination", str(self._folder / "artifacts")],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        pytest.fail((self._folder / "server.log").read_text()[-3000:])

    def stop(self) -> None:
        if self._process is not None:
            # Its workers end with it: they watch their parent.
            self._process.terminate()
            self._process.wait(60)


@pytest.fixture
def server(tmp_path: Path, mlflow_template: Path) -> Iterator[Server]:
    database = tmp_path / "server.db"
    shutil.copy(mlflow_template, database)
    made = Server(tmp_path, database)
    yield made
    made.stop()


@pytest.mark.timeout(600)
def test_a_server_that_was_down_has_everything_once_when_it_is_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by the search itself, by `tuner sync`, and by three of them at once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "200")  # of a machine that is busy with other tests
    runs = tmp_path / "runs"
    tea, coffee = study(runs, "tea", 2, server.uri, total=2), study(runs, "coffee", 2, server.uri)
    said: list[str] = []
    clock = [0.0]
    ledger = Ledger(server.uri, artifacts=tmp_path / "none", say=said.append, now=lambda: clock[0])
    assert not ledger.sync(tea, read_view(tea))
    assert [one.why_not is None for one in sync(None, runs, None)] == [False, False]

    server.start()
    assert not ledger.sync(tea, read_view(tea))  # it is not asked again at once
    clock[0] += 30
    assert ledger.sync(tea, read_view(tea))
    assert said[-1].endswith("is written again and has everything")
    with ThreadPoolExecutor(3) as pool:
        refused = [one.why_not for (one,) in pool.map(lambda _: sync("coffee", runs, None), range(3))]
    assert None in refused
    assert [why for why in refused if why and "is being written to MLflow by process" not in why] == []
    assert [one.why_not for one in sync(None, runs, None)] == [None, None]
    assert trials_of(server.uri) == ["coffee -", "coffee 0", "coffee 1", "tea -", "tea 0", "tea 1"]
    client = MlflowClient(tracking_uri=server.uri)
    for run in logged(server.uri):
        if "trial" in run.data.tags:
            assert len(client.get_metric_history(run.info.run_id, "goodput_rps")) == 1
            assert "requests.parquet" in {item.path for item in client.list_artifacts(run.info.run_id)}
    assert coffee.exists()


def test_a_study_goes_to_another_mlflow_when_that_is_asked_for(tmp_path: Path, new_mlflow: NewMlflow) -> None:
    study(tmp_path / "runs", "tea", 1, None)
    (one,) = sync("tea", tmp_path / "runs", new_mlflow())
    assert one.why_not is None
    assert trials_of(f"sqlite:///{tmp_path}/mlflow.db") == ["tea -", "tea 0"]


@pytest.mark.parametrize(("trials", "status"), [(2, "KILLED"), (3, "FINISHED")])
def test_the_studys_run_says_whether_the_search_was_done(
    tmp_path: Path, new_mlflow: NewMlflow, trials: int, status: str
) -> None:
    uri = new_mlflow()
    study(tmp_path / "runs", "tea", trials, uri, total=3)
    sync("tea", tmp_path / "runs", None)
    assert status_of(uri) == status


def test_a_study_that_is_being_searched_stays_running_and_is_written_whole(
    tmp_path: Path, new_mlflow: NewMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.ledger._A_CALL_S", 0.0)  # so that one call writes hardly anything
    uri = new_mlflow()
    folder = study(tmp_path / "runs", "tea", 3, uri, total=3)
    assert searched_by(folder) is None
    with locked(folder):
        assert str(searched_by(folder)).startswith("process ")
        (one,) = sync("tea", tmp_path / "runs", None)
    assert (one.why_not, status_of(uri)) == (None, "RUNNING")
    assert len(trials_of(uri)) == 4
    assert searched_by(folder) is None


def test_one_study_that_cannot_be_read_keeps_no_other_from_being_written(
    tmp_path: Path, new_mlflow: NewMlflow
) -> None:
    runs, uri = tmp_path / "runs", new_mlflow()
    study(runs, "tea", 1, uri)
    (runs / "broken").mkdir()
    (runs / "broken" / "study.json").write_text("{")
    ran = CliRunner().invoke(main, ["sync", "--runs", str(runs), "--json"])
    assert ran.exit_code == 1
    broken, tea = json.loads(ran.stdout)
    assert (broken["logged"], tea["logged"], tea["trials"]) == (False, True, 1)
    assert "study.json: cannot be read" in broken["why_not"]


def test_passwords_are_asked_for_and_never_shown(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    study(runs, "tea", 1, "http://me:hunter2@127.0.0.1:9")
    ran = CliRunner().invoke(main, ["sync", "tea", "--runs", str(runs)])
    assert ran.exit_code == 1
    assert "its password was not written down; give it with --tracking-uri" in ran.stdout
    ran = CliRunner().invoke(
        main, ["sync", "--runs", str(runs), "--tracking-uri", "http://me:hunter2@127.0.0.1:9"]
    )
    assert ran.exit_code == 1
    assert "cannot be written" in ran.stdout
    assert "hunter2" not in ran.stdout


def test_a_study_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="no study under"):
        sync(None, tmp_path, None)
    with pytest.raises(Mistake, match="no study 'tea'"):
        sync("tea", tmp_path, None)
