"""What the interval of a capacity holds and what it does not.

    python -m benchmarks.capacity_interval [--trials 30] [--requests 200 600]

Capacities of the simulated engine on the traffic of spaces/8b.yaml, found as a trial finds them. Each row is
one config, measured over and over: on other traffic of the same figures, or on the same requests by an engine
whose runs differ by 1 % and whose steps by 5 %. Printed: how much the capacity varies (standard deviation of
its logarithm); how wide its intervals are (mean logarithm of high over low, of those with two ends); what
share of them holds the median of all the row's capacities (0.95 were they intervals of that); and in what
share of the trials the queue was said to be still growing.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import CapacityLoad, Measured, Order
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.workload import Workload
from objectives.measurement import Measurement
from objectives.slo import Slo
from search_spaces.load import load_space
from search_spaces.values import Json

CONFIGS: dict[str, dict[str, Json]] = {"defaults": {}, "32 slots": {"max_num_seqs": 32}}
NOISY = Assumptions(run_noise=0.01, step_noise=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--requests", type=int, nargs="+", default=[200, 600])
    asked = parser.parse_args()
    print("| config | requests | varied | capacity varies | intervals' width | hold the median | growing |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, arguments in CONFIGS.items():
        for requests in asked.requests:
            for varied in ("traffic", "engine"):
                trials = measured_often(arguments, requests, varied == "traffic", asked.trials)
                print(f"| {name} | {requests} | {varied} | {row(trials)} |", flush=True)


def measured_often(
    arguments: dict[str, Json], requests: int, other_traffic: bool, trials: int
) -> list[Measurement]:
    space = load_space("spaces/8b.yaml")
    found: list[Measurement] = []
    guess: float | None = None
    for number in range(trials):
        figures = {**(space.traffic.make or {}), "requests": requests, "seed": number if other_traffic else 0}
        order = Order(
            study="interval",
            number=number,
            model=space.model,
            arguments={**space.engine, **arguments},
            environment={},
            workload=Workload(
                trace=make_trace(recipe_from(figures, where="benchmark")),
                speed=space.traffic.speed,
                tokenizer=space.model,
            ),
            slo=Slo.from_limits(space.slo),
            load=replace(CapacityLoad(), guess=guess),
            gpus=1,
            accelerator="H100",
        )
        engine = SimulatedEngine() if other_traffic else SimulatedEngine(NOISY)
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_trial(order, engine, Path(folder))
        assert isinstance(outcome, Measured), outcome
        found.append(outcome.measurement)
        guess = found[0].value("capacity_speed")
    return found


def row(trials: list[Measurement]) -> str:
    capacities = [trial.metrics["capacity_rps"] for trial in trials]
    values = np.array([capacity.value for capacity in capacities])
    middle = float(np.median(values))
    holds = [(c.low or 0.0) <= middle and (c.high is None or middle <= c.high) for c in capacities]
    widths = [np.log(c.high / c.low) for c in capacities if c.low and c.high]
    growing = [any("still growing" in said for said in trial.warnings) for trial in trials]
    return (
        f"{np.log(values).std(ddof=1):.1%} | {np.mean(widths) if widths else np.nan:.1%} | "
        f"{np.mean(holds):.2f} | {np.mean(growing):.2f}"
    )


if __name__ == "__main__":
    main()
