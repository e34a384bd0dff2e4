"""Where the next trial of a study runs: nodes that are alike, not set aside, and have room.

A study is of one kind of hardware and one vLLM, those of its control: what was measured on others is not
compared with it, so they are not used. Where a dispatch tells no nodes apart there is one place, without a
name.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cluster.dispatch.dispatch import Dispatch
from cluster.node.facts import NodeFacts
from cluster.order import Order, Ran
from objectives.goal import Goal
from tuner.node_controls import NodeStanding, NodeState, control_is_due, is_worth, standings
from tuner.records import StoredTrial

Node = str | None
"""A node's name; None where nodes are not told apart."""

_ROUNDING = 1e-9
_SEVERAL = re.compile(r"^\d+ × ")


def hardware_of(facts: NodeFacts) -> str:
    """The kind of hardware that a node's trials run on: its accelerators, or its CPU with the cores."""
    return " and ".join(sorted({one.name for one in facts.accelerators})) or facts.hardware


def misfit(facts: NodeFacts, ran: Ran) -> str | None:
    """Why what this node measures cannot be compared with a trial that ran so; None where it can."""
    if ran.version is not None and _release(facts.vllm) != _release(ran.version):
        has = "no vLLM" if facts.vllm is None else f"vLLM {facts.vllm}"
        return f"has {has}, and the study is measured with vLLM {ran.version}"
    hardware = None if ran.hardware is None else _SEVERAL.sub("", ran.hardware)
    if hardware is not None and hardware != hardware_of(facts):
        return f"has {hardware_of(facts)}, and the study is measured on {hardware}"
    return None


def commonest(known: Mapping[str, NodeFacts], at_once: Mapping[str, int]) -> Ran:
    """What a study's control would best run on: the hardware and vLLM with which most trials run at once.

    Args:
        known: nodes by name.
        at_once: how many trials each runs.
    """
    counts: Counter[tuple[str, str | None]] = Counter()
    for name, facts in sorted(known.items()):
        counts[hardware_of(facts), facts.vllm] += at_once[name]
    if not counts:
        return Ran()
    (hardware, version), _ = counts.most_common(1)[0]
    return Ran(hardware=hardware, version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The nodes at one moment of a study."""

    open: tuple[Node, ...]
    """Those that may measure a config, whether or not they have room."""
    due: tuple[str, ...] = ()
    """Those whose next trial is the control."""
    watched: bool = False
    """Whether there are several, so that controls are held against each other."""
    shut: tuple[str, ...] = ()
    """Why others are not used, one clause each."""


@dataclass(slots=True)
class Places:
    """The nodes of a dispatch for one study."""

    dispatch: Dispatch
    goal: Goal
    real: bool
    """Whether what is measured depends on the node, as a simulation does not."""
    taken: defaultdict[Node, float] = field(default_factory=lambda: defaultdict(float))
    """Share of each that the study's own trials take."""
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    """What nodes said they have, once each."""
    asked: set[str] = field(default_factory=set)

    def look(
        self, control: Order, trials: Mapping[int, StoredTrial], *, left: int, measuring: Iterable[Node] = ()
    ) -> Look:
        """What may be done with each node now.

        Args:
            control: the study's.
            left: trials that may still be sent out.
            measuring: nodes on which the control runs.
        """
        names = self.dispatch.nodes(control)
        if not names:
            return Look(open=(None,))
        first = trials.get(0)
        reasons = self._misfits(control, names, None if first is None else first.ran)
        fit = [name for name in names if name not in reasons]
        ran_on = {trial.ran.node for trial in trials.values() if trial.ran.node is not None}
        shut = [f"node {name} {reason}" for name, reason in reasons.items()]
        if first is None or first.measurement is None or len(ran_on | set(fit)) < 2:
            return Look(open=tuple(fit), shut=tuple(shut))
        known = standings(trials.values(), self.goal)
        aside = [name for name in fit if name in known and known[name].state is NodeState.ASIDE]
        shut += [f"node {name} is set aside, {known[name].reason}" for name in aside]
        due = self._due(control, [name for name in fit if name not in aside], known, left, set(measuring))
        ready = tuple(name for name in fit if name in known and known[name].state is NodeState.GOOD)
        return Look(
            open=tuple(name for name in ready if name not in due), due=due, watched=True, shut=tuple(shut)
        )

    def _due(
        self,
        control: Order,
        names: Iterable[str],
        known: Mapping[str, NodeStanding],
        left: int,
        measuring: set[Node],
    ) -> tuple[str, ...]:
        in_use = sum(name in known or name in measuring for name in names)
        found: list[str] = []
        for name in names:
            if name in measuring:
                continue
            at_once = self.dispatch.capacity(replace(control, node=name))
            if not control_is_due(known.get(name), at_once=at_once):
                continue
            new = name not in known
            # What a suspect node measured hangs on its next control.
            suspect = not new and known[name].state is NodeState.SUSPECT
            if suspect or is_worth(left - len(found), in_use if new else in_use - 1):
                in_use += new
                found.append(name)
        return tuple(found)

    def idle(self, node: Node) -> bool:
        """Whether it runs nothing of the study."""
        return self.taken[node] < _ROUNDING

    def put(self, order: Order, look: Look, *, avoid: Node = None) -> tuple[Node, float] | None:
        """The open node with room for the order that has most left, and the order's share of it.

        Args:
            avoid: the node to take only where there is no other.
        """
        shares = {node: self.share(order, node) for node in look.open}
        others = [node for node in shares if node != avoid and math.isfinite(shares[node])]
        fits = [
            (self.taken[node] + shares[node], node)
            for node in (others if avoid is not None and others else shares)
            if self.taken[node] + shares[node] <= 1 + _ROUNDING
        ]
        if not fits:
            return None
        chosen = min(fits, key=lambda pair: pair[0])[1]
        return chosen, shares[chosen]

    def share(self, order: Order, node: Node) -> float:
        """Of a node, what one such trial takes; infinite where not even one has room."""
        capacity = self.dispatch.capacity(replace(order, node=node))
        return 1 / capacity if capacity else math.inf

    def take(self, node: Node, share: float) -> None:
        self.taken[node] += share

    def give_back(self, node: Node, share: float) -> None:
        self.taken[node] -= share

    def _misfits(self, control: Order, names: tuple[str, ...], ran: Ran | None) -> dict[str, str]:
        """Why nodes cannot be compared with the study's control, or with most of the others before it."""
        if not self.real or (ran is None and len(names) == 1):
            return {}
        if not set(names) <= self.asked:
            self.asked |= set(names)
            self.facts |= {facts.name: facts for facts in self.dispatch.facts()}
        known = {name: self.facts[name] for name in names if name in self.facts}
        if ran is None:
            ran = commonest(known, {n: self.dispatch.capacity(replace(control, node=n)) for n in known})
        found = {name: misfit(facts, ran) for name, facts in known.items()}
        if self.facts:
            found |= {name: "did not say what it has" for name in names if name not in known}
        return {name: reason for name, reason in found.items() if reason is not None}


def _release(version: str | None) -> str | None:
    """Without what builds of one release differ in."""
    return None if version is None else version.partition("+")[0]
