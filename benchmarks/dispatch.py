"""Whether the driver or the nodes limit how fast trials are run: simulated ones over real Ray nodes.

    python -m benchmarks.dispatch [--trials 1000] [--nodes 4] [--cpus 2] [--requests 64] [--parts]

`--nodes` Ray nodes of `--cpus` CPUs each are started on this machine, and simulated trials of `--requests`
requests sent out as a search does it, as many at once as fit. Printed: trials a second; the driver's CPU, in
all and for one trial, so how many trials a second it could feed at the most; how long it waited for outcomes,
which a driver that is the limit never does; and, with `--parts`, the functions that took most of it.
"""

import argparse
import cProfile
import os
import pickle
import pstats
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from cluster.dispatch.dispatch import Dispatch
from cluster.dispatch.on_ray import OnRay
from cluster.node.simulated import SimulatedEngine
from cluster.order import Measured, Order
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from tests.cluster.dispatch.raylets import LEAST_STORE, free_ports, node

MODEL = "HuggingFaceTB/SmolLM2-135M"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2, help="of each node, by Ray's count: trials at once")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--parts", action="store_true")
    asked = parser.parse_args()
    with ray_nodes(asked.nodes, asked.cpus) as address, OnRay(SimulatedEngine(), address) as dispatch:
        at_once = dispatch.capacity(order(0, asked.requests))
        print(f"{asked.nodes} nodes, {at_once} trials at once, on {os.cpu_count()} cores")
        drive(dispatch, asked.requests, trials=at_once)  # every worker is up
        profile = cProfile.Profile()
        if asked.parts:
            profile.enable()
        drive(dispatch, asked.requests, trials=asked.trials, say=True)
        profile.disable()
        if asked.parts:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


@contextmanager
def ray_nodes(count: int, cpus: int) -> Iterator[str]:
    """So many nodes of a cluster of their own on this machine; its address."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-")))
        environment = kept | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        (port,) = free_ports(1)
        head = ("--head", f"--port={port}", f"--temp-dir={here}", "--include-dashboard=false")
        for number in range(count):
            first = (f"--address=127.0.0.1:{port}",) if number else head
            has = (f"--num-cpus={cpus}", "--num-gpus=0", f"--object-store-memory={LEAST_STORE}")
            name = (f"--node-name=node-{number}", "--node-ip-address=127.0.0.1")
            words = (*first, *has, *name, "--dashboard-agent-listen-port=0")
            stack.enter_context(node(environment, here / f"node-{number}.log", *words))
        yield f"127.0.0.1:{port}"


def order(number: int, requests: int) -> Order:
    return Order(
        study="dispatch",
        number=number,
        model=MODEL,
        arguments={"max_num_seqs": 8 + number % 64},
        environment={},
        workload=_workload(requests),
        slo=Slo(ttft_s=0.5, attainment=0.9),
    )


@cache
def _workload(requests: int) -> Workload:
    recipe = recipe_from({"requests": requests, "rate": 4.0, "input_mean": 256, "output_mean": 64})
    return Workload(trace=make_trace(recipe))


def drive(dispatch: Dispatch, requests: int, *, trials: int, say: bool = False) -> None:
    """Send out this many, and print what they and the driver took."""
    at_once = dispatch.capacity(order(0, requests))
    began_s, cpu_s, waited_s, sent, done, size = time.perf_counter(), _cpu_s(), 0.0, 0, 0, 0
    under_way = 0
    while done < trials:
        while sent < trials and sent - done < at_once:
            dispatch.submit(order(sent, requests))
            sent += 1
        waiting_s = time.perf_counter()
        ended = dispatch.next(60)
        waited_s += time.perf_counter() - waiting_s
        under_way += sent - done
        if ended is None:
            continue
        assert isinstance(ended[1], Measured), ended[1]
        size = size or len(pickle.dumps(ended[1]))
        done += 1
    wall_s, took_s = time.perf_counter() - began_s, _cpu_s() - cpu_s
    if say:
        print(f"{trials} trials in {wall_s:.1f} s: {trials / wall_s:.1f} trials a second")
        print(
            f"driver: {took_s:.1f} s of CPU ({took_s / wall_s:.0%} of a core), "
            f"{1e3 * took_s / trials:.2g} ms a trial: one driver feeds {trials / took_s:.0f} a second at most"
        )
        print(f"driver waited for outcomes {waited_s / wall_s:.0%} of the time")
        print(f"{under_way / trials:.1f} of {at_once} under way; an outcome is {size / 1024:.0f} KiB")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)  # threads of Ray's included
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
