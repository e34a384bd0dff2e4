"""The arithmetic of the search benchmark, and that its short path measures what a trial measures."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import search
from benchmarks.searching.evaluation import Crash, Evaluator, Worth
from benchmarks.searching.memory import Memory
from benchmarks.searching.priors import Prior, slowed
from benchmarks.searching.reality import StrictEngine
from benchmarks.searching.runs import Trial, recommended
from benchmarks.searching.scenarios import PROBLEMS, Loaded
from benchmarks.searching.truth import Attainable, explore, neighbours
from cluster.node.run import run_trial
from cluster.order import Cause, Measured, Order
from objectives.goal import violations
from search_spaces.arguments import render
from search_spaces.space import Config
from search_spaces.values import Scalar
from tuner.sampler import Foresight


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return PROBLEMS["8b-summarise"].load()


def _configs(loaded: Loaded, count: int) -> list[Config]:
    rng = np.random.default_rng(5)
    return [loaded.space.sample(rng) for _ in range(count)]


def test_a_config_is_worth_what_a_trial_of_it_measures(loaded: Loaded, tmp_path: Path) -> None:
    evaluator, number = Evaluator(loaded), 7
    engine = StrictEngine(loaded.problem.reality.assumptions("H100", loaded.problem.noise))
    measured = 0
    for config in _configs(loaded, 12):
        rendered = render(loaded.space, config)
        order = Order(
            study="test",
            number=number,
            model=rendered.model,
            arguments=rendered.arguments,
            environment={},
            workload=loaded.workload,
            slo=loaded.slo,
            gpus=1,
            accelerator="H100",
        )
        outcome, worth = run_trial(order, engine, tmp_path), evaluator.noisy(config, number)
        if isinstance(outcome, Measured):
            assert isinstance(worth, Worth)
            assert worth.losses == loaded.goal.losses(outcome.measurement)
            assert worth.violation == violations(outcome.measurement, loaded.slo)["slo_attainment"]
            measured += 1
        else:
            assert worth == Crash(cause=outcome.cause, reason=outcome.reason)
    assert 0 < measured < 12, "both kinds of outcome were to be seen"


def test_noise_is_one_number_s_own_and_the_truth_has_none(loaded: Loaded) -> None:
    evaluator = Evaluator(loaded)
    config = next(c for c in _configs(loaded, 20) if isinstance(evaluator.true(c), Worth))
    assert evaluator.noisy(config, 1) == evaluator.noisy(config, 1)
    assert evaluator.noisy(config, 1) != evaluator.noisy(config, 2)
    assert evaluator.true(config) == evaluator.true(config) != evaluator.noisy(config, 1)


def test_a_cache_of_another_type_than_the_weights_is_refused_by_this_engine_alone(loaded: Loaded) -> None:
    values: dict[str, Scalar] = {
        "quantisation": "fp8",
        "kv_cache_dtype": "fp8_e5m2",
        "prefix_cache": "on",
        "gpu_memory_utilization": 0.92,
        "speculation": "off",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
    }
    evaluator = Evaluator(loaded)
    refused = evaluator.true(loaded.space.config(values))
    assert isinstance(refused, Crash)
    assert refused.cause is Cause.UNSUPPORTED
    assert isinstance(evaluator.true(loaded.space.config(values | {"quantisation": "w8a8"})), Worth)


def test_what_is_remembered_is_what_was_played(loaded: Loaded, tmp_path: Path) -> None:
    evaluator, configs = Evaluator(loaded), _configs(loaded, 5)
    first = Memory(tmp_path / "truth.sqlite", evaluator)
    played = [first.true(config) for config in configs]
    again = Memory(tmp_path / "truth.sqlite", evaluator)
    assert dict(again.all()) == dict(zip(configs, played, strict=True)), "also in another process"
    other = Memory(tmp_path / "truth.sqlite", Evaluator(PROBLEMS["70b-chat"].load()))
    assert not dict(other.all()), "nothing of another problem is read"


def test_the_front_found_is_closed_under_single_changes(loaded: Loaded, tmp_path: Path) -> None:
    memory = Memory(tmp_path / "truth.sqlite", Evaluator(loaded))
    explore(memory, loaded.space, draws=10, most=60)
    found = Attainable.of(memory)
    assert found.share([Worth(losses=row, violation=0.0) for row in found.losses]) == pytest.approx(1.0)
    met = [worth for _, worth in memory.all() if isinstance(worth, Worth) and worth.feasible]
    for worth in met:
        better = [r for r in found.losses if r[0] <= worth.losses[0] and r[1] <= worth.losses[1]]
        assert better, "each config that meets the SLO is on the front or below it"


def test_a_neighbour_is_valid_and_one_choice_away(loaded: Loaded) -> None:
    for config in _configs(loaded, 5):
        around = list(neighbours(loaded.space, config))
        assert len(around) > 10
        for other in around:
            assert not loaded.space.faults(other)
            shared = config.values.keys() & other.values.keys()
            changed = {path for path in shared if config.values[path] != other.values[path]}
            assert len({path.partition(".")[0] for path in changed}) == 1


def _trial(config: Config | None, goodput: float, tpot: float, violation: float = 0.0) -> Trial:
    return Trial(config=config, worth=Worth(losses=(-goodput, tpot), violation=violation), ask_s=0.0)


def test_the_front_within_the_slo_is_recommended() -> None:
    a, b, c, d = (Config({"n": n}) for n in range(4))
    trials = [
        _trial(None, 99, 0.001),  # the control is no config
        _trial(a, 10, 0.01),
        _trial(b, 5, 0.005),
        _trial(c, 4, 0.006),  # dominated
        _trial(d, 50, 0.001, violation=0.01),
        Trial(config=Config({"n": 9}), worth=Crash(cause=Cause.STUCK, reason=""), ask_s=0.0),
    ]
    assert recommended(trials) == [a, b]


def test_a_config_measured_twice_counts_with_its_mean() -> None:
    a, b = Config({"n": 0}), Config({"n": 1})
    once = [_trial(a, 10, 0.010), _trial(b, 9, 0.012)]
    assert recommended(once) == [a]
    assert recommended([*once, _trial(a, 6, 0.010)]) == [a, b]
    assert recommended([*once, _trial(a, 10, 0.010, violation=0.1)]) == [b]


def _told(configs: Sequence[Config]) -> Foresight:
    """w4a16 is thought twice as fast as everything else, ngram 1.25 times."""
    faster = np.array([2.0 if c.values["quantisation"] == "w4a16" else 1.0 for c in configs])
    faster *= [1.25 if c.values["speculation"] == "ngram" else 1.0 for c in configs]
    return Foresight(
        metrics={"goodput_rps": 10 * faster, "tpot_p95_s": 0.02 / faster},
        fits=np.ones(len(configs), dtype=np.bool_),
        violations={"slo_attainment": 0.9 - 0.4 * faster},
    )


def test_an_arm_or_scenario_that_is_not_there_is_said_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for option, given, there in (
        ("--arms", "tpe; ehvj", "no arm 'ehvj'.*ehvi"),
        ("--scenarios", "0,9", "'9'.*6"),
    ):
        monkeypatch.setattr("sys.argv", ["search", "--report", "--folder", str(tmp_path), option, given])
        with pytest.raises(SystemExit, match=there):
            search.main()


def test_a_reversed_prior_says_that_what_helps_costs_and_leaves_the_rest(loaded: Loaded) -> None:
    configs = _configs(loaded, 60)
    prior = Prior(reversed="quantisation", reference="bf16")
    wrong = prior.of(_told, loaded.space, 0.9, seed=0)(configs)
    for config, tpot, goodput in zip(
        configs, wrong.metrics["tpot_p95_s"], wrong.metrics["goodput_rps"], strict=True
    ):
        factor = 0.5 if config.values["quantisation"] == "w4a16" else 1.0
        factor *= 1.25 if config.values["speculation"] == "ngram" else 1.0
        assert tpot == pytest.approx(0.02 / factor)
        assert goodput == pytest.approx(10 * factor)


def test_a_prior_off_by_forty_per_cent_is_so_on_average_over_seeds(loaded: Loaded) -> None:
    configs, right = _configs(loaded, 10), _told(_configs(loaded, 10))
    prior = Prior(off=1.4)
    errors = np.array(
        [
            np.log(
                prior.of(_told, loaded.space, 0.9, seed)(configs).metrics["tpot_p95_s"]
                / right.metrics["tpot_p95_s"]
            )
            for seed in range(400)
        ]
    )
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(math.log(1.4), rel=0.1)
    assert abs(np.mean(errors)) < 0.05


def test_slower_by_nothing_changes_nothing_and_attainment_stays_a_share(loaded: Loaded) -> None:
    told = _told(_configs(loaded, 8))
    same = slowed(told, 0.9, np.zeros(8))
    np.testing.assert_allclose(same.metrics["goodput_rps"], told.metrics["goodput_rps"])
    np.testing.assert_allclose(same.violations["slo_attainment"], told.violations["slo_attainment"])
    fast = slowed(told, 0.9, np.full(8, -3.0))
    np.testing.assert_allclose(fast.violations["slo_attainment"], 0.9 - 1.0)


def test_nothing_is_made_of_a_prediction_that_predicts_nothing(loaded: Loaded) -> None:
    configs = _configs(loaded, 3)
    nothing = Foresight(metrics={}, fits=np.zeros(3, dtype=np.bool_))
    for prior in (Prior(off=1.4), Prior(reversed="quantisation", reference="bf16")):
        assert not prior.of(lambda _: nothing, loaded.space, 0.9, seed=0)(configs).metrics
