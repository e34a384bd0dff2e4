"""The command line as a user meets it: what it prints, and that every mistake is one line and exit code 2."""

import json
import math
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tuner.cli import main
from tuner.series import read_records

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
measure: fixed
objectives: [goodput, tpot_p95]
"""

CAPACITY = SPACE.replace("requests: 40", "requests: 60").replace(
    "measure: fixed\nobjectives: [goodput, tpot_p95]\n",
    "measure: {kind: capacity, resolution: 0.2, highest: 8}\n",
)
"""The same, with 59 requests and one more, which a p95 takes; its objectives follow what is measured."""


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


@pytest.fixture(scope="module")
def capacity_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with capacity.yaml and a simulated study `c` of three trials that found their capacities."""
    folder = tmp_path_factory.mktemp("capacity")
    (folder / "capacity.yaml").write_text(CAPACITY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["--space", "capacity.yaml", "--engine", "simulated", "--trials", "3", "--study", "c"]
        result = CliRunner().invoke(main, ["search", *words])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def capacity(run: Run, tmp_path: Path, capacity_study: Path) -> Run:
    """The same as `run`, in a copy of that folder."""
    shutil.copytree(capacity_study, tmp_path, dirs_exist_ok=True)
    return run


def test_a_capacity_search_measures_it_and_keeps_every_replay(capacity: Run, tmp_path: Path) -> None:
    for trial in json.loads(capacity("front", "c", "--json").output)["front"]:
        measured = trial["metrics"]
        # The trace's own rate, by its first and last request, times the speed.
        folder = tmp_path / "runs/c/trials" / f"{trial['number']:04d}"
        due_s = [record.due_s for record in read_records(folder / "requests.parquet")]
        rate = (len(due_s) - 1) / (max(due_s) - min(due_s))
        assert measured["capacity_rps"] == pytest.approx(rate * measured["capacity_speed"])
        outcome = json.loads((folder / "outcome.json").read_text())
        held = [point["speed"] for point in outcome["measurement"]["curve"] if point["held"]]
        assert max(held) == measured["capacity_speed"]
        files = {path.name for path in (folder / "steps").iterdir()}
        steps = len(outcome["measurement"]["curve"]) - 1
        kinds = ("requests", "counters")
        assert files == {f"{n:02d}-{kind}.parquet" for n in range(1, steps + 1) for kind in kinds}


def test_the_next_trial_begins_at_the_capacity_of_those_before(capacity: Run, tmp_path: Path) -> None:
    trials = [
        json.loads((tmp_path / f"runs/c/trials/{number:04d}/outcome.json").read_text()) for number in range(3)
    ]
    capacities = [trial["measurement"]["metrics"]["capacity_speed"]["value"] for trial in trials]
    assert trials[1]["step_speeds"][0] == pytest.approx(capacities[0])
    middle = sum(capacities[:2]) / 2
    steps = [1.2**k for k in range(-20, 20)]
    assert trials[2]["step_speeds"][0] == pytest.approx(
        min(steps, key=lambda speed: abs(math.log(speed / middle)))
    )


@pytest.mark.parametrize(
    ("word", "objective", "kept"),
    [
        ("fixed", "goodput", {"kind": "fixed", "repeats": 1}),
        ("closed:4", "goodput", {"kind": "closed", "concurrency": 4}),
        # The space's own settings, where the kind is the space's own.
        (
            "capacity",
            "capacity",
            {"kind": "capacity", "resolution": 0.2, "lowest": 0.25, "highest": 8.0, "repeats": 1},
        ),
    ],
)
def test_what_is_measured_can_be_asked_for_and_objectives_follow(
    capacity: Run, word: str, objective: str, kept: dict[str, object]
) -> None:
    command = ("search", "--space", "capacity.yaml", "--engine", "simulated", "--trials", "1")
    assert capacity(*command, "--measure", word, "--study", "asked").exit_code == 0
    study = json.loads(Path("runs/asked/study.json").read_text())
    assert study["objectives"] == [objective, "tpot_p95"]
    assert study["options"]["measure"] == kept
    trial = json.loads(Path("runs/asked/trials/0000/outcome.json").read_text())
    assert word.partition(":")[0] in trial["measurement"]["mode"]


def test_objectives_that_the_space_names_are_not_dropped_silently(run: Run, tmp_path: Path) -> None:
    named = CAPACITY + "objectives: [capacity_tokens, tpot_p95]\n"
    (tmp_path / "named.yaml").write_text(named)
    command = ("search", "--space", "named.yaml", "--engine", "simulated", "--trials", "1")
    _assert_mistake(
        run(*command, "--measure", "fixed"), "--measure fixed", "'capacity_tokens'", "goodput_tokens"
    )
    assert run(*command).exit_code == 0


@pytest.mark.parametrize("word", ["closed", "closed:0", "open", ""])
def test_a_measure_that_is_none_is_one_line(run: Run, word: str) -> None:
    _assert_mistake(_simulated(run, "--trials", "1", "--measure", word), "--measure", "closed:N")


def test_a_study_goes_on_measuring_what_it_began_with(capacity: Run, tmp_path: Path) -> None:
    command = ("search", "--study", "c", "--resume")
    _assert_mistake(capacity(*command, "--measure", "fixed"), "measure capacity, not fixed", "--study")
    assert capacity(*command, "--measure", "capacity", "--trials", "4").exit_code == 0
    outcome = json.loads((tmp_path / "runs/c/trials/0003/outcome.json").read_text())
    assert outcome["measurement"]["mode"] == "capacity"


def test_a_study_from_before_there_was_a_choice_goes_on_with_its_one_load(
    studied: Run, tmp_path: Path
) -> None:
    path = tmp_path / "runs/s/study.json"
    kept = json.loads(path.read_text())
    del kept["options"]["measure"]
    kept["space_text"] = kept["space_text"].replace("measure: fixed\nobjectives: [goodput, tpot_p95]\n", "")
    path.write_text(json.dumps(kept))
    for outcome in (tmp_path / "runs/s/trials").glob("*/outcome.json"):
        old = json.loads(outcome.read_text())
        del old["step_speeds"]
        for name in ("mode", "curve", "disagreements"):
            old["measurement"].pop(name, None)
        outcome.write_text(json.dumps(old))
    result = studied("search", "--study", "s", "--resume", "--trials", "5")
    assert result.exit_code == 0, result.output
    assert "measuring fixed" in result.output
    front = json.loads(studied("front", "s", "--json").output)
    assert front["counts"]["measured"] == 5
    assert "goodput_rps" in front["front"][0]["metrics"]
    _assert_mistake(studied("search", "--study", "s", "--resume", "--measure", "capacity"), "fixed")


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
        ("[goodput, tpot_p95]", "[throughput, tpot_p95]", ("throughput", "'goodput'", "'capacity'")),
        (
            "[goodput, tpot_p95]",
            "[capacity, tpot_p95]",
            ("bad.yaml:15", "'capacity'", "kind fixed", "goodput"),
        ),
        ("measure: fixed", "measure: fixd", ("bad.yaml:14", "'fixd'", "'fixed'")),
        (
            "measure: fixed",
            "measure: {kind: fixed, concurrency: 3}",
            ("bad.yaml:14", "concurrency", "closed"),
        ),
        ("measure: fixed", "measure: capacity", ("bad.yaml", "59", "trace has 40", "--measure fixed")),
        (
            "slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}\nmeasure: fixed",
            "measure: capacity",
            ("no slo", "fixed"),
        ),
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


def test_a_search_says_why_it_ended_and_how_often_its_best_was_measured_again(studied: Run) -> None:
    output = _simulated(studied, "--trials", "10", "--study", "s", "--resume", "--stop-when-stable").output
    (ended,) = (line for line in output.splitlines() if line.startswith("ended: "))
    assert "is recommended, measured again" in ended
    front = json.loads(studied("front", "s", "--json").output)
    again = front["recommended"]["repeats"]
    assert len(again) == front["recommended"]["measured_again"] == 2
    out = studied("export", "s", "--trial", str(again[0]), "--to", "vllm", "--out", "d", "--allow-simulated")
    assert out.exit_code == 0, out.output
    told = json.loads(Path("d/provenance.json").read_text())
    assert told["measured"]["goodput_rps"]["value"] == front["recommended"]["metrics"]["goodput_rps"]
    assert told["trial"] == front["recommended"]["number"]


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
