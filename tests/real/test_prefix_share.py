"""The share of prompts that a trace's ids promise is what a real engine's prefix cache finds."""

from pathlib import Path

import pytest

from cluster.node.vllm_server import VllmEngine
from cluster.order import Limits, Order
from cluster.traffic.cut import cap, window
from cluster.traffic.request import Request
from cluster.traffic.show import hit_share
from cluster.traffic.trace import Trace, read_trace
from cluster.traffic.workload import Workload
from objectives.counters import growth
from objectives.slo import Slo

pytestmark = pytest.mark.real

TRACES = Path(__file__).parents[3] / "shared" / "traces"
CONTEXT = 1300
"""Two whole Mooncake blocks of 512 tokens and some more, with the answer."""


def mooncake_window() -> Trace:
    """Fourteen requests of the public trace, or as many of its shape where it is not at hand."""
    path = TRACES / "mooncake_conversation.jsonl"
    if path.exists():
        trace = window(read_trace(path), end_s=30.0)
        requests = trace.requests[:14]
    else:
        requests = tuple(
            Request(
                arrival_s=float(at),
                input_length=900 + 7 * at,
                output_length=9,
                hash_ids=(0, at % 5 + 1, 100 + at),
            )
            for at in range(14)
        )
    short = tuple(
        Request(
            arrival_s=request.arrival_s,
            input_length=request.input_length,
            output_length=4,
            hash_ids=request.hash_ids,
        )
        for request in requests
    )
    return cap(Trace(requests=short, block_tokens=512), CONTEXT)


def test_the_engines_counter_agrees_with_the_ids_of_a_mooncake_window(
    small_model: Path, tmp_path: Path
) -> None:
    trace = mooncake_window()
    order = Order(
        study="test",
        number=0,
        model=str(small_model),
        arguments={
            "max_model_len": CONTEXT,
            "dtype": "bfloat16",
            "enforce_eager": True,
            "enable_prefix_caching": True,
            # Nothing is evicted: all prompts fit at once, at 23,040 bytes a token.
            "kv_cache_memory_bytes": 2**30,
            "max_num_seqs": 1,
            "max_num_batched_tokens": CONTEXT,
        },
        environment={},
        # One after the other and all due at once: a prompt's blocks are there when the next one is looked up.
        workload=Workload(trace=trace, speed=1e3, tokenizer=str(small_model)),
        slo=Slo(),
        limits=Limits(),
    )
    with VllmEngine().serve(order, tmp_path) as endpoint:
        endpoint.warm_up(order.workload)
        endpoint.reset_caches()
        replay = endpoint.play(order.workload, order.limits)
        block = endpoint.effective["block_size"]
    assert all(record.ok for record in replay.records)
    assert isinstance(block, int)
    promised = hit_share(trace, engine_block=block)
    assert promised > 0.1
    prompts = sum(request.input_length for request in trace.requests)
    hits = growth(replay.samples, lambda sample: sample.prefix_hits_total)
    queries = growth(replay.samples, lambda sample: sample.prefix_queries_total)
    assert hits is not None
    assert queries == prompts
    assert hits / queries == pytest.approx(promised, abs=1e-9)
    # What the engine says of each request adds up to the same.
    assert sum(record.cached_tokens or 0 for record in replay.records) == hits
