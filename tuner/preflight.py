"""What is checked before a trial costs anything: it fits somewhere, and vLLM knows every argument."""

import re

from cluster.dispatch.dispatch import Dispatch, Inventory
from cluster.order import Order
from cluster.traffic.sessions import Sessions
from cluster.traffic.trace import Trace
from objectives.economy import COSTS
from objectives.goal import QUALITY, Goal, GoalError, objective
from objectives.slo import Slo
from objectives.statistics import requests_needed
from search_spaces.arguments import Rendered, render, render_control
from search_spaces.measure import Capacity, Closed
from search_spaces.space import Space
from tuner.mistakes import Mistake


def check_room(order: Order, dispatch: Dispatch, space: Space) -> int:
    """How many such orders run at once. Raises Mistake, in one line, where not even one does."""
    capacity = dispatch.capacity(order)
    if capacity:
        return capacity
    has = dispatch.inventory
    raise Mistake(f"{space.source} needs {_needs(order)} a trial; found {_found(has)}; {_advice(order, has)}")


def _needs(order: Order) -> str:
    if order.gpus:
        kind = f" {order.accelerator}" if order.accelerator else ""
        return f"{order.gpus}{kind} GPU{'s' if order.gpus > 1 else ''} and {order.cpus} CPUs"
    return f"{order.cpus} CPUs"


def _found(has: Inventory) -> str:
    kinds = f" ({', '.join(has.accelerators)})" if has.accelerators else ""
    return f"{has.gpus:g} GPUs{kinds} and {has.cpus:g} CPUs on {has.nodes} node{'s' if has.nodes > 1 else ''}"


def _advice(order: Order, has: Inventory) -> str:
    if order.gpus and not has.gpus:
        return (
            "name a cluster that has them with --ray ADDRESS; here, spaces/smollm2-135m.yaml runs without a "
            "GPU, and --engine simulated plays this space without measuring"
        )
    if order.gpus:
        return "name another cluster with --ray ADDRESS, or change resources in a copy of the space"
    return "lower resources.cpus in a copy of the space"


def check_verdict(space: Space, slo: Slo, trace: Trace) -> None:
    """Raise Mistake, in one line, where no replay of the trace can tell that the SLO holds at a rate."""
    if not isinstance(space.measure, Capacity):
        return
    place = f"{space.source} measures capacity"
    requests, needed = len(trace.requests), requests_needed(slo.attainment)
    if not slo.limits():
        raise Mistake(
            f"{place}, the highest speed at which the SLO holds, and has no slo; add one, or {_WITHOUT}"
        )
    if requests < needed:
        raise Mistake(
            f"{place}: to tell whether {slo.attainment:.0%} of requests meet the SLO takes {needed} of them, "
            f"and the trace has {requests}; give it a longer trace, or {_WITHOUT}"
        )
    if len({request.arrival_s for request in trace.requests}) == 1:
        raise Mistake(f"{place}, and all requests of the trace are due at once, at any speed; {_WITHOUT}")


def check_sessions(space: Space, sessions: Sessions) -> None:
    """Raise Mistake where turns cannot wait for each other in the load that is measured."""
    if isinstance(space.measure, Closed) and sessions is Sessions.CAUSAL:
        raise Mistake(
            f"{space.source} measures a closed loop, where the next request leaves as any one ends, of "
            "whichever session; play sessions as recorded (--sessions recorded), or measure another load"
        )


def goal_of(space: Space) -> Goal:
    """What the space wants better. Raises Mistake, with its line, for an objective that there is not."""
    for name in space.objectives:
        try:
            objective(name)
        except GoalError as error:
            raise Mistake(f"{_place(space, name)} objectives: {error}") from error
    return Goal.of(space.objectives)


def check_objectives(space: Space, goal: Goal, trace: Trace) -> None:
    """Raise Mistake, in one line, for an objective that no trial of the space on this trace would have."""
    longest = max((request.output_length for request in trace.requests), default=0)
    for wanted in goal.objectives:
        place = f"{_place(space, wanted.name)} objectives: {wanted.name!r}"
        if len(trace.requests) < wanted.requests_needed:
            raise Mistake(
                f"{place} needs {wanted.requests_needed} requests and the trace has {len(trace.requests)}; "
                "give it a longer trace, or name a lower percentile"
            )
        if wanted.metric.startswith(("tpot", "itl")) and longest < 2:
            raise Mistake(
                f"{place} is of time between tokens, and no request of the trace has over one output token"
            )
        costs = wanted.metric in COSTS
        if (costs or wanted.metric.endswith("_per_gpu")) and space.resources.gpus == 0:
            raise Mistake(f"{place} is of trials on GPUs, and a trial of this space takes no GPU")
        if costs and space.resources.gpu_hour_price is None:
            raise Mistake(f"{place} needs what a GPU costs an hour: resources: {{gpu_hour_price: 2.5}}")


def check_quality_objectives(space: Space, goal: Goal, engine: str) -> None:
    """Raise Mistake, in one line, for an objective of quality where the engine answers no words."""
    for name in goal.names:
        if engine == "simulated" and name in QUALITY:
            raise Mistake(
                f"{_place(space, name)} objectives: {name!r} is of answers, and the simulated engine has none"
            )


_WITHOUT = "measure one load with --measure fixed"


def check_arguments(order: Order, dispatch: Dispatch, space: Space) -> str | None:
    """Hold every argument that the space can give against the vLLM where trials run; its version.

    Raises:
        Mistake: vLLM would refuse one by name or by value; all of them, with their place in the space.
    """
    configs: list[Rendered] = [render_control(space), *(render(space, config) for config in space.covering())]
    checked = dispatch.check_arguments(order, [rendered.arguments for rendered in configs])
    if checked is None:
        return None
    told = {fault.argument: fault.message for fault in checked.faults}
    if told:
        lines = [f"{_place(space, argument)}: {argument} {message}" for argument, message in told.items()]
        found = (
            lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} faults", *(f"  {x}" for x in lines)])
        )
        raise Mistake(f"{found} (vLLM {checked.version})")
    return checked.version


def _place(space: Space, argument: str) -> str:
    """File and line where the space names the argument, by its last key, or the objective."""
    key = re.compile(rf"(?<![\w-]){re.escape(argument.rpartition('.')[2])}(?![\w-])")
    for number, line in enumerate(space.text.splitlines(), 1):
        if key.search(line.partition("#")[0].replace("-", "_")):
            return f"{space.source}:{number}"
    return space.source
