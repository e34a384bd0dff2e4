"""`tuner explain`: what a trial's time is made of, and when nothing is made of it."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tuner.cli import main
from tuner.explain import Explanation, explain
from tuner.explain_words import explanation_json, explanation_lines
from tuner.mistakes import Mistake
from tuner.records import OUTCOME, REQUESTS, trial_folder

Run = Callable[..., Result]

SPACE = """
name: tiny
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096}
parameters:
  quantisation: {choices: {bf16: {}, fp8: {set: {quantization: fp8}}, broken: {set: {quantization: awq}}}}
  kv_cache_dtype: {choices: [auto, fp8]}
  speculation:
    choices:
      off: {}
      draft:
        set: {speculative_config: {method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct}}
        parameters: {depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}}
traffic:
  make: {requests: 60, rate: 20, input_mean: 400, input_max: 1000, output_mean: 40, output_max: 100,
         shared_prefix: 0.5, prefixes: 2, block_tokens: 64, seed: 3}
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
measure: fixed
"""
TRIALS = 9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with a simulated study `s`, in which some trials failed."""
    home = tmp_path_factory.mktemp("explain")
    (home / "tiny.yaml").write_text(SPACE)
    runs = home / "runs"
    words = ["search", "--space", str(home / "tiny.yaml"), "--engine", "simulated", "--study", "s"]
    words += ["--sampler", "random", "--seed", "4", "--trials", str(TRIALS), "--runs", str(runs)]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0, found.output
    return runs


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(made / "s", tmp_path / "runs" / "s")
    return tmp_path / "runs"


@pytest.fixture
def run(runs: Path) -> Run:
    def call(*words: str) -> Result:
        return CliRunner().invoke(main, ["explain", "s", "--runs", str(runs), *words])

    return call


def outcome(runs: Path, number: int) -> Path:
    return trial_folder(runs / "s", number) / OUTCOME


