"""The command line as a user meets it: what it prints, and that every mistake is one line and exit code 2."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tuner.cli import main

Run = Callable[..., Result]

SPACE = """
name: tiny
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096}
parameters:
  kv_cache_dtype: {choices: [auto, fp8]}
  max_num_seqs: {int: [16, 64], log: true}
constraints:
  - max_num_seqs >= 8
traffic:
  make: {requests: 40, rate: 20, input_mean: 200, input_max: 1000, output_mean: 20, output_max: 100, seed: 3}
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
objectives: [goodput, tpot_p95]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls `tuner` in an empty folder that holds tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPACE)

    def call(*words: str) -> Result:
        return CliRunner().invoke(main, list(words))

    return call


def _simulated(run: Run, *words: str) -> Result:
    return run("search", "--space", "tiny.yaml", "--engine", "simulated", *words)


@pytest.fixture
def studied(run: Run) -> Run:
    """The same, after a simulated study `s` of four trials."""
    result = _simulated(run, "--trials", "4", "--study", "s")
    assert result.exit_code == 0, result.output
    return run


def _assert_mistake(result: Result, *told: str) -> None:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)  # no traceback
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    for words in told:
        assert words in lines[0]


def test_a_search_prints_progress_the_front_and_what_comes_next(studied: Run) -> None:
    output = _simulated(studied, "--trials", "6", "--study", "s", "--resume").output
    assert "[6 of 6 done]" in output
    assert "SIMULATED" in output
    assert "tuner ui" in output
    assert "trial 0 (control): the engine's defaults" in studied("front", "s").output


def test_front_json_has_what_programs_need(studied: Run) -> None:
    front = json.loads(studied("front", "--json").output)
    assert front["study"] == "s"
    assert front["engine"] == "simulated"
    assert [trial["number"] for trial in front["control"]] == [0]
    assert sum(front["counts"].values()) == 4
    assert front["front"]
    for trial in [*front["control"], *front["front"]]:
        assert {"number", "config", "metrics", "state"} <= trial.keys()
        assert trial["state"] == "measured"
        assert all(isinstance(value, int | float) for value in trial["metrics"].values())
        low, high = trial["intervals"]["goodput_rps"]
        assert low <= trial["metrics"]["goodput_rps"] <= high


def test_search_json_leaves_only_json_on_standard_output(run: Run) -> None:
    result = _simulated(run, "--trials", "2", "--json")
    assert json.loads(result.stdout)["counts"]["measured"] == 2
    assert "trial 1 started" in result.stderr


def test_a_resumed_study_ends_with_exactly_the_total(studied: Run) -> None:
    assert _simulated(studied, "--trials", "7", "--study", "s", "--resume").exit_code == 0
    assert _simulated(studied, "--trials", "7", "--study", "s", "--resume").exit_code == 0
    front = json.loads(studied("front", "s", "--json").output)
    assert sum(front["counts"].values()) == 7


def test_a_resumed_study_has_its_own_space_and_remembers_its_total(run: Run, tmp_path: Path) -> None:
    assert _simulated(run, "--trials", "3", "--study", "s").exit_code == 0
    (tmp_path / "tiny.yaml").unlink()
    assert run("search", "--resume", "--trials", "4").exit_code == 0
    output = run("search", "--resume", "--study", "s").output
    assert "study s: 3 trials" in output
    assert "4 trials: 0 failed, 4 measured" in output


def test_a_space_that_only_reads_differently_is_the_same(studied: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("# a remark\n" + SPACE)
    assert _simulated(studied, "--study", "s", "--resume").exit_code == 0
    (tmp_path / "tiny.yaml").write_text(SPACE.replace("[16, 64]", "[16, 32]"))
    _assert_mistake(_simulated(studied, "--study", "s", "--resume"), "another space")


def test_a_dead_mlflow_costs_no_measurement_and_is_not_said_to_have_it(run: Run) -> None:
    result = _simulated(
        run, "--trials", "2", "--study", "s", "--tracking-uri", "http://me:secret@127.0.0.1:9"
    )
    assert result.exit_code == 0
    assert "does not have it all" in result.output
    assert "secret" not in result.output
    assert json.loads(run("front", "s", "--json").output)["counts"]["measured"] == 2


def test_space_show_prints_parameters_constraints_and_the_count(run: Run) -> None:
    text = run("space", "show", "tiny.yaml").output
    for words in ("kv_cache_dtype", "max_num_seqs", "16", "64", "max_num_seqs >= 8", "98"):
        assert words in text  # 2 dtypes × 49 integers
    assert json.loads(run("space", "show", "tiny.yaml", "--json").output)["model"].startswith("meta-llama")


def test_every_shipped_space_can_be_shown_from_any_folder(run: Run) -> None:
    for name in ("8b", "70b", "smollm2-135m"):
        assert run("space", "show", f"spaces/{name}.yaml").exit_code == 0


def _edited(tmp_path: Path, old: str, new: str) -> str:
    assert old in SPACE
    (tmp_path / "bad.yaml").write_text(SPACE.replace(old, new))
    return "bad.yaml"


def test_a_missing_space_names_those_that_ship(run: Run) -> None:
    _assert_mistake(run("search", "--space", "spaces/9b.yaml"), "spaces/9b.yaml", "spaces/8b.yaml")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("parameters:", "parameters: [", ("bad.yaml:",)),
        ("constraints:", "constraint:", ("bad.yaml:", "constraint", "constraints")),
        ("int: [16, 64]", "int: [one, 64]", ("bad.yaml:8", "max_num_seqs", "one")),
        ("max_num_seqs >= 8", "max_num_seqs >= 800", ("bad.yaml",)),
        ("[goodput, tpot_p95]", "[goodputt, tpot_p95]", ("goodputt", "goodput")),
        ("[goodput, tpot_p95]", "[throughput, tpot_p95]", ("throughput", "goodput")),
        ("max_model_len: 4096", "max_model_len: 300", ("max_model_len 300",)),
        ("rate: 20", "rate: -1", ("rate",)),
        ("max_model_len: 4096", "max_model_length: 4096", ("bad.yaml:5", "max_model_len")),
        ("seed: 3", "sed: 3", ("sed", "seed")),
        ("ttft_p95_ms", "tftt_p95_ms", ("tftt_p95_ms", "ttft_p95_ms")),
    ],
)
def test_a_fault_in_a_space_is_one_line(
    run: Run, tmp_path: Path, old: str, new: str, told: tuple[str, ...]
) -> None:
    space = _edited(tmp_path, old, new)
    _assert_mistake(run("search", "--space", space, "--engine", "simulated", "--trials", "2"), *told)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"timestamp": 0, "input_length": -5, "output_length": 3}', "input_length"),
        ('{"timestamp": 0, "output_length": 3}', "input_length"),
        ('{"timestamp": 0, "input_length": 5000, "output_length": 3}', "5000"),
        ('{"timestamp": 0, "input_len', "t.jsonl:1"),
    ],
)
def test_a_fault_in_a_trace_is_one_line_with_its_place(
    run: Run, tmp_path: Path, line: str, told: str
) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    _assert_mistake(_simulated(run, "--trace", "t.jsonl", "--trials", "2"), "t.jsonl:1", told)


