import dataclasses
import json
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from objectives.front import non_dominated
from search_spaces.accelerators import GIB, accelerator
from search_spaces.deployment import Misfit, Reader
from search_spaces.first_order import Traffic
from search_spaces.model_shape import known_shape
from search_spaces.roofline import MemoryFit
from search_spaces.schemes import UNQUANTISED
from search_spaces.settings import Settings
from tests.tuner import loads, stories
from tuner.cli import main
from tuner.mistakes import Mistake
from tuner.plan.duration import UP_S, past_studies, replayed_s
from tuner.plan.memory import kv_sequences, reason, short_of_kv
from tuner.plan.plan import plan, plan_json
from tuner.plan.shapes import PlanReport
from tuner.plan.words import plan_lines
from tuner.records import write_outcome, write_study

SPACE = """
name: eight
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1, accelerator: H100, cpus: 1}
engine: {max_model_len: 4096}
parameters:
  quantisation:
    choices:
      bf16: {}
      fp8: {set: {quantization: fp8}}
      huge: {model: meta-llama/Llama-3.3-70B-Instruct}
  max_num_seqs: {choices: [2, 256]}
  max_num_batched_tokens: {choices: [64, 4096]}
constraints:
  - max_num_batched_tokens >= max_num_seqs
traffic:
  make: {requests: 400, rate: 8.0, input_mean: 200, output_mean: 40, shared_prefix: 0.0, turns: 1, seed: 1}
  speed: 1.0
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
measure: {kind: capacity, resolution: 0.5}
budget: {trials: 20}
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "eight.yaml"
    path.write_text(SPACE)
    return path


@pytest.fixture(scope="module")
def planned(space: Path) -> PlanReport:
    return plan(str(space), trace=None, trials=None, runs=space.parent / "runs")


def test_configs_are_counted_with_their_valid_share(planned: PlanReport) -> None:
    # 3 schemes · 2 · 2, less those with a budget of 64 for 256 sequences.
    assert (planned.size.valid, planned.size.points) == (9, 12)
    assert planned.size.valid_share == 9 / 12
    assert planned.fit.every


def test_a_model_that_is_too_large_cannot_start_for_its_weights(planned: PlanReport) -> None:
    # 70e9 parameters of two bytes are 141 GB; the card has 80.
    assert [(m.reason, m.configs) for m in planned.fit.misfits] == [("no memory for the weights", 3)]
    assert "weights 131" in planned.fit.misfits[0].example
    assert [(c.choice, c.misfits, c.configs) for c in planned.fit.choices if c.path == "quantisation"] == [
        ("huge", 3, 3)
    ]


def test_the_predicted_front_is_that_of_what_starts(planned: PlanReport) -> None:
    assert planned.front
    assert all(one.config is not None and one.config["quantisation"] != "huge" for one in planned.front)
    losses = [(-one.objectives["capacity"], one.objectives["tpot_p95"]) for one in planned.front]
    assert non_dominated(np.array(losses)).all()
    assert losses == sorted(losses)
    assert planned.control is not None
    assert planned.control.objectives["capacity"] <= planned.front[0].objectives["capacity"] * 1.01


def test_time_is_the_start_and_the_replays_of_all_trials(planned: PlanReport) -> None:
    took = planned.duration
    assert took.trials == 10  # nine configs and the control, though the budget is 20
    # 8.03e9 parameters of two bytes at 1 GB/s
    assert took.start_s == pytest.approx(UP_S + 16.06, abs=0.1)
    assert "assumption" in took.start_from
    assert took.replay_s is not None
    assert took.replay_s > planned.trace.figures.duration_s
    assert took.gpu_hours == pytest.approx(10 * (took.start_s + took.replay_s) / 3600)


def test_a_study_that_ran_tells_how_long_trials_take(
    space: Path, tmp_path: Path, planned: PlanReport
) -> None:
    study = dataclasses.replace(
        loads.study(engine="vllm"),
        space_name="eight",
        trace_digest=planned.trace.digest,
        options={**loads.study().options, "speed": 1.0},
    )
    write_study(tmp_path / "tea", study)
    outcome = loads.measured()
    for number, (start, total) in enumerate([(30.0, 100.0), (40.0, 140.0), (50.0, 210.0)]):
        outcome = loads.measured()
        ran = dataclasses.replace(outcome.ran, engine="vllm", start_s=start, total_s=total)
        outcome = dataclasses.replace(outcome, ran=ran)
        write_outcome(tmp_path / "tea", stories.stored(outcome, number), outcome)
    found = plan(str(space), trace=None, trials=None, runs=tmp_path).duration
    assert found.start_s == 40
    assert found.replay_s == 100  # of 70, 100 and 160
    assert "tea" in found.start_from
    assert "tea" in found.replay_from
    other = dataclasses.replace(study, name="coffee", trace_digest="00" * 32)
    shutil.rmtree(tmp_path / "tea")
    write_study(tmp_path / "coffee", other)
    trial = stories.stored(outcome, 0)
    write_outcome(tmp_path / "coffee", trial, outcome)
    found = plan(str(space), trace=None, trials=None, runs=tmp_path).duration
    assert found.start_s == 50  # another trace starts the same engine
    assert "simulated" in found.replay_from


def test_simulated_and_damaged_studies_tell_nothing_of_time(space: Path, tmp_path: Path) -> None:
    from tuner.usecases import load_space

    write_study(tmp_path / "tea", dataclasses.replace(loads.study(), space_name="eight"))
    outcome = loads.measured()
    write_outcome(tmp_path / "tea", stories.stored(outcome, 0), outcome)
    (tmp_path / "coffee").mkdir()
    (tmp_path / "coffee" / "study.json").write_text("{")
    assert past_studies(tmp_path, load_space(str(space))) == ()


def test_past_studies_come_the_latest_first(space: Path, tmp_path: Path) -> None:
    from tuner.usecases import load_space

    for day, name in enumerate(("tea", "coffee")):
        made = dataclasses.replace(
            loads.study(engine="vllm"),
            name=name,
            space_name="eight",
            created=stories.MORNING + timedelta(days=day),
        )
        outcome = loads.measured()
        outcome = dataclasses.replace(outcome, ran=dataclasses.replace(outcome.ran, engine="vllm"))
        write_study(tmp_path / name, made)
        write_outcome(tmp_path / name, stories.stored(outcome, 0), outcome)
    assert [past.study.name for past in past_studies(tmp_path, load_space(str(space)))] == ["coffee", "tea"]


def test_a_trace_too_short_to_tell_configs_apart_is_said_to_be(space: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.yaml"
    short.write_text(SPACE.replace("requests: 400", "requests: 80"))
    remarks = plan(str(short), trace=None, trials=None, runs=tmp_path).remarks
    assert any("too short to tell configs apart" in remark for remark in remarks)


def test_an_overload_at_the_reference_load_is_foreseen(tmp_path: Path) -> None:
    fast = tmp_path / "fast.yaml"
    fast.write_text(SPACE.replace("speed: 1.0", "speed: 500"))
    found = plan(str(fast), trace=None, trials=None, runs=tmp_path)
    assert found.control is not None
    assert not found.control.holds
    assert any("not expected to hold" in remark for remark in found.remarks)


def test_a_trace_that_no_search_takes_is_refused_as_the_search_does(tmp_path: Path) -> None:
    few = tmp_path / "few.yaml"
    few.write_text(SPACE.replace("requests: 400", "requests: 10"))
    with pytest.raises(Mistake, match="the trace has 10"):
        plan(str(few), trace=None, trials=None, runs=tmp_path)
    with pytest.raises(Mistake, match="no space"):
        plan("spaces/nothing.yaml", trace=None, trials=None, runs=tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draft": 30 * GIB, "weights": 70 * GIB}, "the draft's weights"),
        ({"activations": 40 * GIB}, "activations"),
        ({"block": 8 * GIB, "least_blocks": 5}, "the KV cache of one sequence"),
        ({"weights": 90 * GIB}, "the weights"),
    ],
)
def test_what_has_no_room_is_what_the_rest_would_fit_without(changes: dict[str, float], words: str) -> None:
    fits = MemoryFit(
        total=80 * GIB,
        allowed=72 * GIB,
        weights=50 * GIB,
        activations=2 * GIB,
        graphs=1 * GIB,
        rest=1 * GIB,
        block=0.01 * GIB,
        least_blocks=100,
    )
    assert fits.fits
    lacking = dataclasses.replace(fits, **changes)  # type: ignore[arg-type]
    assert not lacking.fits
    assert words in reason(lacking)


def test_a_small_kv_pool_is_short_where_requests_come_faster_than_it_empties() -> None:
    device = accelerator("H100")
    reader = Reader(device, lambda model: (known_shape(model), UNQUANTISED))
    model = "meta-llama/Llama-3.1-8B-Instruct"
    pool = {"max_model_len": 2048, "max_num_seqs": 512, "num_gpu_blocks_override": 600}
    small = reader.read(Settings(model=model, arguments=pool, environment={}))

    def traffic(rate: float) -> Traffic:
        n = 200
        return Traffic(
            arrival_s=np.arange(n) / rate,
            input_tokens=np.full(n, 1000.0),
            output_tokens=np.full(n, 400.0),
            shared_tokens=np.zeros(n),
        )

    assert kv_sequences(small, traffic(1.0)) == pytest.approx(600 * 16 / 1200)
    assert not short_of_kv(small, device, traffic(0.5))
    assert short_of_kv(small, device, traffic(50.0))


def test_a_misfit_for_want_of_memory_says_what_it_lacks() -> None:
    reader = Reader(accelerator("H100"), lambda model: (known_shape(model), UNQUANTISED))
    with pytest.raises(Misfit) as caught:
        reader.read(Settings(model="meta-llama/Llama-3.3-70B-Instruct", arguments={}, environment={}))
    assert caught.value.fit is not None
    assert not caught.value.fit.fits


def test_replays_of_one_load_are_as_long_as_they_lasted() -> None:
    assert replayed_s(stories.measurement()) == 0.75
    # 100 requests at 6 and at 12 a second, then cuts after 5 s and 2 s.
    assert replayed_s(loads.measured().measurement) == pytest.approx(100 / 6 + 100 / 12 + 5 + 2)


def test_the_plan_is_told_in_words_and_as_json(planned: PlanReport, space: Path) -> None:
    text = "\n".join(plan_lines(planned))
    for words in (
        "9 valid, 75.0% of 12",
        "not to start",
        "predicted",
        "nothing was measured",
        "GPU hours",
        "P95",
    ):
        assert words in text
    assert json.loads(json.dumps(plan_json(planned), allow_nan=False))["duration"]["trials"] == 10
    told = CliRunner().invoke(main, ["plan", "--space", str(space), "--trials", "3", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["duration"]["trials"] == 3


def test_mistakes_end_in_one_line(space: Path) -> None:
    told = CliRunner().invoke(main, ["plan", "--space", str(space), "--trace", "nowhere.jsonl"])
    assert told.exit_code == 2
    assert len(told.output.strip().splitlines()) == 1
