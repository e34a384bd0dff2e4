"""What the controls say of the nodes that a study runs on: which to use, and which trials to believe. Pure.

The control is measured first on every node, alone there, and again after every `EVERY` trials for each that
runs there at once. It is held against the good controls before it: the node's own, or for its first one those
of all nodes. One that is out of their noise is measured once more; where that is out as well, the node is set
aside for good, and what it measured since its last good control is not believed: on no front, and measured
again elsewhere.

All is read off the finished trials, so a study that is resumed decides as one that was not stopped. Where all
trials ran on one node there is nothing to tell apart, and no node is set aside.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import t as student

from objectives.goal import Goal, MissingObjective
from objectives.measurement import Estimate
from objectives.statistics import CONFIDENCE
from tuner.records import State, StoredTrial

EVERY = 10
"""Trials after which a node's control is due again, times what it runs at once: a tenth of its time at most
goes to controls, and at most so many rounds of trials are lost to a drift."""
WORTH = 2
"""Trials that must be left for each node in use, so that a new one is worth its control."""
FLOOR = 0.05
"""A control this near to what is expected, relatively, is no drift, however narrow its intervals."""

_TRIES = 2
"""Controls in a row that must be out of their noise. By 95 % intervals one in twenty is, by chance."""


class NodeState(StrEnum):
    """What is known of a node."""

    GOOD = "good"
    SUSPECT = "suspect"
    """Its last control was out of its noise, and is to be measured once more."""
    ASIDE = "set aside"


@dataclass(slots=True, kw_only=True)
class _History:
    state: NodeState = NodeState.SUSPECT
    bad: int = 0
    since: int = 0
    last: list[int]
    controls: list[int]
    reason: str | None = None
    good: list[tuple[Estimate, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """A node as its trials show it."""

    state: NodeState
    since: int
    """Trials that it has measured since its last good control."""
    reason: str | None = None
    """Why it is not good."""
    doubtful: tuple[int, ...] = ()
    """Numbers of the trials that are not believed, of a node that is set aside: its last controls too."""


def standings(trials: Iterable[StoredTrial], goal: Goal) -> dict[str, NodeStanding]:
    """Every node that trials of the study ran on, by name.

    Trials count in the order they were sent out. Where the study's first control was not measured nothing
    can be told, and every node is good.
    """
    found_trials = tuple(trials)
    nodes = {trial.ran.node for trial in found_trials if trial.ran.node is not None}
    known = any(trial.is_control and _scored(trial, goal) for trial in found_trials)
    if len(nodes) < 2 or not known:
        return {node: NodeStanding(state=NodeState.GOOD, since=0) for node in sorted(nodes)}
    found = {node: _History(last=[], controls=[], good=[]) for node in sorted(nodes)}
    for trial in sorted(found_trials, key=lambda trial: (trial.started, trial.number)):
        if trial.ran.node is not None:
            _take_in(found, trial, goal)
    return {
        node: NodeStanding(
            state=history.state,
            since=history.since,
            reason=history.reason,
            doubtful=(*history.last, *history.controls) if history.state is NodeState.ASIDE else (),
        )
        for node, history in found.items()
    }


def doubtful(trials: Iterable[StoredTrial], goal: Goal) -> frozenset[int]:
    """Numbers of trials that are not believed: measured by a node that had drifted by then."""
    return frozenset(number for one in standings(trials, goal).values() for number in one.doubtful)


def owed_elsewhere(
    trials: Mapping[int, StoredTrial], doubted: frozenset[int], under_way: Iterable[int | None]
) -> tuple[int, ...]:
    """Doubtful trials whose config nothing has measured again yet, by number.

    A doubtful repeat of a config that stands is not among them: its config was measured elsewhere.

    Args:
        under_way: what the trials that are running repeat.
    """
    taken_up = {trial.repeats for trial in trials.values()} | set(under_way)
    return tuple(
        number
        for number in sorted(doubted)
        if number not in taken_up and trials[number].repeats in doubted | {None}
    )


def control_is_due(standing: NodeStanding | None, *, at_once: int) -> bool:
    """Whether a node's next trial is the control; None: it has run nothing yet.

    Args:
        at_once: how many trials it runs at once.
    """
    if standing is None or standing.state is NodeState.SUSPECT:
        return True
    return standing.state is NodeState.GOOD and standing.since >= EVERY * max(at_once, 1)


def is_worth(left: int, in_use: int) -> bool:
    """Whether a control pays on one more node: for each there must be some trials left beside it."""
    return left - 1 >= WORTH * (in_use + 1)


def _take_in(nodes: Mapping[str, _History], trial: StoredTrial, goal: Goal) -> None:
    assert trial.ran.node is not None
    history = nodes[trial.ran.node]
    if history.state is NodeState.ASIDE:
        history.last.append(trial.number)
        return
    if not trial.is_control:
        if trial.cause is None or trial.cause.blames_config:
            history.since += 1
            history.last.append(trial.number)
        return
    seen = _scored(trial, goal)
    fault = f"{trial.cause}: {trial.reason}" if seen is None else _out_of_noise(seen, nodes, history, goal)
    if fault is None and seen is not None:
        history.good.append(seen)
        history.last.clear()
        history.controls.clear()
        history.state, history.bad, history.since, history.reason = NodeState.GOOD, 0, 0, None
        return
    history.bad += 1
    history.controls.append(trial.number)
    history.reason = f"its control (trial {trial.number}) {'failed, ' if seen is None else ''}{fault}"
    history.state = NodeState.ASIDE if history.bad >= _TRIES else NodeState.SUSPECT


def _scored(trial: StoredTrial, goal: Goal) -> tuple[Estimate, ...] | None:
    if trial.state is not State.MEASURED or trial.measurement is None:
        return None
    try:
        return goal.loss_estimates(trial.measurement)
    except MissingObjective:
        return None


def _out_of_noise(
    seen: Sequence[Estimate], nodes: Mapping[str, _History], own: _History, goal: Goal
) -> str | None:
    """Why a control does not agree with the good ones before it; None where it does, or there are none."""
    before = own.good or [one for history in nodes.values() for one in history.good]
    if not before:
        return None
    for place, objective in enumerate(goal.objectives):
        groups = [[one[place] for one in history.good] for history in nodes.values()]
        expected = [one[place] for one in before]
        if is_off(seen[place], expected, groups):
            centre = float(np.mean([one.value for one in expected]))
            share = f"{seen[place].value / centre:.2f} times" if centre else "not"
            return f"shows {share} the {objective.name} that is expected"
    return None


def is_off(seen: Estimate, expected: Sequence[Estimate], groups: Sequence[Sequence[Estimate]]) -> bool:
    """Whether a value lies further from the mean of others than noise and `FLOOR` explain.

    The noise has three parts, added as variances are: the interval of the value, those of the others, and how
    runs on one node differ, by Student's quantile for one more run.

    Args:
        seen: the new value.
        expected: what it should be like, at least one.
        groups: values of one node each, for how runs differ.
    """
    values = np.array([one.value for one in expected])
    if not (math.isfinite(seen.value) and np.isfinite(values).all()):
        return math.isfinite(seen.value) != bool(np.isfinite(values).all())
    k, centre = len(values), float(values.mean())
    towards = seen.value < centre
    reaches = [_reach(seen, up=towards), *(_reach(one, up=not towards) for one in expected)]
    variance, freedom = _pooled(groups)
    if None in reaches and not freedom:
        return False  # nothing says how noisy this is
    within = [reach or 0.0 for reach in reaches]
    between = variance * (1 + 1 / k)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, freedom)) if freedom else 0.0
    noise = math.sqrt(within[0] ** 2 + sum(reach**2 for reach in within[1:]) / k**2 + quantile**2 * between)
    return abs(seen.value - centre) > max(noise, FLOOR * abs(centre))


def _reach(estimate: Estimate, *, up: bool) -> float | None:
    """From the value to that end of its interval, the other one's where it is not known."""
    ends = (estimate.high, estimate.low) if up else (estimate.low, estimate.high)
    return next((abs(end - estimate.value) for end in ends if end is not None), None)


def _pooled(groups: Sequence[Sequence[Estimate]]) -> tuple[float, int]:
    """Variance of one run within groups, and its degrees of freedom; 0 and 0 where nothing was repeated."""
    squares, freedom = 0.0, 0
    for group in groups:
        values = np.array([one.value for one in group if math.isfinite(one.value)])
        if len(values) > 1:
            squares += float(((values - values.mean()) ** 2).sum())
            freedom += len(values) - 1
    return (squares / freedom if freedom else 0.0), freedom
