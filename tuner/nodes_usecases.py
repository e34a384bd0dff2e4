"""What the nodes have, and whether a trial of a space could run on each. Prints nothing."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from cluster.dispatch.dispatch import Dispatch
from cluster.node.facts import NodeFacts
from cluster.node.model_files import ModelName, ModelState, models_of
from cluster.order import Order
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.arguments import Rendered, render, render_control
from search_spaces.space import Space
from search_spaces.values import Json
from tuner.models import localised
from tuner.places import commonest, misfit
from tuner.usecases import dispatch_for, load_space, users_mistakes

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """One node, and what a space makes of it."""

    facts: NodeFacts
    at_once: int | None = None
    """Trials of the control's size that run there at once; None without a space."""
    why_not: tuple[str, ...] = ()
    """Why no trial of the space runs there, or is compared with others; empty where one does."""
    notes: tuple[str, ...] = ()
    """What else to know of trials of the space there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNodes:
    """All of a cluster."""

    nodes: tuple[SeenNode, ...]
    space: str | None
    remarks: tuple[str, ...]
    """Nodes that could not be asked, a sentence each."""


def nodes(address: str | None, reference: str | None, say: Callable[[str], None]) -> SeenNodes:
    """Ask every node what it has.

    Args:
        address: of a Ray cluster; None: this machine.
        reference: a space by file or shipped name; None: whatever may be served.
        say: told what is waited for.
    """
    space = None if reference is None else load_space(reference)
    asked = () if space is None else _orders(space)
    with users_mistakes():
        say("starting a Ray on this machine" if address is None else f"joining the Ray at {address}")
        with dispatch_for("vllm", address) as dispatch:
            found = dispatch.facts(_models(asked))
            seen = [SeenNode(facts=one) for one in found]
            if space is not None:
                seen = _judged(space, asked, found, dispatch)
            return SeenNodes(nodes=tuple(seen), space=reference, remarks=dispatch.remarks())


def _orders(space: Space) -> tuple[Order, ...]:
    """Orders of the control and of configs that together have every choice of the space; no traffic."""
    rendered = [render_control(space), *(render(space, config) for config in space.covering())]
    return tuple(_order(space, localised(one)) for one in rendered)


def _order(space: Space, rendered: Rendered) -> Order:
    return Order(
        study="",
        number=0,
        model=rendered.model,
        arguments=rendered.arguments,
        environment=rendered.environment,
        workload=Workload(trace=Trace(requests=())),
        slo=Slo(),
        gpus=rendered.gpus,
        cpus=space.resources.cpus,
        accelerator=space.resources.accelerator if rendered.gpus else None,
    )


def _models(orders: Sequence[Order]) -> tuple[ModelName, ...]:
    return tuple(dict.fromkeys(model for one in orders for model in models_of(one.model, one.arguments)))


def _judged(
    space: Space, orders: Sequence[Order], found: Sequence[NodeFacts], dispatch: Dispatch
) -> list[SeenNode]:
    smallest = min(orders, key=lambda order: order.gpus)
    at_once = {one.name: dispatch.capacity(replace(orders[0], node=one.name)) for one in found}
    able = {one.name: one for one in found if not why_not(one, smallest)}
    usual = commonest(able, at_once)
    seen = []
    for one in found:
        reasons = list(why_not(one, smallest))
        other = misfit(one, usual) if one.name in able else None
        if other is not None:
            reasons.append(other.replace("the study is measured", "most nodes would measure"))
        more = sorted({order.gpus for order in orders if smallest.gpus < order.gpus > one.gpus})
        notes = [
            *(f"{name} is {state}" for name, state in one.models.items() if state is ModelState.TO_FETCH),
            *(f"its configs of {count} GPUs have no room there" for count in more if not reasons),
        ]
        seen.append(
            SeenNode(facts=one, at_once=at_once[one.name], why_not=tuple(reasons), notes=tuple(notes))
        )
    return seen


def why_not(facts: NodeFacts, order: Order) -> tuple[str, ...]:
    """Why a node cannot run such an order; empty where it can."""
    reasons = []
    if facts.vllm is None:
        reasons.append("vLLM is not installed there (pip install '.[gpu]', or '.[cpu]')")
    if order.accelerator is not None and facts.accelerator_type != order.accelerator:
        has = facts.accelerator_type or "no accelerator that Ray knows"
        reasons.append(f"has {has}, and the space asks for {order.accelerator}")
    if facts.gpus < order.gpus:
        reasons.append(f"Ray gives out {facts.gpus:g} GPUs there, and a trial takes {order.gpus}")
    if facts.cpus < order.cpus:
        reasons.append(f"Ray gives out {facts.cpus:g} CPUs there, and a trial takes {order.cpus}")
    reasons += [f"no folder {name} there" for name, s in facts.models.items() if s is ModelState.MISSING]
    return tuple(reasons)


def nodes_json(seen: SeenNodes) -> dict[str, Json]:
    """What `tuner nodes --json` prints."""
    return {
        "space": seen.space,
        "nodes": [
            {
                **asdict(one.facts),
                "models": {name: state.value for name, state in one.facts.models.items()},
                "trials_at_once": one.at_once,
                "why_not": list(one.why_not),
                "notes": list(one.notes),
            }
            for one in seen.nodes
        ],
        "remarks": list(seen.remarks),
    }


def nodes_lines(seen: SeenNodes) -> list[str]:
    """What `tuner nodes` prints."""
    lines = [line for one in seen.nodes for line in _node_lines(one, seen.space)]
    return [*lines, *(f"! {remark}" for remark in seen.remarks)]


def _node_lines(one: SeenNode, space: str | None) -> list[str]:
    facts = one.facts
    vllm = "no vLLM" if facts.vllm is None else f"vLLM {facts.vllm}"
    ray = "" if facts.ray is None else f", Ray {facts.ray}"
    lines = [
        f"{facts.name}: {_hardware(facts)}; Ray gives out {facts.cpus:g} CPUs and {facts.gpus:g} GPUs; "
        f"{facts.memory_bytes / _GIB:.0f} GiB memory; {vllm}, Python {facts.python}{ray}",
        *(f"  {name}: {state}" for name, state in facts.models.items()),
    ]
    if space is None:
        return lines
    if one.why_not:
        return [*lines, *(f"  no trial of {space}: {reason}" for reason in one.why_not)]
    many = "1 trial" if one.at_once == 1 else f"{one.at_once} trials"
    return [*lines, f"  {many} of {space} at once", *(f"  note: {note}" for note in one.notes)]


def _hardware(facts: NodeFacts) -> str:
    kinds = dict.fromkeys(facts.accelerators)
    if not kinds:
        return facts.hardware
    return ", ".join(
        f"{facts.accelerators.count(one)} × {one.name} "
        f"({one.memory_mib * _MIB / _GIB:.0f} GiB, driver {one.driver})"
        for one in kinds
    )
