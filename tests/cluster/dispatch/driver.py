"""A driver in a process of its own: `python -m tests.cluster.dispatch.driver ADDRESS ENGINE ACT…`.

Every act is an order; all are submitted at once. Prints one JSON object: the error, or what was found.
"""

import json
import sys
from pathlib import Path

from cluster.dispatch.dispatch import DispatchError
from cluster.dispatch.on_ray import OnRay
from cluster.node.engine import Engine
from cluster.node.simulated import SimulatedEngine
from cluster.order import Failed
from cluster.phase import Phase, PhaseName
from search_spaces.values import Json
from tests.cluster.dispatch.scripted import HOLD, Scripted, order

_KNOWN = "HuggingFaceTB/SmolLM2-135M"
"""A model that the simulated engine knows."""


def drive(address: str, engine: Engine, acts: list[str]) -> dict[str, Json]:
    phases: list[Json] = []

    def tell(number: int, node: str | None, phase: Phase) -> None:
        phases.append([number, node, phase.text])
        if phase.name is PhaseName.WARMING_UP and acts[number].startswith(HOLD):
            Path(acts[number].removeprefix(HOLD)).touch()

    with OnRay(engine, address, tell) as dispatch:
        for number, act in enumerate(acts):
            dispatch.submit(order(number, act, model=_KNOWN if engine.name == "simulated" else None))
        outcomes: dict[int, Json] = {}
        while len(outcomes) < len(acts):
            ended = dispatch.next(60)
            assert ended is not None, "no trial ended in a minute"
            number, outcome = ended
            told = [outcome.cause.value, outcome.reason] if isinstance(outcome, Failed) else ["measured", ""]
            outcomes[number] = [*told]
        return {
            "nodes": dispatch.inventory.nodes,
            "cpus": dispatch.inventory.cpus,
            "capacity": dispatch.capacity(order(0)),
            "too large": dispatch.capacity(order(0, cpus=3)),
            "phases": phases,
            "outcomes": [outcomes[number] for number in range(len(acts))],
        }


def main(address: str, name: str, *acts: str) -> None:
    engine: Engine = SimulatedEngine() if name == "simulated" else Scripted(name)
    try:
        print(json.dumps(drive(address, engine, list(acts))))
    except DispatchError as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
