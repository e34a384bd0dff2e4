"""The measuring: on disk run by run, gone on with after a kill, nothing twice, failures as results."""

import json
from collections import Counter
from pathlib import Path

import pytest

from cluster.order import Cause, Outcome
from objectives.factorial import Cell
from tests.tuner.ablation.desks import Desk, P, Q, S, measured, refused
from tuner.ablation.plan import DESIGN, PlannedRun
from tuner.ablation.run import RunFinished, RunRetried, RunStarted, expected_s, to_do
from tuner.records import read_trials
from tuner.study import StudyError, locked

NONE = frozenset[str]()


def fine(cell: Cell, run: PlannedRun) -> Outcome:
    return measured(ttft_mean_s=1.0 + 0.1 * len(cell))


def test_the_design_is_on_disk_before_anything_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    plan = desk.plan()

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        assert json.loads((plan.folder / DESIGN).read_text())["trial"] == 4
        return fine(cell, run)

    list(desk.events(plan, answer))
    assert len(read_trials(plan.folder)) == 18


def test_runs_go_out_one_at_a_time_in_the_drawn_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.run(fine)
    assert desk.submitted == list(range(18))
    assert desk.dispatch is not None
    assert desk.dispatch.most == 1


def test_every_order_is_the_studys_own_but_for_its_cell(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    plan = desk.plan()
    list(desk.events(plan, fine))
    assert desk.dispatch is not None
    for order, run in zip(desk.dispatch.submitted, plan.runs, strict=True):
        assert order.arguments == plan.settings(run.cell).arguments
        assert order.workload == desk._order(0).workload
        assert (order.slo, order.load) == (desk.study.slo, desk._order(0).load)
        assert order.gpus == 1


@pytest.mark.parametrize("after", [0, 1, 7, 17])
def test_stopped_anywhere_it_goes_on_and_measures_nothing_twice(tmp_path: Path, after: int) -> None:
    desk = Desk(tmp_path)
    plan = desk.plan()
    events = desk.events(plan, fine)
    landed = 0
    for event in events:
        landed += isinstance(event, RunFinished)
        if isinstance(event, RunStarted) and landed == after:
            break
    events.close()  # type: ignore[attr-defined]
    assert desk.dispatch is not None
    assert desk.dispatch.cancelled
    first = desk.submitted[:after]
    assert [trial.number for trial in read_trials(plan.folder)] == first
    list(desk.events(plan, fine))
    assert first + desk.submitted == list(range(18))
    list(desk.events(plan, fine))
    assert desk.submitted == []


def test_a_cell_that_is_refused_is_not_asked_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return refused() if Q in cell else fine(cell, run)

    seen = desk.run(answer)
    plan = desk.plan()
    ran = Counter(plan.name(plan.runs[number].cell) for number in desk.submitted)
    assert ran[Q] == ran["all"] == 1
    assert ran[P] == ran[f"{P} + {S}"] == 2
    assert ran["control"] == 4
    assert (seen.progress.done, seen.progress.planned, seen.progress.failed) == (14, 14, 4)


def test_a_cell_that_was_measured_once_is_asked_again_after_a_failure(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return refused(Cause.DIED_UNDER_LOAD) if cell == {P} and run.block == 1 else fine(cell, run)

    desk.run(answer, replicates=3)
    cells = [desk.plan().runs[number].cell for number in desk.submitted]
    assert cells.count(frozenset({P})) == 3


def test_without_the_control_nothing_more_is_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    seen = desk.run(lambda cell, run: refused(Cause.OUT_OF_MEMORY, "no room"))
    assert desk.submitted == [0]
    assert any("Without the control no effect can be told" in text for text in seen.cannot)
    assert seen.outcomes == ()
    assert {drop.verdict for drop in seen.drops} == {"cannot tell"}


def test_what_says_nothing_about_a_cell_is_run_once_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    tries: Counter[int] = Counter()

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        tries[run.number] += 1
        if run.number == 3 or (run.number == 5 and tries[5] == 1):
            return refused(Cause.LOST_NODE, "gone")
        return fine(cell, run)

    desk.run(answer)
    assert (tries[3], tries[5], tries[4]) == (2, 2, 1)
    stored = {trial.number: trial for trial in read_trials(desk.plan().folder)}
    assert stored[3].cause is Cause.LOST_NODE
    assert (stored[5].measurement is not None, stored[5].attempts) == (True, 2)
    assert sum(isinstance(event, RunRetried) for event in desk.said) == 2
    assert to_do(desk.plan(), list(stored.values())) == ()


def test_progress_counts_down(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert expected_s(desk.trials) == 60.0  # of the study's own trials
    desk.run(fine)
    started = [event for event in desk.said if isinstance(event, RunStarted)]
    assert [event.far.done for event in started] == list(range(18))
    assert [event.far.eta_s for event in started] == [60.0 * left for left in range(18, 0, -1)]
    finished = [event for event in desk.said if isinstance(event, RunFinished)]
    assert finished[-1].far.eta_s == 0


def test_a_study_that_is_searched_is_not_ablated_meanwhile(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with locked(desk.folder), pytest.raises(StudyError):
        desk.run(fine)


def test_what_was_measured_is_recorded_while_the_next_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.run(fine)
    assert desk.recorded == [*range(18), 18]
