"""How far the rates of a short replay are from those of a long one, by several definitions of a rate.

    python -m benchmarks.steady_state [--replays 40]

Replays of the simulated engine (`benchmarks.simulation`'s chat traffic and 8B model on one H100), light to
overloaded, 100 to 500 requests. The truth is what the engine does per second in replays of 4,000 requests,
their first tenth left out. Each cell is mean error ± standard deviation over replays of other traffic, in
per cent of the truth. Where the true goodput is below a twentieth of the throughput (an overloaded engine
in the long run answers nobody in time), in per cent of the throughput instead.

Definitions:

- whole: all requests over first due time to last token;
- completions: requests that ended between the end of the ramp (MSER-5 on the output tokens' rate) and the
  last due time, over that time;
- offered: the share of requests due after the ramp that count, times the offered rate;
- first tokens, cut: requests whose first token came between the end of the ramp and the last first token;
- ours: `objectives.steady`: first tokens without a cut of the ramp, the tail counted where there is no
  steady state.

The second table is what the same config, played the same traffic twice with 5 % noise in its steps, differs
by: the standard deviation of the log-ratio, in per cent. The third is the share of replays whose queue
`still_growing` calls growing, by the offered rate over the throughput in overload.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation import chat_trace, order_for
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import Limits
from objectives.measurement import Record
from objectives.slo import Slo
from objectives.steady import steady_window, still_growing
from search_spaces.values import Json

Array = NDArray[np.float64]

SLO = Slo(ttft_s=0.5, tpot_s=0.1)
LENGTHS = (100, 200, 500)
LOADS = (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
LONG = 4000
LONG_REPLAYS = 3
BATCH, BATCHES = 5, 40
"""MSER-5: means of five bins, forty of them over the time in which requests were due."""


@dataclass(frozen=True, slots=True)
class Case:
    """A config and an offered rate."""

    name: str
    arguments: dict[str, Json]
    rate: float


CASES = (
    Case("light", {}, 5.0),
    Case("near saturation", {}, 16.0),
    Case("overload", {}, 25.0),
    Case("32 slots, light", {"max_num_seqs": 32}, 5.0),
    Case("32 slots, near saturation", {"max_num_seqs": 32}, 10.0),
    Case("32 slots, overload", {"max_num_seqs": 32}, 15.0),
)


class Replayed:
    """A replay as arrays, one element a request."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.due = np.array([record.due_s for record in records])
        self.first = np.array([record.chunk_s[0] for record in records])
        self.end = np.array([record.chunk_s[-1] for record in records])
        self.good = np.array([SLO.met_by(record) for record in records])
        self.tokens_at = np.concatenate([record.chunk_s for record in records])
        self.start_s, self.last_due_s = float(self.due.min()), float(self.due.max())

    @property
    def offered(self) -> float:
        return (len(self.due) - 1) / (self.last_due_s - self.start_s)

    def ramp_end_s(self) -> float:
        edges = np.linspace(self.start_s, self.last_due_s, BATCH * BATCHES + 1)
        rate = np.histogram(self.tokens_at, edges)[0].astype(np.float64)
        return float(edges[BATCH * mser(rate.reshape(BATCHES, BATCH).mean(axis=1))])


