import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cluster.dispatch.in_process import InProcess
from cluster.node.simulated import SimulatedEngine
from cluster.traffic.workload import Workload
from search_spaces.load import load_space
from tests.tuner import stories
from tuner.cli import main
from tuner.drift.drift import DriftRequest, drift
from tuner.drift.measure import DRIFT, ROUNDS, planned
from tuner.drift.shapes import Verdict
from tuner.mistakes import Mistake
from tuner.preflight import goal_of
from tuner.records import StoredTrial, read_study, read_trials, write_outcome, write_study
from tuner.sampler.pool import drawn
from tuner.session import SearchRequest, new_study, orders
from tuner.traffic import study_trace

SPACE = """
name: eight
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1, accelerator: H100, cpus: 1}
engine: {max_model_len: 8192}
parameters:
  quantisation: {choices: {bf16: {}, fp8: {set: {quantization: fp8}}}}
  max_num_seqs: {choices: [8, 256]}
traffic:
  make: {requests: 120, rate: 8.0, input_mean: 500, output_mean: 60, shared_prefix: 0.0, turns: 1, seed: 1}
  speed: 1.0
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
measure: {kind: capacity, resolution: 0.5, highest: 8}
budget: {trials: 3}
"""


def played(path: Path, folder: Path) -> None:
    """A study of all of the space's configs, without a sampler or MLflow, which take their time."""
    space = load_space(str(path))
    trace, origin = study_trace(space, None)
    workload = Workload(trace=trace, tokenizer=space.model)
    asked = SearchRequest(space=str(path), engine="simulated")
    study = new_study("tea", asked, space, goal_of(space), workload, origin)
    write_study(folder, study)
    order, dispatch = orders(study, space, workload, simulated=True), InProcess(SimulatedEngine())
    for number, config in enumerate([None, *drawn(space, np.random.default_rng(0), 10)]):
        dispatch.submit(order(number, config))
        landed = dispatch.next()
        assert landed is not None
        trial = StoredTrial.of(
            order(number, config),
            landed[1],
            config=None if config is None else config.values,
            is_control=config is None,
            attempts=1,
            started=stories.MORNING,
            finished=stories.MORNING,
            tuner_version="0.1.0",
            secrets=(),
        )
        write_outcome(folder, trial, landed[1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished simulated study `tea`, and traces beside it."""
    top = tmp_path_factory.mktemp("drift")
    (top / "eight.yaml").write_text(SPACE)
    runs = top / "runs"
    played(top / "eight.yaml", runs / "tea")
    common = ["trace", "make", "--requests", "120", "--output-mean", "60", "--seed", "5"]
    for name, rate, length in (("like", "8", "500"), ("longer", "8", "2500"), ("flood", "300", "500")):
        made = [*common, "--out", str(top / f"{name}.jsonl"), "--rate", rate, "--input-mean", length]
        told = CliRunner().invoke(main, made)
        assert told.exit_code == 0, told.output
    return runs


def command(runs: Path, trace: str, *more: str) -> Result:
    path = str(runs.parent / f"{trace}.jsonl")
    return CliRunner().invoke(main, ["drift", "--study", "tea", "--trace", path, "--runs", str(runs), *more])


def test_traffic_like_the_studys_own_is_steady_with_exit_code_0(runs: Path) -> None:
    told = command(runs, "like")
    assert told.exit_code == 0, told.output
    assert "the traffic has not moved" in told.output
    assert "SIMULATED" in told.output
    assert "next:" not in told.output


def test_traffic_that_moved_and_leaves_the_config_be_has_exit_code_3(runs: Path) -> None:
    told = command(runs, "longer", "--json")
    assert told.exit_code == 3, told.output
    found = json.loads(told.output)
    assert found["verdict"] == "stands"
    assert found["retune"] is False
    assert "prompt, mean" in found["why"]
    chosen = found["outlook"][0]
    assert chosen["chosen"]
    # Prompts five times as long take capacity.
    assert chosen["expected"]["capacity"] < 0.6 * chosen["measured"]["capacity"]


def test_more_than_the_config_serves_is_told_with_the_command_that_tunes_again(runs: Path) -> None:
    told = command(runs, "flood")
    assert told.exit_code == 4, told.output
    assert "more than the config can serve" in told.output
    assert "--warm-from tea" in told.output.splitlines()[-1]
    assert "--engine simulated" in told.output.splitlines()[-1]


def test_where_it_is_advised_it_tunes_again_warm_started(runs: Path) -> None:
    told = command(runs, "like", "--retune", "--json")
    assert json.loads(told.stdout)["retuned"] is None  # it is not advised
    told = command(runs, "flood", "--retune", "--json")
    assert told.exit_code == 4, told.output
    name = json.loads(told.stdout)["retuned"]
    study = read_study(runs / name)
    assert study.options["warm_from"] == "tea"
    assert study.trace == str(runs.parent / "flood.jsonl")
    assert len(read_trials(runs / name)) == 3


def test_the_fronts_few_are_measured_on_the_new_trace_once(runs: Path) -> None:
    said: list[str] = []
    asked = DriftRequest(study="tea", trace=str(runs.parent / "longer.jsonl"), measure=True, runs=runs)
    found = drift(asked, said.append)
    assert found.remeasured
    assert sum(one.chosen for one in found.remeasured) == 1
    assert any(one.is_control for one in found.remeasured)
    assert all(one.objectives for one in found.remeasured)
    assert any(one.on_front for one in found.remeasured)
    assert found.verdict in (Verdict.STANDS, Verdict.MOVED)
    assert "measured on the new traffic" in found.why
    (folder,) = (runs / "tea" / DRIFT).iterdir()
    assert len(read_trials(folder)) == ROUNDS * len(found.remeasured) == len(said)
    assert drift(asked, said.append).remeasured == found.remeasured
    assert len(said) == len(read_trials(folder))  # nothing ran again


def test_every_round_has_every_config_in_turn(runs: Path) -> None:
    configs = read_trials(runs / "tea")[:3]
    made = planned(configs)
    assert [run.config.number for run in made] == [0, 1, 2] * ROUNDS
    assert [run.number for run in made] == list(range(3 * ROUNDS))
    assert [run.repeats for run in made[:6]] == [None, None, None, 0, 1, 2]


def test_another_trial_may_be_the_one_in_production(runs: Path) -> None:
    told = command(runs, "like", "--trial", "0", "--json")
    found = json.loads(told.output)
    assert found["trial"] == 0
    assert found["title"] == "the engine's defaults"


@pytest.mark.parametrize(
    ("trace", "more", "words"),
    [
        ("nowhere", [], "nowhere.jsonl"),
        ("like", ["--trial", "99"], "no trial 99 with a score"),
        ("short", [], "too few requests"),
        ("like", ["--study", "coffee"], "no study 'coffee'"),
    ],
)
def test_mistakes_end_in_one_line(runs: Path, trace: str, more: list[str], words: str) -> None:
    short = runs.parent / "short.jsonl"
    if not short.exists():
        short.write_text("".join((runs.parent / "like.jsonl").read_text().splitlines(keepends=True)[:6]))
    told = command(runs, trace, *more)
    assert told.exit_code == 2, told.output
    assert words in told.output
    assert len(told.output.strip().splitlines()) == 1


def test_a_study_whose_own_trace_is_gone_is_a_mistake(runs: Path, tmp_path: Path) -> None:
    text = (runs / "tea" / "study.json").read_text()
    other = tmp_path / "runs" / "tea"
    other.mkdir(parents=True)
    (other / "study.json").write_text(text.replace('"trace": null', '"trace": "gone.jsonl"'))
    for trial in (runs / "tea" / "trials").iterdir():
        (other / "trials").mkdir(exist_ok=True)
        (other / "trials" / trial.name).symlink_to(trial)
    asked = DriftRequest(study="tea", trace=str(runs.parent / "like.jsonl"), runs=tmp_path / "runs")
    with pytest.raises(Mistake, match=r"gone\.jsonl"):
        drift(asked, lambda line: None)
