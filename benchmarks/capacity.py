"""Whether a capacity found by bisection with cuts is that of whole replays at every speed, and what it saves.

    python benchmarks/capacity.py [--configs 60] [--resolution 0.05] [--seed 0]

On the simulated engine, over random valid configs of spaces/8b.yaml: each is searched as a trial does it, and
then played to the end at every speed of the same grid. Times are the engine's own (virtual), so that no
machine's speed is in them. Printed: configs whose verdict flips once, and how many of those got another
answer (each would be an error); configs whose verdict flips more than once (scheduling is not monotone in the
load), and whether the answer is one of their crossings; replays and engine time of both ways.
"""

import argparse
import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.node.engine import EngineFailure
from cluster.node.loads import grid_of
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import CapacityLoad, Failed, Order
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.arguments import render
from search_spaces.load import load_space
from tuner.traffic import study_trace

REQUESTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    speed: float
    replays: int
    took_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--configs", type=int, default=60)
    parser.add_argument("--resolution", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    space = load_space("spaces/8b.yaml")
    trace, _ = study_trace(space, None)
    trace = replace(trace, requests=trace.requests[:REQUESTS])
    rng = np.random.default_rng(asked.seed)
    load = CapacityLoad(resolution=asked.resolution, lowest=0.25, highest=4.0)
    one_flip = wrong = many_flips = off_crossing = failed = 0
    bisected: list[Found] = []
    whole: list[Found] = []
    guess: float | None = None
    for number in range(asked.configs):
        rendered = render(space, space.sample(rng))
        order = Order(
            study="benchmark",
            number=number,
            model=rendered.model,
            arguments=rendered.arguments,
            environment={},
            workload=Workload(trace=trace, speed=space.traffic.speed, tokenizer=space.model),
            slo=Slo.from_limits(space.slo),
            load=replace(load, guess=guess),
            gpus=1,
            accelerator="H100",
        )
        with tempfile.TemporaryDirectory() as folder:
            try:
                found, holds = by_bisection(order, Path(folder)), exhaustively(order, Path(folder))
            except EngineFailure:
                failed += 1
                continue
        (mine, (every, all_played)) = found, holds
        bisected.append(mine)
        whole.append(all_played)
        guess = float(np.median([one.speed for one in bisected if one.speed] or [space.traffic.speed]))
        speeds = sorted(every)
        flips = sum(every[a] != every[b] for a, b in itertools.pairwise(speeds))
        crossings = [
            s
            for s, after in zip(speeds, [*speeds[1:], None], strict=True)
            if every[s] and not every.get(after or -1.0, False)
        ]
        right = any(abs(mine.speed / c - 1) < 1e-9 for c in crossings) if crossings else mine.speed == 0
        one_flip += flips <= 1
        wrong += flips <= 1 and not right
        many_flips += flips > 1
        off_crossing += flips > 1 and not right
    print(f"{asked.configs} configs of {space.name}, {failed} refused; {REQUESTS} requests, SLO {space.slo},")
    print(
        f"speeds {load.lowest} to {load.highest} times {space.traffic.speed:g}, {asked.resolution:.0%} apart"
    )
    print(f"verdict flips at most once: {one_flip} configs, {wrong} of them with another capacity")
    print(f"verdict flips more often:   {many_flips} configs, {off_crossing} of them off every crossing")
    for name, side in (("bisection with cuts", bisected), ("every speed, whole", whole)):
        replays, took_s = np.mean([one.replays for one in side]), np.mean([one.took_s for one in side])
        print(f"{name:22} {replays:6.1f} replays and {took_s:8.1f} s of the engine's time a config")
    share = sum(one.took_s for one in bisected) / sum(one.took_s for one in whole)
    print(f"saved: {1 - share:.1%} of the engine's time")


def by_bisection(order: Order, folder: Path) -> Found:
    outcome = run_trial(order, SimulatedEngine(), folder)
    if isinstance(outcome, Failed):
        raise EngineFailure(outcome.cause, outcome.reason)
    measured = outcome.measurement
    return Found(
        speed=measured.value("capacity_speed") or 0.0,
        replays=len(measured.curve),
        took_s=sum(point.took_s for point in measured.curve),
    )


def exhaustively(order: Order, folder: Path) -> tuple[dict[float, bool], Found]:
    """Whether the SLO holds at each speed of the grid, from replays that are played to their ends."""
    assert isinstance(order.load, CapacityLoad)
    grid = grid_of(order, order.load)
    holds, took_s = {}, 0.0
    with SimulatedEngine().serve(order, folder) as endpoint:
        for k in range(grid.first, grid.last + 1):
            endpoint.reset_caches()
            records = endpoint.play(replace(order.workload, speed=grid.speed(k)), order.limits).records
            met = sum(order.slo.met_by(record) for record in records)
            holds[grid.speed(k)] = met >= order.slo.attainment * len(records) - 1e-9
            took_s += max(max(record.due_s, *record.chunk_s[-1:]) for record in records)
    return holds, Found(
        speed=max((s for s in holds if holds[s]), default=0.0), replays=len(holds), took_s=took_s
    )


if __name__ == "__main__":
    main()
