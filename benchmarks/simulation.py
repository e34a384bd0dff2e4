"""How many replays of a 500-request trace the simulated engine plays in a minute, on one core.

    python benchmarks/simulation.py [--seconds 5] [--profile]

The traffic is chat-like: log-normal lengths (about 1,800 prompt and 180 output tokens on average), half of
the prompts with a shared prefix of 1,024 tokens, Poisson arrivals. Each row is another config of an 8B
model on one H100, below or past saturation.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from pathlib import Path

import numpy as np

from cluster.node.simulated import SimulatedEngine
from cluster.order import Limits, Order
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.values import Json

REQUESTS = 500
CASES: dict[str, tuple[float, dict[str, Json]]] = {
    "defaults, 5 req/s": (0.5, {}),
    "defaults, 10 req/s": (1.0, {}),
    "defaults, 100 req/s": (10.0, {}),
    "no prefix cache": (1.0, {"enable_prefix_caching": False}),
    "16 sequences": (1.0, {"max_num_seqs": 16}),
    "short of KV blocks": (3.0, {"gpu_memory_utilization": 0.28, "max_num_seqs": 256}),
    "small token budget": (1.0, {"max_num_batched_tokens": 512, "max_num_seqs": 64}),
    "ngram, depth 4": (1.0, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}),
    "draft model, depth 3": (
        1.0,
        {"speculative_config": {"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 3}},
    ),
}


def chat_trace(requests: int, rate: float, seed: int = 0) -> Trace:
    """`rate` in requests per second."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1 / rate, requests))
    prompts = np.clip(draw.lognormal(np.log(1500), 0.6, requests), 16, 6000).astype(int)
    outputs = np.clip(draw.lognormal(np.log(150), 0.6, requests), 1, 1000).astype(int)
    shared = draw.random(requests) < 0.5
    rows, fresh = [], 1000
    for arrival, prompt, output, shares in zip(arrivals, prompts, outputs, shared, strict=True):
        blocks = -(-int(prompt) // 512)
        common = min(2, blocks) if shares else 0
        own = range(fresh, fresh + blocks - common)
        fresh += blocks
        rows.append(
            Request(
                arrival_s=float(arrival - arrivals[0]),
                input_length=int(prompt),
                output_length=int(output),
                hash_ids=(*range(common), *own),
            )
        )
    return Trace(requests=tuple(rows))


def order_for(trace: Trace, speed: float, arguments: dict[str, Json]) -> Order:
    return Order(
        study="benchmark",
        number=0,
        model="meta-llama/Llama-3.1-8B-Instruct",
        arguments={"max_model_len": 8192, **arguments},
        environment={},
        workload=Workload(trace=trace, speed=speed),
        slo=Slo(),
        gpus=1,
        accelerator="H100",
    )


def replays_per_minute(order: Order, seconds: float) -> float:
    """By CPU time, so that a busy machine does not count; settings and KV pool made anew each time."""
    engine = SimulatedEngine()
    with tempfile.TemporaryDirectory() as folder:
        began, played = time.process_time(), 0
        while time.process_time() - began < seconds or played < 2:
            with engine.serve(order, Path(folder)) as endpoint:
                endpoint.play(order.workload, Limits())
            played += 1
        return 60 * played / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Replays a minute of the simulated engine, by config.")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each config")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    chosen = parser.parse_args()
    trace = chat_trace(REQUESTS, rate=10.0)
    if chosen.profile:
        profile = cProfile.Profile()
        for speed, arguments in CASES.values():
            profile.runcall(replays_per_minute, order_for(trace, speed, arguments), chosen.seconds)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    rates = []
    for name, (speed, arguments) in CASES.items():
        rates.append(replays_per_minute(order_for(trace, speed, arguments), chosen.seconds))
        print(f"{name:24} {rates[-1]:7.0f} replays/min")
    print(f"{'harmonic mean':24} {len(rates) / sum(1 / rate for rate in rates):7.0f} replays/min")


if __name__ == "__main__":
    main()
