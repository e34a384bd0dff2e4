"""Means and comparisons of cells, by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.order import Measured, Outcome
from objectives.effects import Effect
from objectives.factorial import Cell
from tests.tuner import loads
from tests.tuner.ablation.desks import Desk, P, Q, S, measured, refused
from tuner.ablation.plan import PlannedRun
from tuner.ablation.readings import NONE, Readings, effect_report
from tuner.ablation.report import CellReport, Report
from tuner.records import read_trials


def cell_of(seen: Report, name: str) -> CellReport:
    return next(cell for cell in seen.cells if cell.name == name)


def _positions(outcome: Measured, *shares: float) -> Measured:
    return replace(outcome, measurement=replace(outcome.measurement, accepted_per_position=shares))


def speculating(cell: Cell, run: PlannedRun) -> Outcome:
    """A step of 10 ms, 12.5 with speculation, which makes 2 tokens of it; the cache doubles the batch."""
    step, tokens = (0.0125, 2.0) if S in cell else (0.01, 1.0)
    outcome = measured(
        tpot_mean_s=step / tokens,
        accepted_tokens_per_target_step=tokens,
        batch_mean=4.0 * (2 if cell == {P} else 1),
        preemptions=float(run.block),
    )
    return _positions(outcome, 0.8 - 0.2 * run.block, 0.4) if S in cell else outcome


def test_a_cell_has_the_means_of_its_runs_and_their_ends(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(speculating)
    preempted = cell_of(seen, Q).metrics["preemptions"]
    assert (preempted.mean, preempted.least, preempted.most, preempted.runs) == (0.5, 0.0, 1.0, 2)
    assert cell_of(seen, "control").metrics["preemptions"].runs == 4
    assert cell_of(seen, S).accepted_per_position == pytest.approx((0.7, 0.4))
    assert cell_of(seen, Q).accepted_per_position is None


def test_a_steps_time_is_that_of_all_its_tokens(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(speculating)
    assert cell_of(seen, S).metrics["step_ms"].mean == pytest.approx(12.5)
    assert cell_of(seen, "control").metrics["step_ms"].mean == pytest.approx(10.0)


def test_drafting_takes_what_the_step_has_not_without_it_if_the_batches_are_alike(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(speculating)
    assert cell_of(seen, S).draft_share == pytest.approx(1 - 10 / 12.5)
    assert cell_of(seen, Q).draft_share is None  # it drafts nothing
    assert cell_of(seen, f"{P} + {S}").draft_share is None  # 4 in the batch against 8


def test_speculation_that_the_base_has_too_is_not_taken_for_drafting(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(speculating, factors=(Q, P))
    assert all(cell.draft_share is None for cell in seen.cells)


def shaken(cell: Cell, run: PlannedRun) -> Outcome:
    if cell == {Q, P}:
        return refused()
    log = 0.3 * (Q in cell) - 0.2 * (S in cell) + 0.1 * ({Q, S} <= cell) + 0.05 * run.block
    return measured(e2e_mean_s=math.exp(log + np.random.default_rng(run.number).normal(0, 0.02)))


def test_any_cell_may_be_compared_with_any_other(tmp_path: Path) -> None:
    """The same numbers whichever cell is held to be none on: quotients, and intervals that are inverses."""
    desk = Desk(tmp_path)
    desk.run(shaken)
    plan = desk.plan()
    readings = Readings.of(plan, read_trials(plan.folder))
    effects = readings.effects("e2e_mean_s")
    assert effects is not None
    ratios = {NONE: 1.0, **{cell: effect.ratio for cell, effect in effects.cells.items()}}
    by_base = {base: readings.against(base, "e2e_mean_s") for base in readings.measured}
    for base, cells in by_base.items():
        assert set(cells) == set(readings.measured) - {base}
        for cell, effect in cells.items():
            back = by_base[cell][base]
            assert effect.ratio == pytest.approx(ratios[cell] / ratios[base])
            assert effect.low is not None
            assert back.high is not None
            assert effect.low == pytest.approx(1 / back.high)
    company = effects.factors[Q].in_company
    every = frozenset(plan.names)
    assert company is not None
    assert company.low == pytest.approx(by_base[every - {Q}][every].low)


def test_a_cell_that_was_not_measured_is_compared_with_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.run(shaken)
    plan = desk.plan()
    assert Readings.of(plan, read_trials(plan.folder)).against(frozenset({Q, P}), "e2e_mean_s") == {}


def test_a_number_known_in_steps_has_intervals_that_cover_what_lies_between_them() -> None:
    """Two numbers rounded down to steps of 20 %, replicates that agree: their ratio as it was before."""
    rng = np.random.default_rng(2)
    step, covered, draws = math.log(1.2), 0, 1000
    for _ in range(draws):
        truth = rng.uniform(0, 10, 2)
        ratio = math.exp(step * float(np.diff(np.floor(truth / step))[0]))
        told = effect_report(Effect(ratio=ratio, low=ratio, high=ratio), step=step)
        assert told is not None
        assert told.low is not None
        assert told.high is not None
        covered += told.low <= math.exp(truth[1] - truth[0]) <= told.high
    assert 0.93 <= covered / draws <= 0.98


def test_steps_add_to_noise_in_quadrature() -> None:
    told = effect_report(Effect(ratio=2.0, low=2 / math.exp(0.3), high=2 * math.exp(0.3)), step=0.2, norm=3.0)
    assert told is not None
    half = math.sqrt(0.3**2 + (1.96 * 0.2 / math.sqrt(12) * 3) ** 2)
    assert told.high == pytest.approx(2 * math.exp(half))
    assert told.low == pytest.approx(2 / math.exp(half))


def test_a_capacity_that_replicates_agree_on_is_not_known_better_than_its_steps(tmp_path: Path) -> None:
    """A capacity of 12 between 12 and 12.6 requests/s, in every run of every cell."""
    seen = Desk(tmp_path, measure={"kind": "capacity"}).run(lambda cell, run: loads.measured())
    capacity = seen.outcomes[0]
    assert capacity.metric == "capacity_rps"
    alone = capacity.factors[0].isolated
    assert alone is not None
    assert alone.high == pytest.approx(1.05 ** (1.96 / math.sqrt(6)))
    assert not alone.told
    assert "Capacity is known in steps of 5%, which its intervals hold beside the noise." in seen.notes
