"""The main job on a real vLLM, as a user runs it: search, kill -9, resume, MLflow, front, export."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from cluster.node.guard import GuardRecord, read_record
from cluster.node.guarded import RECORD_NAME

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    # MLflow's own database code, which the tests read it with.
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]

TUNER = Path(sys.executable).with_name("tuner")

SPACE = """
name: real
model: {model}
resources: {{gpus: 0, cpus: 1}}
engine:
  max_model_len: 1024
  dtype: bfloat16
  enforce_eager: true
  kv_cache_memory_bytes: 268435456
parameters:
  prefix_cache:
    choices:
      off: {{set: {{enable_prefix_caching: false}}}}
      on: {{set: {{enable_prefix_caching: true}}}}
  speculation:
    choices:
      off: {{}}
      ngram:
        set: {{speculative_config: {{method: ngram, prompt_lookup_min: 2, prompt_lookup_max: 4}}}}
        parameters:
          depth: {{int: [2, 4], argument: speculative_config.num_speculative_tokens}}
  max_num_seqs: {{int: [4, 128], log: true}}
  max_num_batched_tokens: {{int: [512, 2048], log: true}}
traffic:
  make: {{requests: 24, rate: 6, input_mean: 200, input_max: 600, output_mean: 16, output_max: 60,
         shared_prefix: 0.7, block_tokens: 128, seed: 2}}
