"""A driver of two nodes with two made-up GPUs each: `python -m tests.cluster.dispatch.nodes_driver ADDRESS`.

Prints one JSON object a line, one for each scene.
"""

import json
import sys
from collections.abc import Sequence

import ray.util

from cluster.dispatch.on_ray import OnRay
from cluster.node.model_files import ModelName
from cluster.order import Failed, Order
from search_spaces.values import Json
from tests.cluster.dispatch.scripted import Scripted, order
from tests.cluster.hub import MODEL


def outcomes(dispatch: OnRay, orders: Sequence[Order]) -> dict[str, Json]:
    """What came of these, and what was said of nodes meanwhile."""
    for one in orders:
        dispatch.submit(one)
    found: dict[int, list[Json]] = {}
    remarks: list[str] = []
    while len(found) < len(orders):
        ended = dispatch.next(120)
        remarks += dispatch.remarks()
        if ended is not None:
            number, outcome = ended
            cause = outcome.cause.value if isinstance(outcome, Failed) else "measured"
            reason = outcome.reason if isinstance(outcome, Failed) else ""
            found[number] = [outcome.ran.node, cause, reason]
    return {"outcomes": [[*found[one.number]] for one in orders], "remarks": [*remarks]}


def groups() -> int:
    """Placement groups that hold something."""
    table = ray.util.placement_group_table()
    return sum(group["state"] != "REMOVED" for group in table.values())


def main(address: str) -> None:
    with OnRay(Scripted("vllm"), address) as dispatch:
        seen = dispatch.facts((ModelName(MODEL),))
        has: list[Json] = [
            [one.name, one.gpus, one.cpus, one.ray, one.vllm, str(one.models[MODEL])] for one in seen
        ]
        told: dict[str, Json] = {
            "facts": has,
            "room": [dispatch.capacity(order(0, gpus=gpus)) for gpus in (1, 2, 3)],
            "nodes": [*dispatch.nodes(order(0, gpus=1))],
        }
        say(told)
        say(outcomes(dispatch, [order(n, "say devices", gpus=1) for n in range(4)]) | {"groups": groups()})
        say(outcomes(dispatch, [order(5, "say devices", gpus=2, node="two")]))
        say(outcomes(dispatch, [order(n, "refuse", gpus=1, model=MODEL) for n in range(6, 10)]))
        say(outcomes(dispatch, [order(10, "refuse", gpus=1, model="tea/none")]))
        say(outcomes(dispatch, [order(11, "refuse", gpus=1, model="/nowhere/model")]))
        # The second waits for the first one's GPUs when the node dies.
        lost = [order(12, "wait", gpus=2, node="two"), order(13, "refuse", gpus=2, node="two")]
        say(outcomes(dispatch, lost) | {"groups": groups()})
        say(
            outcomes(dispatch, [order(14, "refuse", gpus=1)]) | {"nodes": [*dispatch.nodes(order(0, gpus=1))]}
        )
        dispatch.submit(order(15, "wait", gpus=2))
        dispatch.cancel()
        say({"groups": groups()})


def say(what: dict[str, Json]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