def changed(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def states(runs: Path) -> dict[int, str]:
    return {n: json.loads(outcome(runs, n).read_text())["state"] for n in range(TRIALS)}


def numbers(runs: Path, state: str) -> list[int]:
    return [number for number, found in states(runs).items() if found == state]


def explained(runs: Path, number: int = 0) -> Explanation:
    return explain(runs / "s", number)


def test_the_simulated_engines_constants_are_found_again(made: Path) -> None:
    seen = explained(made)
    assert seen.fit.errors["decode"].worst < 0.05
    for one in seen.fit.fitted:
        assert one.low <= one.table <= one.high, one


def test_the_parts_of_a_token_add_up_to_the_models_time_and_nearly_to_the_measured(made: Path) -> None:
    for number in numbers(made, "measured"):
        seen = explained(made, number)
        for token in (seen.decode, seen.prefill):
            assert token is not None
            assert token.split is not None
            assert token.split.total_s == pytest.approx(token.model_s)
            assert token.model_s == pytest.approx(token.measured_s, rel=0.05)
            assert all(part.low <= part.high for part in token.split.parts)


def test_the_measured_time_of_a_decode_token_is_the_tpot(made: Path) -> None:
    seen = explained(made)
    assert seen.trial.measurement is not None
    # TPOT is a mean over requests, a token's time one over tokens
    assert seen.decode.measured_s == pytest.approx(seen.trial.measurement.value("tpot_mean_s"), rel=0.1)


def test_decode_is_bound_by_memory_and_prefill_by_compute(made: Path) -> None:
    seen = explained(made)
    assert seen.decode.split is not None
    assert seen.prefill is not None
    assert seen.prefill.split is not None
    assert seen.decode.split.binds == "memory bandwidth"
    assert seen.prefill.split.binds == "compute"
    weights = next(part for part in seen.decode.split.parts if part.name == "weights_s")
    # 15.01 GB of weights at 80 % of 3.35 TB/s take 5.6 ms
    assert weights.seconds == pytest.approx(5.6e-3, rel=0.05)


def test_the_batch_settles_where_it_was_seen(made: Path) -> None:
    seen = explained(made)
    assert seen.settled == pytest.approx(seen.decoding, rel=0.15)


def test_failed_trials_are_left_out_and_counted(made: Path) -> None:
    failed, measured = numbers(made, "failed"), numbers(made, "measured")
    assert failed  # the space holds a choice that the engine refuses
    seen = explained(made)
    assert [one.number for one in seen.left_out] == failed
    assert [one.trial.number for one in seen.used] == measured
    (words,) = [line for line in explanation_lines(seen) if line.startswith("fitted on")]
    assert f"{len(failed)} left out: {len(failed)} failed" in words


def test_every_trials_residual_is_shown(run: Run, made: Path) -> None:
    found = run("--trial", "0", "--json")
    assert found.exit_code == 0
    told = json.loads(found.output)
    measured = numbers(made, "measured")
    assert [one["trial"] for one in told["errors"]["decode"]["trials"]] == measured
    assert told["engine"] == "simulated"
    text = run("--trial", "0").output
    assert "(simulated)" in text
    assert "What binds the forward passes is memory bandwidth" in text
    assert f"over {len(measured)} trials." in text


def test_json_has_no_infinity_and_parts_that_add_up(made: Path) -> None:
    told = json.loads(json.dumps(explanation_json(explained(made)), allow_nan=False))
    parts = [part["seconds"] for part in told["decode"]["parts"]]
    assert math.fsum(parts) == pytest.approx(told["decode"]["model_s"])


def test_the_draft_is_a_part_of_a_speculating_trial_only(made: Path) -> None:
    found = {}
    for number in numbers(made, "measured"):
        seen = explained(made, number)
        assert seen.decode.split is not None
        arguments = seen.trial.arguments
        found["speculative_config" in arguments] = "draft_s" in {p.name for p in seen.decode.split.parts}
    assert found == {True: True, False: False}


def test_a_trial_that_is_off_by_more_than_the_others_is_not_explained(runs: Path, run: Run) -> None:
    path = trial_folder(runs / "s", 0) / REQUESTS
    table = pq.read_table(path)
    chunks: list[list[float]] = table["chunk_s"].to_pylist()  # type: ignore[assignment]
    slow = [[2.5 * at for at in each] for each in chunks]
    place = table.column_names.index("chunk_s")
    pq.write_table(table.set_column(place, "chunk_s", pa.array(slow, pa.list_(pa.float64()))), path)
    seen = explained(runs)
    assert seen.decode.split is None
    assert seen.settled is None
    text = run("--trial", "0").output
    assert "the model does not explain this trial. No split is given." in text
    assert "where it goes" not in text
    told = json.loads(run("--trial", "0", "--json").output)
    assert told["decode"]["explained"] is False
    assert told["decode"]["parts"] is None
    # and the others are explained as before
    assert explained(runs, numbers(runs, "measured")[1]).decode.split is not None


def test_a_trial_without_its_requests_is_read_from_its_means(runs: Path) -> None:
    (trial_folder(runs / "s", 0) / REQUESTS).unlink()
    seen = explained(runs)
    assert seen.of_means == (0,)
    assert seen.prefill is None
    assert seen.decode.measured_s == pytest.approx(explained(runs, 0).decode.measured_s)
    assert "of 1 only means are there" in "\n".join(explanation_lines(seen))


def test_trials_on_other_hardware_are_left_out(runs: Path) -> None:
    def moved(raw: dict[str, object]) -> None:
        ran = raw["ran"]
        assert isinstance(ran, dict)
        ran["hardware"] = "A100-80G (simulated)"

    other = numbers(runs, "measured")[1]
    changed(outcome(runs, other), moved)
    left_out = {one.number: one.reason for one in explained(runs).left_out}
    assert left_out[other] == "on other hardware: A100-80G (simulated)"


def test_a_failed_trial_has_nothing_to_explain(run: Run, made: Path) -> None:
    number = numbers(made, "failed")[0]
    found = run("--trial", str(number))
    assert found.exit_code == 2
    assert found.output == f"error: trial {number} of study s has nothing to explain: failed\n"


def test_a_trial_that_never_was_is_a_mistake_in_one_line(run: Run) -> None:
    found = run("--trial", "99")
    assert found.exit_code == 2
    assert found.output.startswith("error: study s has no finished trial 99; finished are 0, 1,")
    assert found.output.count("\n") == 1


def test_two_trials_are_too_few(runs: Path) -> None:
    for number in numbers(runs, "measured")[2:]:
        shutil.rmtree(trial_folder(runs / "s", number))
    with pytest.raises(Mistake, match="has 2 trial"):
        explained(runs)


def test_requests_that_cannot_be_read_are_a_mistake(runs: Path, run: Run) -> None:
    (trial_folder(runs / "s", 0) / REQUESTS).write_text("no parquet")
    found = run("--trial", "0")
    assert found.exit_code == 2
    assert "requests.parquet: cannot be read" in found.output
