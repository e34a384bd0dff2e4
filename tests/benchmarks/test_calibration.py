"""The simulated engine held against a real one: here another simulated one, whose figures are known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibrating.calibration import calibrate
from benchmarks.calibrating.choice import distance, spread
from benchmarks.calibrating.errors import Error, Played, errors, repeatability
from benchmarks.calibrating.measured import MeasuredConfig, Pool, read_pool
from benchmarks.calibration import CALIBRATED_ON, Comparison, compare, main
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions, resolve
from cluster.node.simulation.speculation import DEFAULT_ACCEPTANCE, Acceptance
from cluster.order import Order
from objectives.measurement import Measurement
from objectives.slo import Slo
from search_spaces.accelerators import GIB, accelerator
from search_spaces.arguments import render, render_control
from search_spaces.load import parse_space
from search_spaces.step_model import Constants
from search_spaces.values import Scalar
from tests.tuner.stories import MORNING
from tuner.ablation.traffic import same_traffic
from tuner.records import StoredTrial, StudyFile, write_outcome, write_study
from tuner.traffic import study_trace

SPACE = """
name: tiny
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096}
parameters:
  quantisation: {choices: {bf16: {}, fp8: {set: {quantization: fp8}}}}
  kv_cache_dtype: {choices: [auto, fp8]}
  speculation:
    choices:
      off: {}
      ngram:
        set: {speculative_config: {method: ngram, prompt_lookup_min: 3}}
        parameters: {depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}}
      draft:
        set: {speculative_config: {method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct}}
        parameters: {depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}}
  max_num_seqs: {int: [2, 64], log: true}
traffic:
  make: {requests: 60, rate: 8, input_mean: 400, input_max: 1000, output_mean: 40, output_max: 100,
         shared_prefix: 0.5, prefixes: 2, block_tokens: 64, seed: 3}
