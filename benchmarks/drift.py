"""How often `objectives.drift` accuses an engine that is in order, and how often it sees one held up.

    python -m benchmarks.drift [--replays 12]

Replays of the simulated engine with 5 % noise in its steps and 1 % between runs, over the configs and rates
of `benchmarks.simulation`, 50, 100 and 300 requests. Held up: every token after a time in the first quarter
of the replay comes so much later. Slow: everything in the first fifth takes half as long again, seen by the
comparison with a second replay.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.simulation import CASES, chat_trace, order_for
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import Limits
from objectives.drift import drift, paired_drift
from objectives.measurement import Record
from search_spaces.values import Json

LENGTHS = (50, 100, 300)
PAUSES_S = (0.3, 1.0, 3.0)
RATE = 10.0
"""Of the trace, requests/s."""


def play(
    requests: int, speed: float, arguments: dict[str, Json], seed: int, number: int, folder: Path
) -> Sequence[Record]:
    order = replace(order_for(chat_trace(requests, RATE, seed), speed, arguments), number=number)
    with SimulatedEngine(Assumptions(run_noise=0.01, step_noise=0.05)).serve(order, folder) as endpoint:
        return endpoint.play(order.workload, Limits()).records


def held_up(records: Sequence[Record], at_s: float, for_s: float) -> list[Record]:
    return [
        replace(record, chunk_s=tuple(at + for_s if at >= at_s else at for at in record.chunk_s))
        for record in records
    ]


def slow(records: Sequence[Record], until_s: float, factor: float) -> list[Record]:
    def later(at: float) -> float:
        return at * factor if at <= until_s else at + (factor - 1) * until_s

    return [replace(record, chunk_s=tuple(map(later, record.chunk_s))) for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=12, help="of each config and length")
    asked = parser.parse_args()
    columns = ("in order", "paired, in order", *(f"held up {s:g} s" for s in PAUSES_S), "paired, slow")
    print(f"| config | replays | {' | '.join(columns)} |\n| {'--- | ' * (2 + len(columns))}".rstrip())
    with tempfile.TemporaryDirectory() as folder:
        for name, (speed, arguments) in CASES.items():
            said: list[list[bool]] = []
            for requests in LENGTHS:
                for seed in range(asked.replays):
                    one, two = (
                        play(requests, speed, arguments, seed, 2 * seed + k, Path(folder)) for k in (0, 1)
                    )
                    last = max(record.due_s for record in one)
                    at_s = float(np.random.default_rng(seed).uniform(0, last / 4))
                    said.append(
                        [
                            drift(one) is not None,
                            paired_drift(one, two) is not None,
                            *(drift(held_up(one, at_s, pause)) is not None for pause in PAUSES_S),
                            paired_drift(slow(one, last / 5, 1.5), two) is not None,
                        ]
                    )
            cells = " | ".join(f"{share:.2f}" for share in np.mean(said, axis=0))
            print(f"| {name} | {len(said)} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
