"""The simulated engine on a node that does as files tell it; importable on a Ray worker.

Nodes of tests are processes on one machine. `TUNER_TEST_NODE` is what one is called, `TUNER_TEST_TOLD` the
folder that the test writes to. There
- `hold-N` keeps trial N from being measured until the file is gone; `held-N-NODE` says that it waits, and in
  which process.
- `slow-NODE`: from then on its accelerator is a third as fast.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cluster.node.engine import Endpoint
from cluster.node.phases import Phases
from cluster.node.processes import process
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import Order
from search_spaces.accelerators import Accelerator, accelerator

SLOWER = 3.0
"""Times that a slowed node's steps take."""


class ToldEngine:
    """Simulated, held and slowed."""

    name = "simulated"

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> Iterator[Endpoint]:
        told, node = Path(os.environ["TUNER_TEST_TOLD"]), os.environ["TUNER_TEST_NODE"]
        hold = told / f"hold-{order.number}"
        if hold.exists():
            own = process(os.getpid())
            assert own is not None
            part = told / f".held-{order.number}-{node}"
            part.write_text(json.dumps({"process": [own.pid, own.started], "folder": str(folder)}))
            part.rename(told / f"held-{order.number}-{node}")
            while hold.exists():
                time.sleep(0.05)
        slow = (told / f"slow-{node}").exists()
        device = _slowed(accelerator("cpu")) if slow else None
        with SimulatedEngine(Assumptions(accelerator=device)).serve(order, folder, phases) as endpoint:
            yield endpoint


def _slowed(device: Accelerator) -> Accelerator:
    return replace(
        device,
        bandwidth=device.bandwidth / SLOWER,
        flops={kind: flops / SLOWER for kind, flops in device.flops.items()},
        step_s=device.step_s * SLOWER,
        sequence_s=device.sequence_s * SLOWER,
    )
