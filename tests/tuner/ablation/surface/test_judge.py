"""A cost surface's cells and what they are read as: made-up runs with known ratios, refusals, failures."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.order import Measured, Outcome
from objectives.measurement import Estimate, LoadPoint, Mode
from search_spaces.values import Json, Scalar
from tests.tuner.ablation.desks import THREE, TRIAL, Desk, measured, refused
from tests.tuner.dispatches import FakeDispatch
from tuner.ablation.plan import write_design
from tuner.ablation.run import ablate, cell_order
from tuner.ablation.surface.judge import surface_report
from tuner.ablation.surface.plan import AskedSurface, Point, SurfacePlan, default_depths, surface_plan
from tuner.ablation.surface.report import SurfaceReport
from tuner.ablation.surface.terminal import surface_lines
from tuner.mistakes import Mistake
from tuner.records import read_trials

Answer = Callable[[Point | None, int], Outcome]
"""Of a point and its block."""


def plan(desk: Desk, acceptances: tuple[float, ...] = (0.2, 0.8), **asked: object) -> SurfacePlan:
    wanted = AskedSurface(**{"trial": TRIAL, "acceptances": acceptances, **asked})  # type: ignore[arg-type]
    return surface_plan(wanted, desk.study, desk.space, desk.trials, desk.folder)


def run(desk: Desk, answer: Answer, made: SurfacePlan) -> SurfaceReport:
    blocks = {one.number: (made.point(one.cell), one.block) for one in made.runs}
    list(
        ablate(
            made,
            desk.trials,
            lambda one: cell_order(made, desk._order(0), one),
            FakeDispatch(lambda order: answer(*blocks[order.number])),
            lambda finished, over: None,
        )
    )
    return surface_report(made, read_trials(made.folder))


def outcome(tpot_ratio: float, tokens: float = 1.0, drift: float = 1.0) -> Measured:
    return measured(
        tpot_mean_s=0.02 * tpot_ratio * drift,
        accepted_tokens_per_target_step=tokens,
        batch_mean=20.0,
        goodput_rps=4 / tpot_ratio,
        offered_rps=100.0,
    )


def linear(point: Point | None, block: int) -> Outcome:
    """Depth k costs a fifth a position and pays from acceptance 0.5 on, with half a percent of noise."""
    if point is None:
        return outcome(1.0, drift=1 + 0.3 * block)
    noise = 1 + 0.005 * (-1) ** block
    return outcome(float(1.5 ** (2 * (0.5 - point.acceptance))) * noise, tokens=2, drift=1 + 0.3 * block)


def test_cells_accept_what_was_asked_and_nothing_else_of_the_trial_changes(tmp_path: Path) -> None:
    made = plan(Desk(tmp_path), acceptances=(0.5,), depths=(3,))
    own, (none, cell) = made.chosen.arguments, made.cells
    rest = {name: value for name, value in own.items() if name != "speculative_config"}
    assert made.settings(none).arguments == rest
    synthetic: Mapping[str, Json] = {
        "method": "ngram",
        "prompt_lookup_min": 2,
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.5, 0.25, 0.125],
    }
    assert made.settings(cell).arguments == {**rest, "speculative_config": synthetic}


def test_each_block_begins_and_ends_without_speculation_and_has_an_order_of_its_own(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    made = plan(desk, depths=(1, 2, 3, 4), replicates=3)
    blocks = [[made.name(one.cell) for one in made.runs if one.block == block] for block in range(3)]
    for names in blocks:
        assert names[0] == names[-1] == "no speculation"
        assert sorted(names[1:-1]) == sorted(f"depth {k} at {a}" for k in (1, 2, 3, 4) for a in (0.2, 0.8))
    assert blocks[0] != blocks[1] != blocks[2]
    fewer = plan(desk, depths=(1, 2, 3, 4))
    assert made.runs[: len(fewer.runs)] == fewer.runs


def test_another_surface_is_not_mixed_with_the_one_begun(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    write_design(plan(desk, depths=(1, 4), replicates=3))
    again = plan(desk)
    assert (again.depths, again.replicates) == ((1, 4), 3)
    with pytest.raises(Mistake, match="was begun with other acceptances, cells; ask the same"):
        plan(desk, acceptances=(0.5,))
    with pytest.raises(Mistake, match="was begun with 3 replicates"):
        plan(desk, replicates=2)


def test_a_break_even_is_told_with_the_batch_that_it_is_of(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    report = run(desk, linear, plan(desk, depths=(3,)))
    tpot = next(one for one in report.break_even if one.title == "TPOT")
    assert tpot.acceptance == pytest.approx(0.5, abs=0.01)
    assert tpot.low is not None
    assert tpot.high is not None
    assert tpot.low < 0.5 < tpot.high
    assert tpot.batch == pytest.approx(20)
    assert tpot.sentence.startswith("Depth 3 breaks even in TPOT at an acceptance of 0.50 (")
    assert tpot.sentence.endswith("at a batch of 20 without speculation.")
    goodput = next(one for one in report.break_even if one.title == "goodput")
    assert goodput.acceptance == pytest.approx(0.5, abs=0.01)


def test_drift_from_block_to_block_is_in_no_ratio(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    report = run(desk, linear, plan(desk, depths=(3,)))
    low = next(cell for cell in report.cells if cell.acceptance == 0.2)
    ratio = low.ratios["tpot_mean_ms"]
    assert ratio.ratio == pytest.approx(1.5**0.6, rel=1e-3)
    assert ratio.told
    assert low.ratios["step_ms"].ratio == pytest.approx(2 * 1.5**0.6, rel=1e-3)


def test_noise_as_large_as_the_effect_cannot_be_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def answer(point: Point | None, block: int) -> Outcome:
        return outcome(1.0 if point is None else (1.2 - 0.4 * point.acceptance) * (1 + 0.3 * block))

    report = run(desk, answer, plan(desk, depths=(2,)))
    assert {one.pays for one in report.break_even} == {"cannot tell"}
    assert any("cannot tell from these runs" in line for line in report.summary)


def test_rates_that_kept_up_with_the_load_break_even_nowhere(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def answer(point: Point | None, block: int) -> Outcome:
        ratio = 1.0 if point is None else 1.5 - point.acceptance
        return measured(tpot_mean_s=0.02 * ratio, goodput_rps=4.0, offered_rps=4.0)

    report = run(desk, answer, plan(desk, depths=(2,)))
    assert [one.title for one in report.break_even] == ["TPOT"]
    assert any("kept up with the load" in note for note in report.notes)


def test_a_draft_is_held_against_a_shallower_depth_by_its_first_positions(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    made = plan(desk, depths=(1, 3))
    assert made.trial.measurement is not None
    measurement = replace(made.trial.measurement, accepted_per_position=(0.9, 0.0))
    report = run(desk, linear, replace(made, trial=replace(made.trial, measurement=measurement)))
    told = [line for line in report.summary if line.startswith("To depth") and "TPOT" in line]
    assert told == [
        "To depth 1 that is as many tokens as a constant 0.90: above the break-even of depth 1 in TPOT."
    ]


def test_a_capacity_breaks_even_at_the_batch_at_that_capacity(tmp_path: Path) -> None:
    desk = Desk(tmp_path, measure={"kind": "capacity"})

    def answer(point: Point | None, block: int) -> Outcome:
        ratio = 1.0 if point is None else 2 ** (2 * (point.acceptance - 0.5))
        found = measured(
            tpot_mean_s=0.02 / ratio, batch_mean=20.0, capacity_rps=4 * ratio, capacity_speed=4 * ratio
        )
        curve = (
            load_point(4 * ratio, held=True, batch=80.0),
            load_point(4.04 * ratio, held=False, batch=90.0),
        )
        return replace(found, measurement=replace(found.measurement, mode=Mode.CAPACITY, curve=curve))

    report = run(desk, answer, plan(desk, depths=(2,)))
    assert report.rate == "capacity_rps"
    told = {one.title: one for one in report.break_even}
    assert {title: one.batch for title, one in told.items()} == {"TPOT": 20, "capacity": pytest.approx(80)}
    assert told["capacity"].acceptance == pytest.approx(0.5)
    low, high = told["capacity"].low, told["capacity"].high
    assert low is not None
    assert high is not None
    # One step of 1 % is rounding of both sides: uniform, so its deviation is log(1.01) / √12 on each.
    half = 1.96 * math.log(1.01) * math.sqrt(2 / 12) / (2 * math.log(2))
    assert low == pytest.approx(0.5 - half)
    assert high == pytest.approx(0.5 + half)


def load_point(speed: float, *, held: bool, batch: float) -> LoadPoint:
    return LoadPoint(
        speed=speed,
        offered_rps=speed,
        requests=10,
        misses=0 if held else 9,
        held=held,
        took_s=1.0,
        metrics={"batch_mean": Estimate(value=batch)},
    )


@pytest.mark.parametrize(
    ("positions", "told"),
    [((0.8, 0.7, 0.6), "above"), ((0.2, 0.1, 0.0), "below"), ((0.5, 0.25, 0.125), "not to be told from")],
)
def test_the_trials_own_draft_is_held_against_its_depth(
    tmp_path: Path, positions: tuple[float, ...], told: str
) -> None:
    desk = Desk(tmp_path)
    made = plan(desk, depths=(3,))
    assert made.trial.measurement is not None
    own = replace(made.trial, measurement=replace(made.trial.measurement, accepted_per_position=positions))
    report = run(desk, linear, replace(made, trial=own))
    assert report.draft is not None
    constant = f"To depth 3 that is as many tokens as a constant {report.draft.constant:.2f}: "
    assert f"{constant}{told} the break-even of depth 3 in TPOT." in report.summary


def test_a_depth_that_the_engine_refuses_is_said_and_the_others_are_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def answer(point: Point | None, block: int) -> Outcome:
        return refused() if point is not None and point.depth == 4 else linear(point, block)

    report = run(desk, answer, plan(desk, depths=(1, 4)))
    assert {one.depth: one.pays for one in report.break_even} == {1: "from", 4: "cannot tell"}
    assert "depth 4 at 0.2 has no ratios: failed (unsupported: not on this chip)." in report.cannot
    assert any("failed" in line for line in surface_lines(report))


def test_depths_that_break_a_constraint_of_the_space_are_not_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path)  # max_num_batched_tokens 2048 holds 256 sequences of a depth up to 7
    made = plan(desk, depths=(7, 8))
    assert {made.name(cell) for cell in made.refused} == {"depth 8 at 0.2", "depth 8 at 0.8"}
    assert {made.name(one.cell) for one in made.runs} == {
        "no speculation",
        "depth 7 at 0.2",
        "depth 7 at 0.8",
    }


def test_the_cpu_engine_is_refused_before_anything_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.study = replace(desk.study, engine="vllm")
    desk.space = replace(desk.space, resources=desk.space.resources.model_copy(update={"gpus": 0}))
    with pytest.raises(Mistake, match="Synthetic acceptance not supported with CPU sampling") as told:
        plan(desk)
    assert "\n" not in str(told.value)
    assert not (desk.folder / "ablations").exists()


def test_a_gpu_is_not_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.study = replace(desk.study, engine="vllm")
    assert len(plan(desk).points) == 2 * 3


@pytest.mark.parametrize("config", [{**THREE, "speculation": "off"}])
def test_a_trial_without_speculation_is_refused(tmp_path: Path, config: Mapping[str, Scalar]) -> None:
    kept = {path: value for path, value in config.items() if path != "speculation.depth"}
    with pytest.raises(Mistake, match=r"does not speculate.*ablate a trial with a speculative_config"):
        plan(Desk(tmp_path, kept))


@pytest.mark.parametrize(
    ("own", "depths"), [(1, (1, 2)), (2, (1, 2, 4)), (3, (1, 2, 3)), (5, (1, 3, 5)), (8, (1, 4, 8))]
)
def test_default_depths(own: int, depths: tuple[int, ...]) -> None:
    assert default_depths(own) == depths
