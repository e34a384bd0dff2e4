"""A search on a made-up real engine: which trials are asked, and what the answers do to the front."""

import json
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cluster.order import Cause, Measured, Order, Outcome, Probe
from objectives.answers import Answer, Answers, Scored, Tokens, Unanswered
from objectives.goal import Goal
from search_spaces.parameters import Categorical
from search_spaces.space import Quality, Space
from tests.tuner import stories
from tests.tuner.dispatches import FakeDispatch
from tests.tuner.spaces import SEQUENCES, SPECULATION
from tests.tuner.test_study import GOAL, Desk
from tuner.front import FrontView, front_json, read_view
from tuner.quality import ANSWERS, QUALITY, read_answers, read_checks, read_verdict
from tuner.quality_guard import artefact_of
from tuner.records import RecordError, read_trials, trial_folder
from tuner.sampler import Search, sampler_named
from tuner.study import Done, Event, StudyPlan, search
from tuner.study import Finished as Landed

KV = Categorical(
    path="kv_cache_dtype", key="kv_cache_dtype", choices=("auto", "fp8"), argument="kv_cache_dtype"
)
SPACE = Space(
    name="small",
    source="small.yaml",
    model="some/model",
    parameters=(KV, SPECULATION, SEQUENCES),
    quality=Quality(prompts=10, tokens=3),
)
PROMPTS: tuple[Tokens, ...] = tuple((number, 7) for number in range(10))


class GuardedDesk(Desk):
    """A study whose trials are asked."""

    def __init__(self, folder: Path, *, space: Space = SPACE) -> None:
        super().__init__(folder, space=space)
        self.study = replace(self.study, engine="vllm", options={"quality": {}})
        self.goal = GOAL

    def plan(self, total: int) -> StudyPlan:
        return replace(super().plan(total), prompts=PROMPTS, goal=self.goal)

    def open(self) -> Search:
        return Search.open(
            space=self.space,
            goal=self.goal,
            study=self.study.name,
            storage=f"sqlite:///{self.folder.parent}/study.db",
            recipe=sampler_named("random"),
            seed=0,
        )

    def events(self, total: int, dispatch: FakeDispatch) -> Generator[Event, None, None]:
        return search(self.plan(total), dispatch, self.open(), self.journal)


