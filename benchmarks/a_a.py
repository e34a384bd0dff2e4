"""A/A: one config against itself on a real engine. How often is it called different, and do intervals cover?

    python benchmarks/a_a.py [--space spaces/smollm2-135m.yaml] [--pairs 20] [--requests 64] [--starts 1]

The control of the space is started once, or `--starts` times, and replays the space's traffic 2 · `--pairs`
times in alternation, a b b a …, its caches emptied each time; a and b are one and the same. Printed for each
latency and for goodput: the ratio a / b over all pairs with Student's interval; how many of the comparisons
of `--side` neighbouring pairs called the sides different (stated: one in twenty); how many of the single
pairs did, by the interval within a replay; how many intervals of single replays cover the mean of all; and
how much runs of one config differ (standard deviation of the logarithm).
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from cluster.node.engine import Replay
from cluster.node.vllm_server import VllmEngine
from cluster.order import Order
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.alternation import difference, latency_difference
from objectives.measurement import Measurement
from objectives.slo import Slo
from objectives.statistics import compare
from objectives.summary import summarise
from search_spaces.arguments import render_control
from search_spaces.load import load_space
from tuner.models import local_model, localised
from tuner.traffic import study_trace

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
RATES = ("goodput_rps", "throughput_tokens_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--space", default="spaces/smollm2-135m.yaml")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--side", type=int, default=4, help="pairs of one comparison")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--speed", type=float, help="default: the space's")
    parser.add_argument("--starts", type=int, default=1)
    asked = parser.parse_args()
    order = order_of(asked.space, asked.requests, asked.speed)
    replays: list[Replay] = []
    for _ in range(asked.starts):
        with tempfile.TemporaryDirectory() as folder, VllmEngine().serve(order, Path(folder)) as endpoint:
            endpoint.warm_up(order.workload)
            for number in range(2 * asked.pairs // asked.starts):
                endpoint.reset_caches()
                replays.append(endpoint.play(order.workload, order.limits))
                print(f"replay {number + 1}: {replays[-1].invalid or 'valid'}", flush=True)
    void = sum(replay.invalid is not None for replay in replays)
    print(
        f"{len(replays)} replays of {asked.requests} requests at speed {order.workload.speed:g}, {void} void"
    )
    report(replays, order.slo, asked.side)


def order_of(reference: str, requests: int, speed: float | None) -> Order:
    space = load_space(reference)
    trace, _ = study_trace(space, None)
    rendered = localised(render_control(space))
    return Order(
        study="a-a",
        number=0,
        model=rendered.model,
        arguments=rendered.arguments,
        environment=rendered.environment,
        workload=Workload(
            trace=Trace(requests=trace.requests[:requests], block_tokens=trace.block_tokens),
            speed=speed or space.traffic.speed,
            seed=space.traffic.seed,
            tokenizer=local_model(space.model),
        ),
        slo=replace(Slo.from_limits(space.slo)),
        cpus=space.resources.cpus,
    )


def report(replays: list[Replay], slo: Slo, many: int) -> None:
    # a b b a: what drifts in one direction falls on both sides alike. A void replay takes its pair along.
    twos = [replays[at : at + 2] for at in range(0, len(replays) - 1, 2)]
    turned = [two if at % 2 == 0 else two[::-1] for at, two in enumerate(twos)]
    pairs = [two for two in turned if not any(replay.invalid for replay in two)]
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for metric in LATENCIES:
        records = [[replay.records for replay in one] for one in (a, b)]
        whole = latency_difference(records[0], records[1], metric)
        parts = [
            latency_difference(records[0][at : at + many], records[1][at : at + many], metric)
            for at in range(0, len(a) - many + 1, many)
        ]
        singles = [compare(x, y, metric) for x, y in zip(*records, strict=True)]
        print(
            f"{metric:6} a/b {whole.ratio:.4f} ({whole.low:.4f} to {whole.high:.4f}); called different: "
            f"{sum(part.different for part in parts)} of {len(parts)} comparisons of {many} pairs, "
            f"{sum(single.different for single in singles)} of {len(singles)} single pairs"
        )
    sides = tuple(
        [summarise(replay.records, replay.samples, slo=slo, max_num_seqs=None) for replay in side]
        for side in (a, b)
    )
    print(f"{len(pairs)} pairs of valid replays")
    for name in (*RATES, "ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s", "e2e_p50_s"):
        print(covered(name, *sides))


def covered(name: str, a: list[Measurement], b: list[Measurement]) -> str:
    estimates = [measurement.metrics[name] for measurement in (*a, *b)]
    values = np.array([estimate.value for estimate in estimates])
    mean = float(values.mean())
    inside = sum(
        (estimate.low is None or estimate.low <= mean) and (estimate.high is None or mean <= estimate.high)
        for estimate in estimates
    )
    if values.min() <= 0:
        return f"{name:24} was 0 in some replay"
    logs = np.log(values)
    ratio = difference((logs[: len(a)] - logs[len(a) :]).tolist())
    return (
        f"{name:24} a/b {ratio.ratio:.4f} ({ratio.low:.4f} to {ratio.high:.4f}); {inside} of {len(values)} "
        f"single intervals hold the mean; runs vary {logs.std(ddof=1):.2%}"
    )


if __name__ == "__main__":
    main()
