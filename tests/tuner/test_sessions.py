"""`--sessions` and `traffic.sessions`: what the trials are played, what the study keeps, and going on."""

import dataclasses
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tests.tuner import stories
from tuner.cli import main
from tuner.loads import load_text, offered_rps

SPACE = """
name: talks
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096}
parameters:
  max_num_seqs: {int: [16, 64], log: true}
traffic:
  trace: talks.jsonl
slo: {ttft_p95_ms: 500}
measure: fixed
objectives: [goodput, tpot_p95]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_template: Path) -> Path:
    """A space of one session of two turns, the second two seconds after the first had ended."""
    monkeypatch.chdir(tmp_path)
    asked = {"input_length": 100, "output_length": 50, "session_id": "s"}
    lines = [{"timestamp": 0, "duration_ms": 7000, **asked}, {"timestamp": 9000, **asked}]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "talks.yaml").write_text(SPACE)
    (tmp_path / "runs").mkdir()
    shutil.copy(mlflow_template, tmp_path / "runs/mlflow.db")
    return tmp_path


def search(*words: str) -> Result:
    return CliRunner().invoke(main, ["search", "--engine", "simulated", *words])


def times(study: str, number: int) -> tuple[list[float | None], list[float]]:
    """Due times and ends of a trial's requests."""
    records = pq.read_table(f"runs/{study}/trials/{number:04}/requests.parquet")
    return records["due_s"].to_pylist(), [float(at_s.as_py()) for at_s in records["finished_s"]]


def test_turns_wait_in_every_trial_where_that_is_asked_for_and_a_resumed_study_goes_on_so() -> None:
    words = ("--space", "talks.yaml", "--study", "s", "--speed", "3")
    assert search(*words, "--trials", "2", "--sessions", "causal").exit_code == 0
    assert json.loads(Path("runs/s/study.json").read_text())["options"]["sessions"] == "causal"
    refused = search("--study", "s", "--resume", "--sessions", "recorded")
    assert refused.exit_code == 2
    assert "was begun with sessions causal, not recorded" in refused.stderr
    assert search("--study", "s", "--resume", "--trials", "3").exit_code == 0
    for number in range(3):
        dues, ends = times("s", number)
        # The speed is 3, but a person takes two seconds still.
        assert dues == [0.0, ends[0] + 2.0]


def test_a_space_may_say_it_and_the_command_line_says_otherwise(folder: Path) -> None:
    (folder / "talks.yaml").write_text(SPACE.replace("traffic:", "traffic:\n  sessions: causal"))
    assert search("--space", "talks.yaml", "--study", "c", "--trials", "1").exit_code == 0
    dues, ends = times("c", 0)
    assert dues == [0.0, ends[0] + 2.0]
    words = ("--space", "talks.yaml", "--study", "r", "--trials", "1", "--sessions", "recorded")
    assert search(*words).exit_code == 0
    assert times("r", 0)[0] == [0.0, 9.0]


def test_a_study_from_before_there_was_a_choice_goes_on_as_recorded() -> None:
    assert search("--space", "talks.yaml", "--study", "o", "--trials", "1").exit_code == 0
    path = Path("runs/o/study.json")
    kept = json.loads(path.read_text())
    del kept["options"]["sessions"]
    path.write_text(json.dumps(kept))
    assert search("--study", "o", "--resume", "--trials", "2").exit_code == 0
    assert times("o", 1)[0] == [0.0, 9.0]
    assert search("--study", "o", "--resume", "--sessions", "causal").exit_code == 2


def test_a_space_that_says_something_else_is_one_line(folder: Path) -> None:
    (folder / "talks.yaml").write_text(SPACE.replace("traffic:", "traffic:\n  sessions: strict"))
    result = search("--space", "talks.yaml")
    assert result.exit_code == 2
    assert "traffic.sessions" in result.stderr
    assert "'recorded' or 'causal'" in result.stderr


def test_no_rate_is_said_to_be_offered_where_it_is_what_sessions_make_of_it() -> None:
    study = stories.study_file()
    causal = dataclasses.replace(study, options={"speed": 1.5, "sessions": "causal"})
    assert offered_rps(study) == 6.0
    assert offered_rps(causal) is None
    assert load_text(causal) == "speed 1.5, sessions causal"