def mser(series: Array) -> int:
    """How many of the first values to leave out, at most half: the least standard error of the rest's mean.

    Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69(6), 1997.
    """
    n = len(series)
    errors = [float(np.var(series[cut:])) / (n - cut) for cut in range(n - BATCH)]
    return min(int(np.argmin(errors)), n // 2)


def counted(at: Array, good: NDArray[np.bool_], start_s: float, end_s: float) -> tuple[float, float]:
    """Throughput and goodput of what happened after `start_s` and until `end_s`."""
    inside = (at > start_s) & (at <= end_s)
    return float(inside.sum()) / (end_s - start_s), float((inside & good).sum()) / (end_s - start_s)


def by_definition(played: Replayed) -> Mapping[str, tuple[float, float]]:
    """Throughput and goodput in requests/s."""
    n, good, ramp_s = len(played.due), float(played.good.mean()), played.ramp_end_s()
    whole = n / (max(float(played.end.max()), played.last_due_s) - played.start_s)
    due_after = played.due > ramp_s if ramp_s > played.start_s else np.ones(n, dtype=np.bool_)
    admitted_s = max(float(played.first.max()), played.last_due_s)
    ours = steady_window(played.records).rate(n)
    return {
        "whole": (whole, whole * good),
        "completions": counted(played.end, played.good, ramp_s, played.last_due_s),
        "offered": (played.offered, played.offered * float(played.good[due_after].mean())),
        "first tokens, cut": counted(played.first, played.good, ramp_s, admitted_s),
        "ours": (ours, ours * good),
    }


def play(
    engine: SimulatedEngine, case: Case, requests: int, seed: int, folder: Path, number: int = 0
) -> Replayed:
    order = order_for(chat_trace(requests, case.rate, seed), 1.0, case.arguments)
    with engine.serve(replace(order, number=number), folder) as endpoint:
        return Replayed(endpoint.play(order.workload, Limits()).records)


def truth(case: Case, folder: Path) -> Array:
    """Throughput and goodput in the long run, by completions."""
    engine, runs = SimulatedEngine(), []
    for seed in range(LONG_REPLAYS):
        played = play(engine, case, LONG, 10_000 + seed, folder)
        runs.append(counted(played.end, played.good, played.last_due_s / 10, played.last_due_s))
    mean: Array = np.array(runs).mean(axis=0)
    return mean


def errors(case: Case, replays: int, folder: Path) -> list[str]:
    """Rows of the table, throughput then goodput."""
    true = truth(case, folder)
    unit = np.array([true[0], true[1] if true[1] > true[0] / 20 else true[0]])
    rows = []
    for requests in LENGTHS:
        engine = SimulatedEngine()
        found = [by_definition(play(engine, case, requests, seed, folder)) for seed in range(replays)]
        for which, rate in enumerate(("throughput", "goodput")):
            cells = [f"{case.name}", f"{requests}", f"{rate} {true[which]:.2f}"]
            for name in found[0]:
                off = 100 * (np.array([one[name][which] for one in found]) - true[which]) / unit[which]
                cells.append(f"{off.mean():+.0f} ± {off.std():.0f}")
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def repeatability(case: Case, replays: int, folder: Path) -> list[str]:
    """How far two replays of one config on one traffic are apart."""
    engine = SimulatedEngine(Assumptions(run_noise=0.01, step_noise=0.05))
    rows = []
    for requests in LENGTHS:
        pairs = [
            [by_definition(play(engine, case, requests, seed, folder, number)) for number in (1, 2)]
            for seed in range(replays)
        ]
        cells = [case.name, str(requests)]
        for name in pairs[0][0]:
            logs = np.array([[np.log(max(one[name][1], 0.001)) for one in pair] for pair in pairs])
            cells.append(f"{100 * np.diff(logs, axis=1).std():.1f}")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def growing(case: Case, replays: int, folder: Path) -> list[str]:
    """Share of replays said to grow still, by load."""
    engine, capacity = SimulatedEngine(), truth(case, folder)[0]
    rows = []
    for load in LOADS:
        at = replace(case, rate=load * capacity)
        cells = [case.name, f"{load:g}"]
        for requests in LENGTHS:
            said = [
                still_growing(play(engine, at, requests, seed, folder).records) is not None
                for seed in range(replays)
            ]
            cells.append(f"{np.mean(said):.2f}")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=40, help="of each case and length")
    asked = parser.parse_args()
    names = " | ".join(("whole", "completions", "offered", "first tokens, cut", "ours"))
    with tempfile.TemporaryDirectory() as folder:
        print(f"| load | requests | true, /s | {names} |\n| {'--- | ' * 8}".rstrip())
        for case in CASES:
            print("\n".join(errors(case, asked.replays, Path(folder))), flush=True)
        print(f"\n| goodput, same traffic twice | requests | {names} |\n| {'--- | ' * 7}".rstrip())
        for case in CASES:
            print("\n".join(repeatability(case, asked.replays, Path(folder))), flush=True)
        lengths = " | ".join(f"{requests} requests" for requests in LENGTHS)
        print(f"\n| still growing | load | {lengths} |\n| {'--- | ' * 5}".rstrip())
        for case in CASES:
            if "overload" in case.name:
                print("\n".join(growing(case, asked.replays, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