def test_a_missing_trace_is_one_line(run: Run) -> None:
    _assert_mistake(_simulated(run, "--trace", "none.jsonl", "--trials", "2"), "none.jsonl")


def test_an_unknown_sampler_names_the_nearest(run: Run) -> None:
    _assert_mistake(_simulated(run, "--sampler", "tp", "--trials", "2"), "tpe")


def test_a_study_that_is_not_there_names_those_that_are(studied: Run) -> None:
    _assert_mistake(studied("front", "t"), "'t'", "s")
    _assert_mistake(studied("export", "t", "--trial", "1", "--to", "vllm", "--out", "d"), "'t'")
    _assert_mistake(_simulated(studied, "--study", "t", "--resume"), "'t'")


def test_without_any_study_front_says_how_to_make_one(run: Run) -> None:
    _assert_mistake(run("front"), "tuner search")


def test_a_study_is_not_begun_twice_nor_resumed_with_other_settings(studied: Run) -> None:
    _assert_mistake(_simulated(studied, "--study", "s"), "--resume")
    _assert_mistake(_simulated(studied, "--study", "s", "--resume", "--speed", "2"), "speed")
    _assert_mistake(_simulated(studied, "--study", "s", "--resume", "--sampler", "random"), "sampler")


def test_a_study_goes_on_in_its_own_database(studied: Run) -> None:
    _assert_mistake(
        _simulated(studied, "--study", "s", "--resume", "--storage", "sqlite:///other.db"), "storage"
    )


@pytest.mark.parametrize("name", ["models", "taken", "a/b", "..", ""])
def test_a_study_is_not_put_where_something_else_is(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "taken").write_text("x")
    _assert_mistake(_simulated(run, "--trials", "2", "--study", name), "--study")


@pytest.mark.parametrize("speed", ["nan", "inf", "0", "-1"])
def test_a_speed_is_a_positive_number(run: Run, speed: str) -> None:
    result = _simulated(run, "--trials", "2", "--speed", speed)
    assert result.exit_code == 2
    assert "speed" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_runs_folder_that_cannot_be_made_is_one_line_and_no_traceback(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = _simulated(run, "--trials", "2", "--runs", "file/runs")
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert "file/runs" in result.stderr


def test_without_a_space_only_a_resumed_study_can_be_searched(run: Run) -> None:
    _assert_mistake(run("search", "--trials", "2"), "--space")


def test_a_trial_that_has_not_finished_cannot_be_exported(studied: Run) -> None:
    _assert_mistake(studied("export", "s", "--trial", "9", "--to", "vllm", "--out", "d"), "9", "0, 1, 2, 3")


def test_a_simulated_trial_is_exported_only_when_asked_to(studied: Run, tmp_path: Path) -> None:
    words = ("export", "s", "--trial", "1", "--to", "vllm", "--out", "d")
    _assert_mistake(studied(*words), "simulated", "--allow-simulated")
    assert not (tmp_path / "d").exists()
    assert studied(*words, "--allow-simulated").exit_code == 0
    assert "Simulated" in (tmp_path / "d" / "README.md").read_text()


def test_a_port_that_is_taken_is_one_line(studied: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _assert_mistake(studied("ui", "--port", str(port)), str(port), "--port")


def test_a_model_folder_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    space = _edited(tmp_path, "meta-llama/Llama-3.1-8B-Instruct", "./models/mine")
    _assert_mistake(run("search", "--space", space, "--trials", "2"), "./models/mine")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_the_gpus_a_space_needs_it_says_what_was_found_and_what_can_be_done(run: Run) -> None:
    _assert_mistake(
        run("search", "--space", "spaces/70b.yaml", "--trials", "2"), "GPU", "found", "--ray", "smollm2-135m"
    )
