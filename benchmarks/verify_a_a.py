"""How often a verification fails where every promise is true: A/A on the simulated engine.

    python -m benchmarks.verify_a_a [--verifications 200] [--pairs 4] [--requests 100]

A config and the control are measured beside each other over and over, each time on other traffic of the
figures of spaces/8b.yaml and by an engine whose runs differ by 2 % and whose steps by 5 %. One such pair of
runs is the study that promised; the next `--pairs` are the verification that judges it. No promise was
chosen for looking good, so each is true, and every "not held" is a false alarm. In A/A the config is the
control itself. Printed for each row: verifications that failed, with the 95 % score interval of their share
(stated: 5 % at most); false alarms of each promise; and the median ratio at which a promise of the first
objective would have been told not held. Limits whose true share is below what the SLO wants are not
promises that are true: they are counted apart. A last row promises 15 % too much, to show that a promise
which is false is told.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.order import CapacityLoad, FixedLoad, Load, Measured, Order
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.workload import Workload
from objectives.measurement import Estimate
from objectives.slo import Slo
from objectives.statistics import wilson
from search_spaces.load import load_space
from search_spaces.measure import Capacity, Fixed
from search_spaces.space import Space
from search_spaces.values import Json
from tuner.verify.judge import Pair, Side, judged, limit_shares
from tuner.verify.promised import Promised, Resources, Traffic
from tuner.verify.verification import Kept

NOISY = Assumptions(run_noise=0.02, step_noise=0.05)
FASTER: dict[str, Json] = {"enable_prefix_caching": False, "max_num_seqs": 64}
"""A config that differs from the control in what traffic does to it; whether it is better does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row."""

    name: str
    config: dict[str, Json]
    load: Load
    speed: float
    objectives: tuple[str, ...]
    exaggerated: float = 1.0
    """What a promise is multiplied by where more is better, and divided by where less is."""


CASES = (
    Case(
        name="A/A, latencies, light load",
        config={},
        load=FixedLoad(),
        speed=0.9,
        objectives=("ttft_p95", "tpot_p95"),
    ),
    Case(name="A/A, goodput", config={}, load=FixedLoad(), speed=1.8, objectives=("goodput", "tpot_p95")),
    Case(
        name="A/A, goodput, many misses",
        config={},
        load=FixedLoad(),
        speed=6.0,
        objectives=("goodput", "ttft_p50"),
    ),
    Case(
        name="A/A, capacity", config={}, load=CapacityLoad(), speed=1.8, objectives=("capacity", "tpot_p95")
    ),
    Case(
        name="A/B, latencies",
        config=FASTER,
        load=FixedLoad(),
        speed=0.9,
        objectives=("ttft_p95", "tpot_p95"),
    ),
    Case(
        name="A/B, capacity",
        config=FASTER,
        load=CapacityLoad(),
        speed=0.9,
        objectives=("capacity", "tpot_p95"),
    ),
    Case(
        name="A/A, latencies, 15 % too much",
        config={},
        load=FixedLoad(),
        speed=0.9,
        objectives=("ttft_p95", "tpot_p95"),
        exaggerated=1.15,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verifications", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--case", type=int, nargs="+", help="only these rows, from 0")
    asked = parser.parse_args()
    print("| promises | failed | 95 % of that | false alarms | a shortfall noticed from |")
    print("| --- | --- | --- | --- | --- |")
    for case in CASES if asked.case is None else [CASES[place] for place in asked.case]:
        pairs = list(measured_pairs(case, asked.requests, asked.verifications * (asked.pairs + 1)))
        print(row(case, verified(case, pairs, asked.pairs), true_shares(pairs)), flush=True)


@cache
def shipped() -> Space:
    return load_space("spaces/8b.yaml")


def measured_pairs(case: Case, requests: int, count: int) -> Iterator[Pair]:
    """Runs of the config and of the control beside each other, each pair on traffic of its own."""
    guess: float | None = None
    for number in range(count):
        sides = [
            measured(case, arguments, requests, traffic=number, run=2 * number + side, guess=guess)
            for side, arguments in enumerate((case.config, {}))
        ]
        guess = guess or sides[0].measurement.value("capacity_speed")
        yield Pair(config=sides[0], control=sides[1])


def measured(
    case: Case, arguments: dict[str, Json], requests: int, *, traffic: int, run: int, guess: float | None
) -> Side:
    space = shipped()
    figures = {**(space.traffic.make or {}), "requests": requests, "seed": traffic}
    slo = Slo.from_limits(space.slo)
    order = Order(
        study="a-a",
        number=run,
        model=space.model,
        arguments={**space.engine, **arguments},
        environment={},
        workload=Workload(
            trace=make_trace(recipe_from(figures, where="benchmark")),
            speed=case.speed,
            seed=traffic,
            tokenizer=space.model,
        ),
        slo=slo,
        load=replace(case.load, guess=guess) if isinstance(case.load, CapacityLoad) else case.load,
        gpus=1,
        accelerator="H100",
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_trial(order, SimulatedEngine(NOISY), Path(folder))
    assert isinstance(outcome, Measured), outcome
    return Side(measurement=outcome.measurement, met=limit_shares(outcome.records, slo))


def verified(case: Case, pairs: Sequence[Pair], many: int) -> list[tuple[Kept, ...]]:
    """Verifications of `many` pairs, each of what one more pair promised."""
    groups = [pairs[at : at + many + 1] for at in range(0, len(pairs) - many, many + 1)]
    return [judged(promised(case, first), rest)[0] for first, *rest in groups]


def promised(case: Case, pair: Pair) -> Promised:
    assert pair.config is not None
    assert pair.control is not None
    space = shipped()
    values = dict(pair.config.measurement.metrics)
    return Promised(
        study="a-a",
        study_id="",
        space=space.name,
        trial=1,
        engine="simulated",
        version=None,
        hardware=None,
        objectives=case.objectives,
        slo=Slo.from_limits(space.slo),
        slo_held=min(pair.config.met.values()) >= 0.95 - 1e-9,
        measure=Capacity() if isinstance(case.load, CapacityLoad) else Fixed(),
        values={name: exaggerated(name, values[name], case.exaggerated) for name in values},
        control=pair.control.measurement.metrics,
        control_launch=None,
        traffic=Traffic(
            origin="made",
            digest="",
            trace=None,
            make=space.traffic.make,
            max_context=None,
            speed=case.speed,
            sessions="recorded",
            seed=0,
            model=space.model,
            duration_s=None,
        ),
        resources=Resources(gpus=1, cpus=1, accelerator="H100", gpu_hour_price=None, trust_remote_code=False),
    )


def exaggerated(name: str, estimate: Estimate, factor: float) -> Estimate:
    return estimate.times(1 / factor if name.endswith("_s") else factor)


def true_shares(pairs: Sequence[Pair]) -> dict[str, float]:
    """The share of requests that meets each limit, over all traffic and runs."""
    sides = [pair.config for pair in pairs if pair.config is not None]
    return {name: float(np.mean([side.met[name] for side in sides])) for name in sides[0].met}


def row(case: Case, found: Sequence[tuple[Kept, ...]], shares: dict[str, float]) -> str:
    wanted = Slo.from_limits(shipped().slo).attainment
    true = [[kept for kept in one if shares.get(kept.name, 1.0) >= wanted] for one in found]
    failed = sum(not all(kept.held for kept in one) for one in true)
    low, high = wilson(failed / len(found), len(found))
    alarms = Counter(kept.name for one in true for kept in one if not kept.held)
    asked = Counter(kept.name for one in true for kept in one)
    told = ", ".join(f"{name} {alarms[name]} of {count}" for name, count in asked.items())
    false = {
        name: sum(kept.name == name and not kept.held for one in found for kept in one)
        for name, share in shares.items()
        if share < wanted
    }
    apart = "".join(f"; {name} not met in truth ({shares[name]:.1%}), told {n}" for name, n in false.items())
    first = [kept.noticed for one in found for kept in one if kept.name == case.objectives[0]]
    noticed = np.median([value for value in first if value is not None])
    rate = f"{failed} of {len(found)} | {low:.1%} to {high:.1%}"
    return f"| {case.name} | {rate} | {told}{apart} | ×{noticed:.2f} |"


if __name__ == "__main__":
    main()
