"""What holds of every search, whatever the sampler, the objectives, what fails, and when it is killed."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient

import tuner.study
from cluster.order import Cause, Failed, Measured, Order, Outcome, Ran
from objectives.goal import Goal, Objective
from objectives.measurement import Estimate, Measurement
from search_spaces.arguments import render, render_control
from search_spaces.space import Config
from tests.tuner import stories
from tests.tuner.dispatches import FakeDispatch
from tests.tuner.spaces import SMALL
from tuner.front import FrontView, read_view
from tuner.ledger import Ledger, Standing
from tuner.records import State, StoredTrial, read_trials
from tuner.remeasure import reserve
from tuner.sampler import SAMPLERS, Search, sampler_named
from tuner.study import Recorder, StudyPlan, search

GOALS = (
    ("goodput", "tpot_p95"),
    ("ttft_p95",),
    ("goodput_tokens",),
    ("tpot_p50", "slo_attainment", "e2e_p90"),
)
METRICS = (
    "goodput_rps",
    "tpot_p95_s",
    "ttft_p95_s",
    "goodput_tokens_per_s",
    "tpot_p50_s",
    "slo_attainment",
    "e2e_p90_s",
)


class Nowhere:
    """A recorder that keeps nothing."""

    def sync(self, study_folder: Path, view: FrontView, standing: Standing = "RUNNING") -> bool:
        return True


def _plan(folder: Path, objectives: Sequence[str], sampler: str, total: int) -> StudyPlan:
    def order(number: int, config: Config | None) -> Order:
        rendered = render_control(SMALL) if config is None else render(SMALL, config)
        return replace(stories.order(number), model=rendered.model, arguments=rendered.arguments)

    study = replace(stories.study_file(), objectives=tuple(objectives), sampler=sampler)
    return StudyPlan(
        folder=folder / "tea", study=study, space=SMALL, goal=Goal.of(objectives), total=total, order=order
    )


def _open(plan: StudyPlan, storage: str) -> Search:
    return Search.open(
        space=plan.space,
        goal=plan.goal,
        study=plan.study.name,
        storage=storage,
        recipe=sampler_named(plan.study.sampler),
        seed=plan.study.seed,
    )


# Few values, so that ties and equal trials come often.
_VALUES = st.sampled_from([0.01, 0.02, 0.03, 1.0, float("inf")])


@st.composite
def _outcomes(draw: st.DrawFn) -> Outcome:
    if draw(st.integers(0, 2)) == 0:
        return Failed(cause=draw(st.sampled_from(Cause)), reason="made up")
    there = {name: Estimate(value=draw(_VALUES)) for name in METRICS if draw(st.integers(0, 9))}
    measurement = Measurement(metrics=there, requests=1, failed_requests=0, duration_s=1.0)
    return Measured(measurement=measurement, records=(), samples=(), ran=Ran())


def _better(objective: Objective, one: float, other: float) -> bool:
    return one > other if objective.direction == "maximise" else one < other


def _dominated(goal: Goal, trial: StoredTrial, by: StoredTrial) -> bool:
    """By the definition, in the objectives' own directions."""
    pairs = [(o, _value(by, o), _value(trial, o)) for o in goal.objectives]
    return any(_better(o, a, b) for o, a, b in pairs) and not any(_better(o, b, a) for o, a, b in pairs)


def _value(trial: StoredTrial, objective: Objective) -> float:
    assert trial.measurement is not None
    return trial.measurement.metrics[objective.metric].value


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    objectives=st.sampled_from(GOALS),
    outcomes=st.lists(_outcomes(), min_size=26, max_size=26),
    at_once=st.integers(1, 3),
    last_first=st.booleans(),
)
def test_nothing_failed_is_preferred_nothing_invalid_is_asked_and_the_count_is_exact(
    sampler: str, objectives: tuple[str, ...], outcomes: list[Outcome], at_once: int, last_first: bool
) -> None:
    total = 10 if sampler == "gp" else 13
    with TemporaryDirectory() as name:
        plan = _plan(Path(name), objectives, sampler, total)
        answers = iter(outcomes)
        dispatch = FakeDispatch(lambda _: next(answers), gpus=at_once, last_first=last_first)
        for _ in search(plan, dispatch, _open(plan, "sqlite:///:memory:"), Nowhere()):
            pass
        seen = read_view(plan.folder)

    assert [trial.number for trial in seen.trials] == list(range(total))
    assert dispatch.most <= at_once

    firsts = {trial.number: trial for trial in seen.trials if trial.repeats is None}
    configs = [SMALL.config(trial.config) for trial in firsts.values() if trial.config is not None]
    assert len(set(configs)) == len(configs) == len(firsts) - 1
    assert not any(SMALL.faults(config) for config in configs)

    again = [trial for trial in seen.trials if trial.repeats is not None]
    assert all(trial.config == firsts[trial.repeats].config for trial in again if trial.repeats is not None)
    assert all(firsts[t.repeats].state is State.MEASURED for t in again if t.repeats is not None)
    assert len(again) <= reserve(total)
    if all(trial.state is State.MEASURED for trial in seen.trials):
        assert len(again) == reserve(total)

    assert all(
        (trial.state is State.MEASURED)
        == (
            trial.measurement is not None
            and all(
                o.metric in trial.measurement.metrics and _value(trial, o) < float("inf")
                for o in plan.goal.objectives
            )
        )
        for trial in seen.trials
    )
    judged = [trial for trial in seen.standing if trial.state is State.MEASURED]
    expected = [
        trial.number for trial in judged if not any(_dominated(plan.goal, trial, other) for other in judged)
    ]
    assert list(seen.numbers) == expected