slo: {{ttft_p90_ms: 10000, tpot_p90_ms: 1000}}
measure: fixed
objectives: [goodput, tpot_p90]
quality: {{prompts: 10, tokens: 8}}
"""


class Study:
    """One `tuner search` in a folder of its own, and what it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        with (self.folder / "search.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [TUNER, "search", "--space", "real.yaml", "--study", "s", *words],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def tuner(self, *words: str) -> str:
        ran = subprocess.run([TUNER, *words], cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @property
    def log(self) -> str:
        return (self.folder / "search.log").read_text()

    def processes(self) -> set[psutil.Process]:
        """All processes that the driver started, however deep."""
        assert self.driver is not None
        try:
            return set(psutil.Process(self.driver.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return set()

    def record(self) -> GuardRecord | None:
        """What is on disk of the engine that runs now, once it does."""
        started = {process.pid for process in self.processes()}
        for path in Path(tempfile.gettempdir()).glob(f"tuner-trial-*/{RECORD_NAME}"):
            record = read_record(path)
            if record is not None and record.command_pid in started:
                return record
        return None

    def api_server(self) -> psutil.Process | None:
        """The vLLM process that answers, once it is there."""
        record = self.record()
        try:
            return None if record is None else psutil.Process(record.command_pid)
        except psutil.NoSuchProcess:
            return None

    def serving(self) -> psutil.Process | None:
        """The same, once it has made tokens: in warm-up or replay."""
        server, record = self.api_server(), self.record()
        if server is None or record is None:
            return None
        port = record.command[record.command.index("--port") + 1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError):
            return None
        made = re.search(r"^vllm:generation_tokens_total\{.*\} ([\d.e+]+)$", text, re.MULTILINE)
        return server if made and float(made[1]) > 0 else None

    def front(self) -> Any:
        """What `tuner front --json` prints."""
        return json.loads(self.tuner("front", "s", "--json"))

    def runs(self) -> list[Run]:
        """Of the trials, in MLflow."""
        client = MlflowClient(f"sqlite:///{self.folder / 'runs' / 'mlflow.db'}")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments, max_results=1000)
        return [run for run in runs if "mlflow.parentRunId" in run.data.tags]


def _wait(for_: Callable[[], object], seconds: float, what: str, log: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not for_():
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s\n{log()[-3000:]}"
        time.sleep(0.25)


@pytest.fixture(scope="module")
def study(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """Four trials: the control, one whose engine is killed, one whose driver is; resumed to the end."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "real.yaml").write_text(SPACE.format(model=small_model))
    made = Study(folder)
    yield made
    if made.driver is not None and made.driver.poll() is None:
        made.driver.kill()


@pytest.fixture(scope="module")
def killed(study: Study) -> dict[str, object]:
    """Runs the study through both kills, and says what became of the processes."""
    study.start("--trials", "4")
    _wait(lambda: "trial 1 started" in study.log, 400, "second trial", lambda: study.log)
    _wait(study.serving, 300, "engine that serves trial 1", lambda: study.log)
    server = study.api_server()
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    _wait(lambda: "trial 1 failed" in study.log, 90, "end of the trial whose engine died", lambda: study.log)
    _wait(lambda: "trial 2 started" in study.log, 60, "third trial", lambda: study.log)
    _wait(study.api_server, 60, "engine of trial 2", lambda: study.log)
    started = study.processes()
    assert study.driver is not None
    os.kill(study.driver.pid, signal.SIGKILL)
    study.driver.wait()
    _, alive = psutil.wait_procs(started, timeout=60)
    left = [process.name() for process in alive if process.is_running() and process.status() != "zombie"]
    study.start("--trials", "4", "--resume")
    assert study.driver.wait(600) == 0, study.log[-3000:]
    return {"started": len(started), "left": left}


def test_nothing_of_a_driver_killed_with_sigkill_survives_a_minute(killed: dict[str, object]) -> None:
    assert isinstance(killed["started"], int)
    assert killed["started"] > 5  # Ray, the trial's worker, the guard, the engine
    assert killed["left"] == []


def test_an_engine_killed_in_a_trial_fails_that_trial_alone(study: Study, killed: dict[str, object]) -> None:
    outcome = json.loads((study.folder / "runs/s/trials/0001/outcome.json").read_text())
    assert outcome["state"] == "failed"
    assert outcome["cause"] == "died under load"
    assert "trial 2 started" in study.log


def test_a_resumed_study_has_exactly_the_trials_asked_for(study: Study, killed: dict[str, object]) -> None:
    front = study.front()
    assert front["engine"] == "vllm"
    assert sum(front["counts"].values()) == 4
    assert [trial["number"] for trial in front["control"]] == [0]
    assert front["front"]
    for outcome in sorted((study.folder / "runs/s/trials").glob("*/outcome.json")):
        assert json.loads(outcome.read_text())["ran"]["launch"] == "warm", outcome


def test_mlflow_holds_one_run_a_trial_with_its_artifacts(study: Study, killed: dict[str, object]) -> None:
    runs = study.runs()
    finished = [run for run in runs if run.data.tags.get("status") in ("measured", "failed")]
    per_trial = Counter(run.data.tags["trial"] for run in finished)
    assert len(per_trial) == 4
    assert set(per_trial.values()) == {1}
    client = MlflowClient(f"sqlite:///{study.folder / 'runs' / 'mlflow.db'}")
    for run in finished:
        names = {item.path for item in client.list_artifacts(run.info.run_id)}
        assert {"requests.parquet", "counters.parquet", "engine.log", "command.txt"} <= names, names


def test_the_control_is_told_with_its_true_parameters(study: Study, killed: dict[str, object]) -> None:
    control = study.front()["control"][0]
    # vLLM's defaults on this engine, from its own log: prefix caching on, no speculation.
    config = control["config"]
    assert config["prefix_cache"] == "on"
    assert config["speculation"] == "off"


def test_an_exported_config_starts_as_it_stands_and_serves(study: Study, killed: dict[str, object]) -> None:
    number = study.front()["front"][0]["number"]
    # Whether it holds is asked elsewhere; here it is whether the folder starts.
    let = ("--allow-unverified", "--allow-quality", "unchecked")
    study.tuner("export", "s", "--trial", str(number), "--to", "vllm", "--out", "deploy", *let)
    deploy = study.folder / "deploy"
    wanted = yaml.safe_load((deploy / "config.yaml").read_text())
    # `vllm serve` is broken in the CPU build; the module below reads --config with the same parser.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = ["-m", "vllm.entrypoints.openai.api_server", "--config", "config.yaml", "--port", port]
    shell = f'set -a; . ./vllm.env; set +a; exec "{sys.executable}" {" ".join(words)} --host 127.0.0.1'
    with (
        (deploy / "log").open("wb") as log,
        subprocess.Popen(
            ["sh", "-c", shell], cwd=deploy, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        ) as server,
    ):
        try:

            def healthy() -> bool:
                assert server.poll() is None, (deploy / "log").read_text()[-3000:]
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                        return True
                except OSError:
                    return False

            _wait(healthy, 300, "health of the exported server")
            body = {"model": wanted["model"], "prompt": "The capital of France is", "max_tokens": 4}
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert json.loads(answer.read())["usage"]["completion_tokens"] == 4
        finally:
            below = psutil.Process(server.pid).children(recursive=True)
            os.killpg(server.pid, signal.SIGKILL)
            for process in below:
                if process.is_running():
                    process.kill()


def test_an_exported_folder_is_verified_from_its_own_files_and_refused_once_a_hand_has_changed_them(
    study: Study, killed: dict[str, object]
) -> None:
    number = study.front()["front"][0]["number"]
    study.tuner("export", "s", "--trial", str(number), "--to", "vllm", "--out", "kept", "--allow-unverified")
    apart = study.folder / "apart"
    apart.mkdir()

    def verify() -> subprocess.CompletedProcess[str]:
        words = [str(TUNER), "verify", str(study.folder / "kept"), "--pairs", "1", "--json"]
        return subprocess.run(words, cwd=apart, capture_output=True, text=True, timeout=400)

    ran = verify()
    assert ran.returncode == 0, ran.stderr[-3000:] + ran.stdout
    found = json.loads(ran.stdout)
    assert found["source"] == "folder"
    assert found["simulated"] is False
    assert found["quality"]["passed"] is True
    assert {kept["name"] for kept in found["promises"]} >= {"goodput", "tpot_p90", "ttft_p90_ms"}
    assert all(kept["verified"]["value"] > 0 for kept in found["promises"])
    config = study.folder / "kept" / "config.yaml"
    config.write_text(
        re.sub(r"^max-num-seqs: .*$", "max-num-seqs: 3", config.read_text(), flags=re.MULTILINE)
    )
    refused = verify()
    assert refused.returncode == 2
    assert "disagree: config.yaml was changed after it was exported" in refused.stderr


def test_an_unknown_engine_argument_is_refused_before_any_trial(study: Study, small_model: Path) -> None:
    text = SPACE.format(model=small_model).replace(
        "max_model_len: 1024", "max_model_len: 1024\n  max_num_sequs: 4"
    )
    (study.folder / "wrong.yaml").write_text(text)
    ran = subprocess.run(
        [TUNER, "search", "--space", "wrong.yaml", "--trials", "2", "--study", "w"],
        cwd=study.folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 2, ran.stderr
    mistake = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    assert len(mistake) == 1
    assert "wrong.yaml:7" in mistake[0]
    assert "max_num_sequs" in mistake[0]
    assert "max_num_seqs" in mistake[0]
    assert not (study.folder / "runs" / "w").exists()