@pytest.fixture
def desk(tmp_path: Path) -> GuardedDesk:
    return GuardedDesk(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> "Finished":
    """A search of twelve trials, one after the other."""
    desk, dispatch = GuardedDesk(tmp_path_factory.mktemp("finished")), FakeDispatch(served)
    *_, done = desk.events(12, dispatch)
    assert isinstance(done, Done)
    return Finished(desk=desk, dispatch=dispatch, done=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    desk: GuardedDesk
    dispatch: FakeDispatch
    done: Done


def replies(probe: Probe, *, worse: float = 0.0) -> Answers:
    """Three times the prompt's first token; `worse` nats less likely each."""

    def scored(token: int) -> Scored:
        return Scored(token=token, logprob=-0.1 - worse, top=((token, -0.1 - worse), (90, -9.0)))

    found = []
    for place, prompt in enumerate(probe.prompts):
        greedy = (prompt[0],) * probe.tokens
        given = greedy if probe.continuations is None else probe.continuations[place]
        found.append(
            Answer(
                greedy=greedy,
                own=tuple(map(scored, greedy)),
                again=greedy,
                apart=greedy if probe.continuations is None else None,
                forced=tuple(map(scored, given)),
            )
        )
    return Answers(answers=tuple(found))


def served(order: Order) -> Measured:
    """fp8 is twice as fast, and answers worse than it may."""
    fp8 = order.arguments.get("kv_cache_dtype") == "fp8"
    outcome = stories.measured(2.0 if fp8 else 1.0 + order.number / 1000, 0.02 if fp8 else 0.04)
    ran = replace(outcome.ran, effective={}, engine="vllm")
    answers = None if order.probe is None else replies(order.probe, worse=0.05 if fp8 else 0.0)
    return replace(outcome, ran=ran, answers=answers)


def asked(dispatch: FakeDispatch) -> list[Order]:
    return [order for order in dispatch.submitted if order.probe is not None]


def seen(desk: Desk) -> FrontView:
    return read_view(desk.folder)


def test_each_artefact_is_asked_once_whatever_its_batch_limits(finished: Finished) -> None:
    of = Counter(artefact_of(order).fingerprint for order in finished.dispatch.submitted)
    once = Counter(artefact_of(order).fingerprint for order in asked(finished.dispatch))
    assert set(once.values()) == {1}
    assert once.keys() == of.keys()
    assert sum(of.values()) == 12 > len(once)
    folder = finished.desk.folder
    assert all(read_verdict(folder, trial) is not None for trial in read_trials(folder))


def test_the_control_is_the_reference_and_the_others_read_its_words(finished: Finished) -> None:
    first, *rest = [order.probe for order in asked(finished.dispatch)]
    assert first == Probe(prompts=PROMPTS, tokens=3)
    assert rest
    for probe in rest:
        assert probe == Probe(
            prompts=PROMPTS, tokens=3, continuations=tuple((number,) * 3 for number in range(10))
        )
    checks = read_checks(finished.desk.folder)
    assert checks.reference == read_trials(finished.desk.folder)[0].artefact


def test_what_answers_worse_is_kept_off_the_front_and_dominates_nothing(finished: Finished) -> None:
    view = seen(finished.desk)
    fast = {t.number for t in view.standing if t.arguments.get("kv_cache_dtype") == "fp8"}
    assert fast
    assert not fast & set(view.numbers)
    assert view.recommended is not None
    assert view.recommended.number not in fast
    assert {trial.number for trial in view.refused} == fast
    told = front_json(view)["refused"]
    assert isinstance(told, list)
    assert isinstance(told[0], dict)
    quality = told[0]["quality"]
    assert isinstance(quality, dict)
    assert quality["state"] == "failed"
    assert json.loads(json.dumps(told)) == told


def test_the_sampler_is_told_by_how_much_a_limit_was_missed(finished: Finished) -> None:
    told = {t.number: t.constraints for t in finished.desk.open()._trials()}
    for trial in read_trials(finished.desk.folder):
        missed = told[trial.number]["quality"]
        if trial.arguments.get("kv_cache_dtype") == "fp8":
            assert missed == pytest.approx(0.05 / 0.02 - 1)
        else:
            assert missed <= 0


def test_two_trials_of_one_artefact_at_once_ask_it_once(desk: GuardedDesk) -> None:
    dispatch = FakeDispatch(served, gpus=4, last_first=True)
    list(desk.events(8, dispatch))
    once = Counter(artefact_of(order).fingerprint for order in asked(dispatch))
    assert set(once.values()) == {1}


def test_a_probe_that_failed_loses_no_number_and_is_tried_again_by_the_next_trial(tmp_path: Path) -> None:
    desk = GuardedDesk(tmp_path, space=replace(SPACE, parameters=(KV, SEQUENCES)))
    silent: list[int] = []

    def answer(order: Order) -> Outcome:
        outcome = served(order)
        if order.probe is not None and order.number and not silent:
            silent.append(order.number)
            return replace(outcome, answers=Unanswered(reason="HTTP 500: no"))
        return outcome

    for event in desk.events(9, FakeDispatch(answer)):
        if isinstance(event, Landed) and silent:
            break
    (number,) = silent
    view = seen(desk)
    trial = view.trials[number]
    assert trial.measurement is not None
    assert read_verdict(desk.folder, trial) is None
    assert view.quality_text(trial) == "quality not checked: HTTP 500: no"
    assert number not in view.numbers
    list(desk.events(9, FakeDispatch(answer)))
    assert read_verdict(desk.folder, trial) is not None
    assert not read_checks(desk.folder).unchecked


def test_where_the_control_fails_the_next_that_serves_the_same_is_the_reference(desk: GuardedDesk) -> None:
    def answer(order: Order) -> Outcome:
        return stories.failed(Cause.OUT_OF_MEMORY) if order.number == 0 else served(order)

    dispatch = FakeDispatch(answer)
    list(desk.events(8, dispatch))
    first = asked(dispatch)[1]
    assert first.probe is not None
    assert first.probe.continuations is None
    assert first.arguments.get("kv_cache_dtype") != "fp8"
    assert "speculative_config" not in first.arguments
    assert read_checks(desk.folder).reference == artefact_of(first).fingerprint


def test_without_a_reference_nothing_is_checked_and_nothing_recommended(desk: GuardedDesk) -> None:
    def answer(order: Order) -> Outcome:
        return replace(served(order), answers=Unanswered(reason="no words"))

    *before, done = desk.events(4, FakeDispatch(answer))
    assert isinstance(done, Done)
    assert {event.untrusted for event in before if isinstance(event, Landed)} == {
        "quality not checked: no words",
        "quality not checked: there is no reference to compare it with",
    }
    assert done.view.recommended is None
    assert not done.view.front
    assert len(done.view.refused) == 4


def test_a_killed_search_loses_no_verdict_and_asks_nothing_twice(desk: GuardedDesk) -> None:
    dispatch = FakeDispatch(served)
    events = desk.events(8, dispatch)
    for event in events:
        if getattr(event, "number", None) == 3:
            break
    events.close()
    known = read_checks(desk.folder).verdicts
    again = FakeDispatch(served)
    list(desk.events(8, again))
    resumed = {artefact_of(order).fingerprint for order in asked(again)}
    assert known
    assert not resumed & known.keys()
    after = read_checks(desk.folder).verdicts
    assert {name: after[name] for name in known} == known


def test_verdicts_read_back_as_they_were_and_answers_too(finished: Finished) -> None:
    folder = finished.desk.folder
    assert read_checks(folder).verdicts == finished.done.view.checks.verdicts
    probe, answers = read_answers(trial_folder(folder, 0))
    assert probe == Probe(prompts=PROMPTS, tokens=3)
    assert answers == replies(probe)


def test_a_damaged_file_is_told_with_its_place(desk: GuardedDesk) -> None:
    list(desk.events(1, FakeDispatch(served)))
    folder = trial_folder(desk.folder, 0)
    (folder / QUALITY).write_bytes(b"{half")
    (folder / ANSWERS).write_bytes(b"{half")
    with pytest.raises(RecordError, match=rf"0000/{QUALITY}: cannot be read"):
        read_checks(desk.folder)
    with pytest.raises(RecordError, match=rf"0000/{ANSWERS}: cannot be read"):
        read_answers(folder)


def test_a_study_whose_engine_is_simulated_asks_nothing(tmp_path: Path) -> None:
    dispatch = FakeDispatch(served)
    list(Desk(tmp_path, space=SPACE).events(4, dispatch))
    assert not asked(dispatch)


def test_a_real_study_of_before_quality_was_asked_still_shows_its_front(tmp_path: Path) -> None:
    desk = Desk(tmp_path, space=SPACE)
    desk.study = replace(desk.study, engine="vllm")
    list(desk.events(4, FakeDispatch(served)))
    view = seen(desk)
    assert view.front
    assert view.recommended is None
    assert view.quality_text(view.front[0]) == (
        "quality not checked: there is no reference to compare it with"
    )


def test_quality_may_be_an_objective_and_every_trial_of_an_artefact_has_it(tmp_path: Path) -> None:
    desk = GuardedDesk(tmp_path, space=replace(SPACE, parameters=(KV, SEQUENCES)))
    desk.goal = Goal.of(["goodput", "nll_increase"])
    desk.study = replace(desk.study, objectives=desk.goal.names)
    list(desk.events(6, FakeDispatch(served)))
    for trial in seen(desk).trials:
        fp8 = trial.arguments.get("kv_cache_dtype") == "fp8"
        assert trial.measurement is not None
        assert trial.measurement.value("nll_increase") == pytest.approx(0.05 if fp8 else 0.0)


def test_answers_that_cannot_be_judged_lose_no_measurement(desk: GuardedDesk) -> None:
    def answer(order: Order) -> Outcome:
        outcome = served(order)
        assert isinstance(outcome.answers, Answers)
        return replace(outcome, answers=Answers(answers=outcome.answers.answers[:0]))

    list(desk.events(1, FakeDispatch(answer)))
    (trial,) = read_trials(desk.folder)
    assert trial.measurement is not None
    assert read_checks(desk.folder).unchecked.keys() == {trial.artefact}