slo: {ttft_p95_ms: 2000, tpot_p95_ms: 60}
measure: fixed
"""
TRIALS = 14
H100 = accelerator("H100")
TRUTH = Assumptions(
    accelerator=replace(H100, rest=H100.rest + 6 * GIB),
    constants=Constants(
        bandwidth=0.5 * H100.bandwidth,
        compute={"unquantised": 0.4 * H100.flops["bf16"], "fp8": 0.3 * H100.flops["fp8"]},
        step_s=4e-3,
        sequence_s=1e-4,
        draft_step_s=2e-3,
        lookup_step_s=1.5e-3,
    ),
    acceptance={
        **DEFAULT_ACCEPTANCE,
        "ngram": Acceptance(rate=0.3, found=0.7),
        "Llama-3.2-1B-Instruct": Acceptance(rate=0.0, positions=(0.5, 0.45, 0.1, 0.02)),
    },
    api_s=0.03,
)


def study_file(name: str, engine: str = "vllm") -> StudyFile:
    space = parse_space(SPACE, "tiny.yaml")
    made = StudyFile(
        name=name,
        id=name,
        space_name=space.name,
        space_text=SPACE,
        trace="made by tiny.yaml",
        trace_digest="",
        objectives=("goodput", "tpot_p95"),
        slo=Slo.from_limits(space.slo),
        sampler="random",
        seed=0,
        engine=engine,
        created=MORNING,
        tuner_version="0",
        options={"space": "tiny.yaml", "measure": {"kind": "fixed", "repeats": 1}},
    )
    return replace(made, trace_digest=study_trace(space, None)[0].digest)


def measure(
    folder: Path, study: StudyFile, trials: int, seed: int = 0, *, truth: Assumptions = TRUTH
) -> Path:
    """A study of so many trials, the control first, measured on an engine that is truly like that."""
    write_study(folder, study)
    space, workload = same_traffic(study)
    generator = np.random.default_rng(seed)
    for number in range(trials):
        config = None if number == 0 else space.sample(generator)
        rendered = render_control(space) if config is None else render(space, config)
        order = Order(
            study=study.name,
            number=number,
            model=rendered.model,
            arguments=rendered.arguments,
            environment={},
            workload=workload,
            slo=study.slo,
            gpus=1,
            accelerator="H100",
        )
        outcome = run_trial(order, SimulatedEngine(truth), folder)
        trial = StoredTrial.of(
            order,
            outcome,
            config=None if config is None else config.values,
            is_control=number == 0,
            attempts=1,
            started=MORNING,
            finished=MORNING,
            tuner_version="0",
            secrets=(),
        )
        write_outcome(folder, trial, outcome)
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(tmp_path_factory.mktemp("calibration") / "s", study_file("s"), TRIALS)


@pytest.fixture(scope="module")
def pool(study: Path) -> Pool:
    return read_pool([study])


@pytest.fixture(scope="module")
def found(pool: Pool) -> Comparison:
    return compare(pool, None, 2)


def test_an_engine_of_the_same_kind_is_hit_nearly_exactly_after_five_configs(found: Comparison) -> None:
    assert len(found.chosen) == CALIBRATED_ON
    assert len(found.played) == len(found.pool.configs) - CALIBRATED_ON
    for metric, error in found.errors.items():
        # Goodput counts requests, so one that just misses its limit is 1 in 60.
        assert error.median < 1.03, (metric, error)
        assert error.p90 < (1.2 if "goodput" in metric else 1.1), (metric, error)


def test_without_calibration_the_same_engine_is_far_off(found: Comparison) -> None:
    for metric in ("tpot_p50_s", "ttft_p50_s"):
        assert found.as_it_comes[metric].median > 1.3
        assert found.as_it_comes[metric].bias < 1  # the truth is slower


def test_what_the_engine_truly_is_is_found_again(found: Comparison) -> None:
    calibration, truth = found.calibration, TRUTH.constants
    assert truth is not None
    told = {one.name: one.value for one in calibration.fitted}
    assert told["bandwidth"] == pytest.approx(truth.bandwidth, rel=0.05)
    assert told["compute unquantised"] == pytest.approx(truth.compute["unquantised"], rel=0.1)
    assert told["step_s"] == pytest.approx(truth.step_s, rel=0.15)
    assert told["draft_step_s"] == pytest.approx(truth.draft_step_s, rel=0.15)
    assert calibration.api_s == pytest.approx(TRUTH.api_s)


def test_acceptance_is_found_by_position_and_for_the_shortest_match_that_was_asked_for(pool: Pool) -> None:
    calibration = calibrate(pool, pool.configs)
    draft = calibration.acceptance["Llama-3.2-1B-Instruct"]
    assert draft.found == pytest.approx(1.0, abs=0.02)
    assert draft.positions is not None
    assert draft.positions == pytest.approx((0.5, 0.45, 0.1, 0.02)[: len(draft.positions)], abs=0.04)
    ngram = calibration.acceptance["ngram"]
    assert ngram.found == pytest.approx(0.7, abs=0.05)
    assert ngram.rate == pytest.approx(0.3, abs=0.08)


def test_the_kv_pool_is_as_large_as_the_engine_said(pool: Pool, found: Comparison) -> None:
    assert found.calibration.beside_kv == pytest.approx(6 * GIB, rel=0.01)
    for config in pool.configs:
        had = config.first.trial.ran.effective["kv_blocks"]
        assert resolve(pool.order(config), found.calibration.assumptions).kv_blocks == pytest.approx(
            had, abs=2
        )


def test_a_kv_pool_whose_size_was_asked_for_is_as_it_is(pool: Pool) -> None:
    def sized(config: MeasuredConfig) -> MeasuredConfig:
        trial = config.first.trial
        asked = replace(trial, arguments={**trial.arguments, "kv_cache_memory_bytes": GIB})
        return replace(config, runs=(replace(config.first, trial=asked),))

    configs = tuple(sized(config) for config in pool.configs)
    assert calibrate(replace(pool, configs=configs), configs[:3]).beside_kv is None


def test_several_studies_are_one_pool_and_a_config_measured_twice_is_one_config(
    study: Path, pool: Pool, tmp_path: Path
) -> None:
    again = measure(tmp_path / "t", study_file("t"), 3, seed=1)
    both = read_pool([study, again])
    assert both.studies == ("s", "t")
    control = both.configs[0]
    assert [(run.study, run.trial.number) for run in control.runs] == [("s", 0), ("t", 0)]
    assert len(both.configs) == len(pool.configs) + 2
    assert {config.name for config in both.configs} >= {"s:0", "s:1", "t:1", "t:2"}
    # The simulated engine repeats itself to the last bit.
    assert all(error.p90 == pytest.approx(1.0) for error in repeatability(both.configs).values())


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_what_cannot_be_compared_is_refused_in_one_line(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = measure(tmp_path / "simulated", study_file("sim", "simulated"), 1)
    few = measure(tmp_path / "few", study_file("few"), 2)
    other = measure(
        tmp_path / "other", replace(study_file("other"), options={"space": "tiny.yaml", "speed": 0.5}), 1
    )
    assert "simulated engine" in refused(capsys, str(simulated))
    assert "2 measured config(s), where 7 are the least" in refused(capsys, str(few))
    assert "differ in speed" in refused(capsys, str(study), str(other))
    assert "named twice" in refused(capsys, str(study), str(study))
    assert "no such file" in refused(capsys, str(tmp_path / "nowhere"))
    assert "'99'" in refused(capsys, str(study), "--calibrate-on", "0,1,99")
    assert "3 are the least" in refused(capsys, str(study), "--calibrate-on", "0,1")


def test_a_program_reads_what_a_person_reads(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(study), "--calibrate-on", "0,1,2,3", "--choices", "0"]
    main(words)
    shown = capsys.readouterr().out
    main([*words, "--json"])
    told = json.loads(capsys.readouterr().out, parse_constant=lambda text: pytest.fail(text))
    assert [config["name"] for config in told["calibrated_on"]] == ["0", "1", "2", "3"]
    for config in told["configs"]:
        assert f"| {config['name']} |" in shown
        for metric in config["metrics"].values():
            if isinstance(metric["ratio"], float) and metric["measured"]:
                assert metric["ratio"] == pytest.approx(metric["simulated"] / metric["measured"])
    error = told["errors"]["ttft_p95_s"]
    assert f"| TTFT p95 | {error['configs']} | {100 * (error['median'] - 1):.3g} %" in shown


def with_goodput(pool: Pool, *measured: float) -> Played:
    """The first config as measured with these goodputs."""
    config = pool.configs[0]
    runs = []
    for value in measured:
        run = config.first
        known = run.trial.measurement
        assert isinstance(known, Measurement)
        estimate = replace(known.metrics["goodput_tokens_per_s"], value=value)
        metrics = {**known.metrics, "goodput_tokens_per_s": estimate}
        runs.append(replace(run, trial=replace(run.trial, measurement=replace(known, metrics=metrics))))
    return Played(config=replace(config, runs=tuple(runs)), simulated={"goodput_tokens_per_s": 10.0})


def test_an_error_is_a_factor_either_way_and_none_is_left_out(pool: Pool) -> None:
    played = [with_goodput(pool, value) for value in (5.0, 8.0, 10.0, 20.0)]
    # ratios 2, 1.25, 1, 0.5; factors 2, 1.25, 1, 2: between 1.25 and 2 lies the median
    assert errors(played)["goodput_tokens_per_s"] == Error(configs=4, median=1.625, p90=2.0, bias=1.125)
    none_good = with_goodput(pool, 0.0)
    assert none_good.ratio("goodput_tokens_per_s") == math.inf
    assert errors([*played, none_good])["goodput_tokens_per_s"].p90 == math.inf
    assert replace(none_good, simulated={"goodput_tokens_per_s": 0.0}).ratio("goodput_tokens_per_s") == 1.0


def test_the_real_engine_is_held_against_the_mean_of_its_other_measurements(pool: Pool) -> None:
    config = with_goodput(pool, 10.0, 20.0, 30.0).config
    # 10 to 25, 20 to 20, 30 to 15
    error = repeatability([config])["goodput_tokens_per_s"]
    assert (error.configs, error.median, error.bias) == (3, 2.0, 1.0)


def test_tokens_a_step_are_compared_only_where_something_is_drafted(pool: Pool, found: Comparison) -> None:
    for played in found.played:
        told = played.ratio("accepted_tokens_per_target_step")
        assert (told is None) == (played.config.choices.get("speculation", "off") == "off")


CHOICES: list[dict[str, Scalar]] = [
    {"scheme": "full", "draft": "off", "seqs": 128},
    {"scheme": "full", "draft": "off", "seqs": 64},
    {"scheme": "int8", "draft": "off", "seqs": 128},
    {"scheme": "full", "draft": "on", "seqs": 128, "draft.depth": 2},
    {"scheme": "int8", "draft": "on", "seqs": 4, "draft.depth": 4},
    {"scheme": "full", "draft": "off", "seqs": 4},
]


def test_what_calibrates_is_the_control_then_new_choices_then_what_lies_farthest() -> None:
    # 4 has two choices that 0 has not. Then none is new, and by hand: 1 is 0.2 from 0, 2 is 1 from 0, 5 is 1
    # from 0, 3 is 2 from 0 and as far from 4: scheme 1, seqs 1, depth 1.
    assert spread(CHOICES, 3) == (0, 4, 3)


@given(st.integers(1, 8))
def test_so_many_are_chosen_and_none_twice(count: int) -> None:
    chosen = spread(CHOICES, count)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen) == min(count, len(CHOICES))


def test_a_distance_is_one_a_choice_and_at_most_one_a_number() -> None:
    widths = {"seqs": math.log(32)}
    assert distance(CHOICES[0], CHOICES[5], widths) == pytest.approx(1.0)
    assert distance(CHOICES[0], CHOICES[1], widths) == pytest.approx(math.log(2) / math.log(32))
    assert distance(CHOICES[0], CHOICES[3], widths) == 2.0  # the draft, and that it has a depth


def test_an_engine_that_says_nothing_of_its_queue_adds_nothing(pool: Pool) -> None:
    configs = tuple(
        replace(
            config,
            runs=tuple(
                replace(run, records=tuple(replace(one, server_queue_s=None) for one in run.records))
                for run in config.runs
            ),
        )
        for config in pool.configs
    )
    calibration = calibrate(replace(pool, configs=configs), configs[:5])
    assert calibration.api_s is None
    assert calibration.assumptions.api_s == 0.0
