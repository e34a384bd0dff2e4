"""A simulated study of a control and one trial, and what is run of it from there on."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mlflow.entities import Run as MlflowRun
from mlflow.tracking import MlflowClient

from cluster.dispatch.in_process import InProcess
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import Outcome
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from search_spaces.load import parse_space
from tests.tuner.stories import MORNING
from tuner import usecases
from tuner.cli import main
from tuner.records import StoredTrial, write_outcome, write_study
from tuner.session import SearchRequest, new_study, orders
from tuner.traffic import study_trace

Run = Callable[..., Result]

SPACE = """
name: tiny
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096, enable_prefix_caching: false}
parameters:
  quantisation: {choices: {fp8: {set: {quantization: fp8}}}}
  prefix_cache: {choices: {on: {set: {enable_prefix_caching: true}}}}
  speculation:
    choices:
      ngram:
        set: {speculative_config: {method: ngram, prompt_lookup_min: 2}}
        parameters: {depth: {int: [2, 4], argument: speculative_config.num_speculative_tokens}}
traffic:
  make: {requests: 40, rate: 20, input_mean: 300, input_max: 1000, output_mean: 20, output_max: 100,
         shared_prefix: 0.5, block_tokens: 64, seed: 3}
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
measure: fixed
"""
"""Every config has all three, so trial 1 is a combination whatever is asked of the sampler."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_mlflow: Callable[[], str]) -> Run:
    """Calls `tuner` in an empty folder that holds a simulated study `s` of a control and one trial."""
    monkeypatch.chdir(tmp_path)
    uri = new_mlflow()
    monkeypatch.setattr(usecases, "default_tracking_uri", lambda runs: uri)
    space = parse_space(SPACE, "tiny.yaml")
    trace, origin = study_trace(space, None)
    asked = SearchRequest(name="s", engine="simulated", sampler="tpe")
    workload = Workload(trace=trace, speed=space.traffic.speed, seed=space.traffic.seed)
    study = new_study("s", asked, space, Goal.of(space.objectives), workload, origin)
    folder = tmp_path / "runs" / "s"
    write_study(folder, study)
    order = orders(study, space, workload, simulated=True)
    for number, config in enumerate((None, space.covering()[0])):
        outcome = run_trial(order(number, config), SimulatedEngine(), tmp_path)
        trial = StoredTrial.of(
            order(number, config),
            outcome,
            config=None if config is None else config.values,
            is_control=config is None,
            attempts=1,
            started=MORNING,
            finished=MORNING,
            tuner_version="0.1.0",
            secrets=(),
        )
        write_outcome(folder, trial, outcome)

    def call(*words: str) -> Result:
        return CliRunner().invoke(main, list(words))

    return call


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the orders that were run from here on."""
    numbers: list[int] = []
    before = InProcess.next

    def counted(self: InProcess, timeout_s: float | None = None) -> tuple[int, Outcome] | None:
        landed = before(self, timeout_s)
        if landed is not None:
            numbers.append(landed[0])
        return landed

    monkeypatch.setattr(InProcess, "next", counted)
    return numbers


def runs_in(folder: Path) -> list[MlflowRun]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
        (experiment,) = (e for e in client.search_experiments() if e.name == "tuner/tiny")
        return list(client.search_runs([experiment.experiment_id]))
