"""A search on several nodes: the control on each, what drifts, what is lost, and what may not be compared."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.node.facts import NodeFacts
from cluster.order import Cause, Order, Outcome, Ran
from tests.tuner import stories
from tests.tuner.dispatches import Answer, FakeCluster
from tests.tuner.spaces import TINY
from tests.tuner.test_study import Desk, _ticking
from tests.tuner.test_study_repeats import answered, worth
from tuner.front import read_view, view
from tuner.node_controls import EVERY, NodeState, doubtful, standings
from tuner.places import misfit
from tuner.records import State, StoredTrial, read_trials
from tuner.study import Event, Noted, Retried, StudyError, search

IN_MEMORY = "sqlite:///:memory:"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, storage=IN_MEMORY)


def steady(order: Order) -> Outcome:
    return answered(worth(order.arguments), 0.01)


def drifting(node: str, after: int, factor: float = 0.5) -> Answer:
    """All nodes are alike, but from its `after`-th trial on this one shows so much of what it should."""
    done: Counter[str | None] = Counter()

    def answer(order: Order) -> Outcome:
        done[order.node] += 1
        slow = order.node == node and done[node] > after
        return answered(worth(order.arguments) * (factor if slow else 1.0), 0.01)

    return answer


def on(trials: tuple[StoredTrial, ...], node: str) -> list[StoredTrial]:
    return [trial for trial in trials if trial.ran.node == node]


def test_the_first_trial_of_every_node_is_the_control_and_runs_alone_there(desk: Desk) -> None:
    cluster = FakeCluster(steady, {"a": 2, "b": 2, "c": 2})
    events = list(desk.events(30, cluster))
    trials = read_trials(desk.folder)
    assert len(trials) == 30
    for node in "abc":
        sent = [order.number for order in cluster.submitted if order.node == node]
        first = next(trial for trial in trials if trial.number == sent[0])
        assert first.is_control
    assert cluster.most_on == {"a": 2, "b": 2, "c": 2}
    assert [trial.repeats for trial in trials if trial.is_control][:3] == [None, 0, 0]
    assert not [event for event in events if isinstance(event, Noted)]


def test_the_control_is_due_again_after_so_many_trials_for_each_that_runs_at_once(desk: Desk) -> None:
    list(desk.events(20 + EVERY, FakeCluster(steady, {"a": 1, "b": 1})))
    trials = read_trials(desk.folder)
    for node in "ab":
        between = 0
        for trial in sorted(on(trials, node), key=lambda trial: trial.started):
            between = 0 if trial.is_control else between + 1
            assert between <= EVERY


def test_on_one_node_that_has_a_name_nothing_more_is_measured_than_without(tmp_path: Path) -> None:
    told = []
    for name, rooms in (("named", {"a": 1}), ("nameless", {})):
        (tmp_path / name).mkdir()
        desk = Desk(tmp_path / name, storage=IN_MEMORY)
        if rooms:
            list(desk.events(20, FakeCluster(steady, rooms)))
        else:
            desk.search(20, steady)
        told.append([(trial.number, trial.config, trial.repeats) for trial in read_trials(desk.folder)])
    assert told[0] == told[1]


def test_controls_of_nodes_do_not_take_from_what_is_kept_to_measure_the_best_again(desk: Desk) -> None:
    list(desk.events(30, FakeCluster(steady, {"a": 1, "b": 1, "c": 1})))
    seen = read_view(desk.folder)
    again = [trial.repeats for trial in seen.trials if trial.repeats not in (None, 0)]
    assert len(again) == 3  # the tenth of 30
    assert seen.recommended is not None
    assert len(seen.promise(seen.recommended.number).fresh) == 2


def test_a_node_that_drifts_is_set_aside_and_what_it_measured_since_is_measured_elsewhere(desk: Desk) -> None:
    cluster = FakeCluster(drifting("b", 4), {"a": 1, "b": 1})
    events = list(desk.events(44, cluster))
    trials = read_trials(desk.folder)
    by_number = {trial.number: trial for trial in trials}
    assert standings(trials, desk.plan(44).goal)["b"].state is NodeState.ASIDE
    doubted = doubtful(trials, desk.plan(44).goal)
    lost = [number for number in doubted if not by_number[number].is_control]
    assert len(lost) == EVERY  # all since its first control, which was good
    for number in lost:
        again = [trial for trial in trials if trial.repeats == number]
        assert [trial.ran.node for trial in again] == ["a"]
        assert again[0].config == by_number[number].config
    seen = read_view(desk.folder)
    assert not doubted & set(seen.numbers)
    # Whatever is promised was measured where nothing drifted.
    for promise in seen.promises:
        assert promise.first.number not in doubted
    # Asked for by its old number, a config answers with what was measured in its place.
    assert seen.promise(lost[0]).first.repeats == lost[0]
    half = view(seen.study, [trial for trial in trials if trial.repeats not in lost])
    assert half.promise(lost[0]).standing.state is State.UNSCORED
    last = max(trial.started for trial in on(trials, "b"))
    assert sum(trial.started > last for trial in trials) > EVERY
    told = [event.text for event in events if isinstance(event, Noted)]
    assert len(told) == 1
    assert "node b is set aside, its control (trial" in told[0]
    assert "0.50 times the goodput" in told[0]


def test_a_slower_node_measures_two_controls_and_nothing_else(desk: Desk) -> None:
    list(desk.events(20, FakeCluster(drifting("b", 0), {"a": 1, "b": 1})))
    there = on(read_trials(desk.folder), "b")
    assert [trial.is_control for trial in there] == [True, True]


def test_a_search_that_is_resumed_goes_on_from_the_same_standings(tmp_path: Path) -> None:
    desk, answer, now = Desk(tmp_path), drifting("b", 4), _ticking()
    sent = []
    for total in (8, 34, 38):
        cluster = FakeCluster(answer, {"a": 1, "b": 1})
        list(search(desk.plan(total), cluster, desk.open(), desk.journal, now=now))
        sent.append([order.node for order in cluster.submitted])
    trials = read_trials(desk.folder)
    assert len(trials) == 38
    assert standings(trials, desk.plan(38).goal)["b"].state is NodeState.ASIDE
    bad = doubtful(trials, desk.plan(38).goal) & {trial.number for trial in trials if trial.is_control}
    assert len(bad) == 2  # none is measured again for having stopped
    assert sent[0][:2] == ["a", "b"]
    assert "b" in sent[1]
    assert set(sent[2]) == {"a"}


def test_a_spent_space_is_measured_again_on_nodes_whose_control_is_due(tmp_path: Path) -> None:
    desk = Desk(tmp_path, space=TINY, storage=IN_MEMORY)
    list(desk.events(60, FakeCluster(steady, {"a": 1, "b": 1})))
    seen = read_view(desk.folder)
    assert len(seen.promises) == 15  # every config of the space, and the control
    assert seen.recommended is not None
    assert len(seen.promise(seen.recommended.number).fresh) >= 2


def test_a_small_search_spends_no_trial_on_a_second_node(desk: Desk) -> None:
    list(desk.events(4, FakeCluster(steady, {"a": 1, "b": 1})))
    assert {trial.ran.node for trial in read_trials(desk.folder)} == {"a"}


def _losing(nodes: set[str], number: int) -> Answer:
    def answer(order: Order) -> Outcome:
        if order.number == number and order.node in nodes:
            return stories.failed(Cause.LOST_NODE, f"{order.node} died")
        return steady(order)

    return answer


def test_a_trial_whose_node_is_lost_runs_again_on_another(desk: Desk) -> None:
    cluster = FakeCluster(_losing({"a"}, 2), {"a": 1, "b": 1})
    events = list(desk.events(8, cluster))
    # Trial 1 is the control of node b.
    assert [order.node for order in cluster.submitted if order.number == 2] == ["a", "b"]
    trial = read_trials(desk.folder)[2]
    assert (trial.state, trial.attempts, trial.ran.node) == (State.MEASURED, 2, "b")
    assert [event.number for event in events if isinstance(event, Retried)] == [2]


def test_a_config_that_two_nodes_were_lost_with_is_at_fault(desk: Desk) -> None:
    list(desk.events(8, FakeCluster(_losing({"a", "b"}, 2), {"a": 1, "b": 1})))
    trial = read_trials(desk.folder)[2]
    assert (trial.cause, trial.attempts) == (Cause.LOST_TWICE, 2)
    assert trial.reason is not None
    assert "two nodes in a row were lost with it" in trial.reason


def test_a_trial_that_two_nodes_were_gone_for_before_it_began_is_run_on_the_third(desk: Desk) -> None:
    def answer(order: Order) -> Outcome:
        if order.number == 3 and order.node in tried:
            tried.remove(order.node)
            return replace(stories.failed(Cause.LOST_NODE, "gone"), begun=False)
        return steady(order)

    tried = {"a", "b", "c"}
    cluster = FakeCluster(answer, dict.fromkeys("abcd", 1))
    list(desk.events(14, cluster))
    (sent,) = {order.number: order for order in cluster.submitted if order.number == 3}.values()
    assert len([order for order in cluster.submitted if order.number == 3]) == 4 - len(tried)
    trial = read_trials(desk.folder)[3]
    assert (trial.state, trial.attempts, trial.ran.node) == (State.MEASURED, 1, sent.node)


def test_a_node_that_dies_in_its_control_is_not_waited_for_and_nothing_blames_the_control(desk: Desk) -> None:
    def answer(order: Order) -> Outcome:
        if order.node == "b":
            cluster.rooms.pop("b", None)
            return stories.failed(Cause.LOST_NODE, "b died")
        return steady(order)

    cluster = FakeCluster(answer, {"a": 1, "b": 1})
    list(desk.events(12, cluster))
    trials = read_trials(desk.folder)
    assert [trial.cause for trial in on(trials, "b")] == [Cause.LOST_NODE]
    seen = read_view(desk.folder)
    assert seen.promise(0).standing.state is State.MEASURED
    assert len(trials) == 12


def test_a_trial_whose_node_was_the_last_waits_for_the_control_of_one_that_came(desk: Desk) -> None:
    def answer(order: Order) -> Outcome:
        if order.number == 2 and order.node == "a":
            cluster.rooms.clear()
            cluster.rooms["b"] = 1
            return stories.failed(Cause.LOST_NODE, "a died")
        return steady(order)

    cluster = FakeCluster(answer, {"a": 1})
    list(desk.events(12, cluster))
    trials = read_trials(desk.folder)
    sent = [order.number for order in cluster.submitted if order.node == "b"]
    assert trials[sent[0]].is_control
    assert sent[1] == 2
    assert (trials[2].state, trials[2].ran.node) == (State.MEASURED, "b")
    assert len(trials) == 12


def test_where_no_node_is_left_the_search_ends_with_why_and_can_go_on(desk: Desk) -> None:
    def answer(order: Order) -> Outcome:
        if order.number == 2:
            cluster.rooms.clear()
            return stories.failed(Cause.LOST_NODE, "a died")
        return steady(order)

    cluster = FakeCluster(answer, {"a": 1})
    with pytest.raises(StudyError, match="no node"):
        list(desk.events(6, cluster))
    assert len(read_trials(desk.folder)) == 2


def facts(name: str, *, vllm: str | None = "0.32.0", hardware: str = "a CPU, 4 cores") -> NodeFacts:
    return NodeFacts(
        name=name, hardware=hardware, memory_bytes=2**30, python="3.12.3", ray="2.60.0", vllm=vllm
    )


def _real(desk: Desk, total: int, cluster: FakeCluster) -> list[Event]:
    plan = replace(desk.plan(total), study=replace(desk.study, engine="vllm"))
    return list(search(plan, cluster, desk.open(), desk.journal))


def _ran(hardware: str, version: str) -> Callable[[Order], Outcome]:
    def answer(order: Order) -> Outcome:
        outcome = steady(order)
        ran = replace(outcome.ran, engine="vllm", hardware=hardware, version=version, effective={})
        return replace(outcome, ran=ran)

    return answer


def test_nodes_with_other_hardware_or_another_vllm_than_most_are_not_used(desk: Desk) -> None:
    has = (
        facts("a", hardware="a small CPU, 2 cores"),
        facts("b"),
        facts("c"),
        facts("d", vllm="0.31.0"),
    )
    cluster = FakeCluster(_ran("a CPU, 4 cores", "0.32.0+cpu"), dict.fromkeys("abcde", 1), facts=has)
    told = {event.text for event in _real(desk, 12, cluster) if isinstance(event, Noted)}
    assert {order.node for order in cluster.submitted} == {"b", "c"}
    assert len(told) >= 2
    assert any("node a has a small CPU, 2 cores" in text for text in told)
    assert any("node d has vLLM 0.31.0" in text for text in told)
    assert "node e did not say what it has: it is not used" in told


def test_a_study_is_not_resumed_with_another_vllm(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    _real(desk, 3, FakeCluster(_ran("a CPU, 4 cores", "0.32.0"), {"a": 1}, facts=(facts("a"),)))
    newer = FakeCluster(_ran("a CPU, 4 cores", "0.33.0"), {"a": 1}, facts=(facts("a", vllm="0.33.0"),))
    with pytest.raises(StudyError, match=r"node a has vLLM 0\.33\.0, and the study is measured with .*0\.32"):
        _real(desk, 6, newer)
    assert newer.submitted == []


_OTHER = "has a CPU, 4 cores, and the study is measured on NVIDIA L4"


@pytest.mark.parametrize(
    ("ran", "told"),
    [
        (Ran(hardware="2 × NVIDIA L4", version="0.32.0"), _OTHER),
        (Ran(hardware="a CPU, 4 cores", version="0.32.0+cpu"), None),
        (Ran(), None),
    ],
)
def test_a_node_fits_what_a_study_was_measured_on(ran: Ran, told: str | None) -> None:
    assert misfit(facts("a"), ran) == told