_P = ParamSpec("_P")
_R = TypeVar("_R")


class Killed(BaseException):
    """Like SIGKILL: nothing that comes after runs, cleaning up included."""


class Fate:
    """Kills at the n-th step, and lets nothing happen from then on."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.steps = 0

    def step(self) -> None:
        if self.at is not None and self.steps >= self.at:
            raise Killed
        self.steps += 1

    def around(self, action: Callable[_P, _R]) -> Callable[_P, _R]:
        """The action, with a step before it and one after."""

        def fateful(*positional: _P.args, **named: _P.kwargs) -> _R:
            self.step()
            result = action(*positional, **named)
            self.step()
            return result

        return fateful


def _session(
    plan: StudyPlan, storage: str, recorder: Recorder, fate: Fate, *, at_once: int, patch: pytest.MonkeyPatch
) -> Search:
    """One process's search: every step of it can be its last."""
    dispatch = FakeDispatch(_answer, gpus=at_once)
    sampler = _open(plan, storage)
    for part, names in (
        (dispatch, ("submit", "next", "cancel")),
        (sampler, ("ask", "repeat", "tell", "add", "cancel")),
        (recorder, ("sync",)),
        (tuner.study, ("write_outcome", "write_study", "read_trials")),
    ):
        for name in names:
            patch.setattr(part, name, fate.around(getattr(part, name)))
    events = search(plan, dispatch, sampler, recorder)
    try:
        for _ in events:
            fate.step()
    finally:
        with contextlib.suppress(Killed):
            events.close()
    return sampler


def _answer(order: Order) -> Outcome:
    if order.number % 3 == 2:
        return stories.failed(Cause.OUT_OF_MEMORY, "no room")
    return stories.measured(1.0 + order.number, 0.04)


def _kill_then_resume(
    folder: Path, recorders: Callable[[], Recorder], at: int, *, at_once: int, total: int = 3
) -> bool:
    """Whether there was anything left to kill at that step."""
    plan = _plan(folder, ("goodput", "tpot_p95"), "random", total)
    storage = f"sqlite:///{folder}/study.db"
    killed = False
    with pytest.MonkeyPatch.context() as patch:
        try:
            _session(plan, storage, recorders(), Fate(at), at_once=at_once, patch=patch)
        except Killed:
            killed = True
    with pytest.MonkeyPatch.context() as patch:
        resumed = _session(plan, storage, recorders(), Fate(None), at_once=at_once, patch=patch)
    trials = read_trials(plan.folder)
    assert len(trials) == total
    firsts = {trial.number: trial for trial in trials if trial.repeats is None}
    configs = [trial.config for trial in firsts.values() if not trial.is_control]
    assert len({Config(config) for config in configs if config is not None}) == len(firsts) - 1
    again = [trial for trial in trials if trial.repeats is not None]
    assert len(again) == reserve(total)
    assert all(trial.config == firsts[trial.repeats].config for trial in again if trial.repeats is not None)
    assert resumed.running() == ()
    return killed


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_search_killed_at_any_step_ends_with_the_asked_number(tmp_path: Path, at_once: int) -> None:
    # One at a time is what two at once are when one has landed: every third step will do.
    at, stride = 0, 3 if at_once == 1 else 1
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        if not _kill_then_resume(folder, Nowhere, at, at_once=at_once):
            break
        at += stride
    # ask, submit, next, write_outcome and tell, before and after, for each of the 2 trials that are asked
    assert at > 2 * 10


def test_a_search_killed_at_any_step_of_a_repeat_makes_that_repeat_all_the_same(tmp_path: Path) -> None:
    whole = Fate(None)
    with pytest.MonkeyPatch.context() as patch:
        plan = _plan(tmp_path / "whole", ("goodput", "tpot_p95"), "random", 6)
        _session(plan, "sqlite:///:memory:", Nowhere(), whole, at_once=1, patch=patch)
    assert [trial.repeats for trial in read_trials(plan.folder)] == [None] * 5 + [4]
    # repeat, started, submit, sync, next, write_outcome and tell, finished, front moved, before and after
    for at in range(whole.steps - 18, whole.steps, 2):
        folder = tmp_path / str(at)
        folder.mkdir()
        assert _kill_then_resume(folder, Nowhere, at, at_once=1, total=6)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
@pytest.mark.parametrize("at", [9, 20, 33])
def test_a_killed_and_resumed_study_has_one_run_a_trial_in_mlflow(
    tmp_path: Path, new_mlflow: Callable[[], str], at: int
) -> None:
    uri = new_mlflow()
    said: list[str] = []
    assert _kill_then_resume(
        tmp_path, lambda: Ledger(uri, artifacts=tmp_path / "artifacts", say=said.append), at, at_once=2
    )
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    trials = [run.data.tags["trial"] for run in runs if "trial" in run.data.tags]
    assert sorted(map(int, trials)) == [trial.number for trial in read_trials(tmp_path / "tea")]
    assert len(runs) == len(trials) + 1
    assert {run.info.status for run in runs} <= {"FINISHED", "FAILED"}
    assert said == []
