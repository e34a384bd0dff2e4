"""The fit of a step's constants: against steps whose constants are known, and steps that none make."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from objectives.step_fit import Errors, Fitted, Standing, StepObservation, TrialError, fit_steps
from search_spaces.accelerators import ACCELERATORS
from search_spaces.model_shape import SHAPES
from search_spaces.roofline import forward_pass
from search_spaces.schemes import FP8, UNQUANTISED, Scheme
from search_spaces.step_model import Constants, Served, StepLoad, step_parts, step_work, table_constants

H100 = ACCELERATORS["H100-80G"]
LLAMA = SHAPES["meta-llama/Llama-3.1-8B"]
DRAFT = forward_pass(SHAPES["meta-llama/Llama-3.2-1B"], UNQUANTISED, H100)


def served(scheme: Scheme = UNQUANTISED, kv_dtype: str = "bfloat16", depth: int = 0) -> Served:
    return Served(
        target=forward_pass(LLAMA, scheme, H100, kv_dtype=kv_dtype),
        target_scheme=scheme.name,
        draft=DRAFT if depth else None,
        draft_scheme="none" if depth else "",
        depth=depth,
    )


CONFIGS = (
    served(),
    served(FP8),
    served(kv_dtype="fp8"),
    served(FP8, "fp8"),
    served(depth=2),
    served(FP8, depth=4),
    served(),
    served(FP8),
)
TABLE = table_constants(H100, CONFIGS)
TRUTH = Constants(
    bandwidth=0.7 * TABLE.bandwidth,
    compute={"none": 0.6 * TABLE.compute["none"], "fp8": 0.8 * TABLE.compute["fp8"]},
    step_s=2.5e-3,
    sequence_s=2e-5,
    draft_step_s=7e-4,
)
BATCHES = (2, 20, 60)
PROMPTS = (300, 1200, 3000)


def observations(
    truth: Callable[[Served, StepLoad], float],
    *,
    run: float = 0.0,
    step: float = 0.0,
    seed: int = 0,
    prompts: tuple[int, ...] = PROMPTS,
    configs: tuple[Served, ...] = CONFIGS,
) -> list[StepObservation]:
    """Decode steps at three batch sizes and prefill steps of three lengths in every trial.

    Args:
        truth: how long a step takes.
        run: standard deviation of a factor that a whole trial shares.
        step: the same of each observation.
    """
    generator = np.random.default_rng(seed)
    found = []
    for trial, config in enumerate(configs):
        factor = math.exp(generator.normal(0.0, run)) if run else 1.0
        loads = [
            ("decode", StepLoad(sequences=n, queries=1 + config.depth, context=900.0 * n)) for n in BATCHES
        ]
        loads += [
            (
                "prefill",
                StepLoad(
                    sequences=4,
                    queries=1 + config.depth,
                    context=3600,
                    prompts=1,
                    prompt_tokens=n,
                    prompt_read=n,
                    prompt_pairs=n * (n + 1) / 2,
                ),
            )
            for n in prompts
        ]
        for kind, load in loads:
            luck = math.exp(generator.normal(0.0, step)) if step else 1.0
            found.append(
                StepObservation(
                    trial=trial,
                    replay=0,
                    kind="decode" if kind == "decode" else "prefill",
                    seconds=truth(config, load) * factor * luck,
                    steps=50.0,
                    works=((1.0, step_work(config, load)),),
                )
            )
    return found


def by_truth(config: Served, load: StepLoad) -> float:
    return step_parts(step_work(config, load), TRUTH).total_s


def true_value(name: str) -> float:
    if name.startswith("compute "):
        return TRUTH.compute[name.removeprefix("compute ")]
    return float(getattr(TRUTH, name))


def named(fitted: tuple[Fitted, ...], name: str) -> Fitted:
    return next(one for one in fitted if one.name == name)


def test_steps_without_noise_give_back_every_constant() -> None:
    fit = fit_steps(observations(by_truth), TABLE)
    assert {one.name for one in fit.fitted} == {
        "bandwidth",
        "compute none",
        "compute fp8",
        "step_s",
        "sequence_s",
        "draft_step_s",
    }
    for one in fit.fitted:
        assert one.standing is Standing.FITTED
        assert one.value == pytest.approx(true_value(one.name), rel=0.15)
        assert one.low <= true_value(one.name) <= one.high
    assert named(fit.fitted, "bandwidth").value == pytest.approx(TRUTH.bandwidth, rel=0.03)
    assert fit.errors["decode"].worst < 0.02


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draws, held = 40, dict.fromkeys(("bandwidth", "compute none", "compute fp8", "step_s"), 0)
    for seed in range(draws):
        fit = fit_steps(observations(by_truth, run=0.05, step=0.02, seed=seed), TABLE, draws=1)
        for name in held:
            one = named(fit.fitted, name)
            held[name] += one.low <= true_value(name) <= one.high
    # of 40 draws at 95 %, fewer than 34 come once in 300 times
    assert min(held.values()) >= 34, held


def test_a_constant_that_takes_no_part_is_left_at_the_tables_value() -> None:
    fit = fit_steps(observations(by_truth, step=0.02, prompts=()), TABLE)
    for name in ("compute none", "compute fp8"):  # decode is bound by memory
        one = named(fit.fitted, name)
        assert one.standing is Standing.TABLE
        assert one.value == pytest.approx(one.table)
        assert one.high / one.low > 4
    assert named(fit.fitted, "bandwidth").standing is Standing.FITTED


def test_without_a_draft_there_is_no_constant_of_it() -> None:
    fit = fit_steps(observations(by_truth, configs=CONFIGS[:4]), TABLE)
    assert "draft_step_s" not in {one.name for one in fit.fitted}
    assert "lookup_s" not in {one.name for one in fit.fitted}


def test_one_exceptional_trial_is_not_explained_and_moves_no_other() -> None:
    spoiled = [
        dataclasses.replace(one, seconds=1.6 * one.seconds) if one.trial == 3 else one
        for one in observations(by_truth, run=0.02, step=0.01)
    ]
    errors = fit_steps(spoiled, TABLE).errors["decode"]
    exceptional = errors.of(3)
    assert exceptional is not None
    assert exceptional.left_out == pytest.approx(-math.log(1.6), abs=0.12)
    assert not errors.explains(3)
    assert max(abs(one.left_out) for one in errors.trials if one.trial != 3) < 0.1


def test_the_error_left_out_is_at_least_as_large_as_the_one_fitted() -> None:
    errors = fit_steps(observations(by_truth, run=0.05, step=0.02, seed=4), TABLE).errors["decode"]
    fitted = sum(abs(one.fitted) for one in errors.trials)
    assert sum(abs(one.left_out) for one in errors.trials) > fitted


def test_where_the_truth_is_another_model_nothing_is_explained() -> None:
    luck = np.random.default_rng(0).permutation([0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0])
    numbers = {id(config): n for n, config in enumerate(CONFIGS)}

    def otherwise(config: Served, load: StepLoad) -> float:
        return float(5e-3 * luck[numbers[id(config)]] * load.sequences**0.9)

    fit = fit_steps(observations(otherwise), TABLE)
    errors = fit.errors["decode"]
    assert errors.median > 0.25
    assert not errors.usable
    assert not any(errors.explains(one.trial) for one in errors.trials)


def test_two_trials_are_too_few_to_state_an_error() -> None:
    with pytest.raises(ValueError, match="2 trials, where 3 are the least"):
        fit_steps(observations(by_truth, configs=CONFIGS[:2]), TABLE)


def test_the_same_observations_give_the_same_fit() -> None:
    seen = observations(by_truth, run=0.03, step=0.02)
    first, second = fit_steps(seen, TABLE), fit_steps(seen, TABLE)
    assert first.fitted == second.fitted
    assert [one.bandwidth for one in first.draws] == [one.bandwidth for one in second.draws]


def errors_of(*left_out: float) -> Errors:
    return Errors(
        trials=tuple(
            TrialError(trial=number, measured_s=0.01, fitted=0.0, left_out=error)
            for number, error in enumerate(left_out)
        )
    )


def test_an_error_is_held_against_the_other_trials_only() -> None:
    errors = errors_of(0.04, -0.08, 0.06, 0.9)
    # of the others 0.04, 0.06 and 0.08 the median is 0.06; Student's 0.975 quantile with 3 is 3.182
    allowed = errors.allowed(3)
    assert allowed == pytest.approx(3.182446 * 1.4826 * 0.06, rel=1e-5)
    assert not errors.explains(3)
    assert errors.explains(0)


def test_an_error_of_a_few_per_cent_is_never_held_against_a_trial() -> None:
    errors = errors_of(0.001, 0.002, 0.001, 0.04)
    assert errors.allowed(3) == pytest.approx(math.log(1.05))
    assert errors.explains(3)


def test_an_error_of_a_half_explains_nothing_however_far_off_the_others_are() -> None:
    errors = errors_of(0.5, -0.5, 0.5, 0.42)
    assert errors.allowed(3) == pytest.approx(math.log(1.5))
    assert errors.allowed(3) == errors.allowed(0)


def test_errors_are_told_as_shares() -> None:
    errors = errors_of(math.log(1.1), -math.log(1.2), math.log(1.3))
    assert errors.median == pytest.approx(0.2)
    assert errors.worst == pytest.approx(0.3)
    assert errors.usable
