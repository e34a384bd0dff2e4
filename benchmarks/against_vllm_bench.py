"""One server, one trace, two load generators in turn: our replay against vLLM's own `bench serve`.

    python -m benchmarks.against_vllm_bench --model runs/models/SmolLM2-135M-Instruct --pairs 4

A vLLM server is started once. A pair is one play of the trace by ours and one by theirs, one right after
the other; which of them goes first alternates, so that drift favours neither. Ours is the play of a trial,
its scrapes of the counters included; theirs reads the same file through its `timed_trace` dataset. Prompts
have the same lengths but other content, so the server's prefix cache is off; a dense model takes as long
for any text.

Numbers are compared in their definitions and in ours, latencies also request by request, and each side's
mean with that of the server's own histogram. Ratios are geometric means over the pairs, with Student's
95 % interval.
docs/replay.md says where the definitions differ.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.stats import t as student

from cluster.node.counters import readings
from cluster.node.server_api import ServerApi
from cluster.node.vllm_server import VllmEndpoint, VllmEngine
from cluster.order import Order
from cluster.traffic.make import Recipe, make_trace
from cluster.traffic.trace import Trace, write_trace
from cluster.traffic.workload import Workload
from objectives.measurement import Estimate, Record
from objectives.metrics import METRICS
from objectives.slo import Slo
from objectives.statistics import compare
from objectives.summary import summarise

Side = Literal["ours", "theirs"]

BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "parser = FlexibleArgumentParser()\n"
    "add_cli_args(parser)\n"
    "main(parser.parse_args())\n"
)
"""What `vllm bench serve` runs. The command itself looks for a distribution called vllm, so it fails with
the CPU build."""

_BLOCK = 16
"""Tokens a block of the trace, and theirs by default."""

_SETTLED_S = 0.5
"""From a client's last token to the counters' reading, for the server to have counted it."""

_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
_TOKENS = {"prompt": "vllm:prompt_tokens_total", "output": "vllm:generation_tokens_total"}

_OUR_METRICS = (
    "throughput_rps",
    "throughput_tokens_per_s",
    *(f"{latency}_{point}_s" for latency in ("ttft", "tpot", "itl", "e2e") for point in ("p50", "p90")),
)


class BenchResult(BaseModel):
    """What is read of the file that theirs saves. Seconds, unless a name says otherwise."""

    duration: float
    completed: int
    failed: int
    request_throughput: float
    output_throughput: float
    mean_ttft_ms: float
    median_ttft_ms: float
    p90_ttft_ms: float
    mean_tpot_ms: float
    median_tpot_ms: float
    p90_tpot_ms: float
    mean_itl_ms: float
    median_itl_ms: float
    p90_itl_ms: float
    mean_e2el_ms: float
    median_e2el_ms: float
    p90_e2el_ms: float
    input_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    start_times: tuple[float, ...]
    """When each request was sent, on its process's clock."""
    ttfts: tuple[float, ...]
    itls: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The server's counters at one time: sums and counts of its histograms by latency, tokens by kind."""

    sums_s: Mapping[str, float]
    counts: Mapping[str, float]
    tokens: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One play of the trace by one side."""

    records: tuple[Record, ...]
    their_terms: Mapping[str, float]
    """In their definitions, as they name them; for theirs these are the numbers that it printed."""
    server_mean_s: Mapping[str, float]
    """Means of the server's own histograms over this play, by latency."""
    server_tokens: Mapping[str, int]


def trace_of(requests: int, rate: float, seed: int) -> Trace:
    """Independent requests of about 200 prompt and 30 output tokens, Poisson arrivals."""
    return make_trace(
        Recipe(
            requests=requests,
            rate=rate,
            input_mean=200,
            input_max=1024,
            output_mean=30,
            output_max=128,
            block_tokens=_BLOCK,
            seed=seed,
        )
    )


def order_for(model: str, trace: Trace) -> Order:
    return Order(
        study="benchmark",
        number=0,
        model=model,
        arguments={
            "max_model_len": 2048,
            "dtype": "bfloat16",
            "enforce_eager": True,
            "kv_cache_memory_bytes": 2**30,
            "enable_prefix_caching": False,
        },
        environment={},
        workload=Workload(trace=trace, tokenizer=model),
        slo=Slo(),
    )


def counted(endpoint: VllmEndpoint) -> Counted:
    """Read the server's counters. Raises Unreachable."""
    port = urlsplit(endpoint.base_url).port
    assert port is not None, "the endpoint's address always has one"
    text = ServerApi(port=port).get("/metrics").text

    def total(name: str) -> float:
        return sum(reading.value for reading in readings(text, {name}))

    return Counted(
        sums_s={latency: total(f"{name}_sum") for latency, name in _HISTOGRAMS.items()},
        counts={latency: total(f"{name}_count") for latency, name in _HISTOGRAMS.items()},
        tokens={kind: total(name) for kind, name in _TOKENS.items()},
    )


def play(side: Side, endpoint: VllmEndpoint, order: Order, folder: Path) -> Played:
    """Play the trace once and read the server's counters around it."""
    before = counted(endpoint)
    if side == "ours":
        replay = endpoint.play(order.workload, order.limits)
        if replay.invalid is not None:
            print(f"ours calls this replay void: {replay.invalid}", file=sys.stderr)
        records, their_terms = replay.records, in_their_terms(replay.records)
    else:
        result = bench(endpoint, order, folder)
        records, their_terms = as_records(result, order.workload.trace), printed(result)
    if failed := sum(not record.ok for record in records):
        raise SystemExit(f"error: {failed} of {len(records)} requests of {side} failed; nothing is compared")
    time.sleep(_SETTLED_S)
    after = counted(endpoint)
    return Played(
        records=records,
        their_terms=their_terms,
        server_mean_s={
            latency: (after.sums_s[latency] - before.sums_s[latency])
            / (after.counts[latency] - before.counts[latency])
            for latency in _HISTOGRAMS
        },
        server_tokens={kind: round(after.tokens[kind] - before.tokens[kind]) for kind in _TOKENS},
    )


def bench(endpoint: VllmEndpoint, order: Order, folder: Path) -> BenchResult:
    """Play the trace with theirs, in a process of its own."""
    trace, result = folder / "trace.jsonl", folder / "bench.json"
    write_trace(order.workload.trace, trace)
    command = (
        *(sys.executable, "-c", BENCH),
        *("--backend", "openai"),
        *("--base-url", endpoint.base_url),
        *("--model", order.model),
        *("--served-model-name", endpoint.served_name),
        *("--dataset-name", "timed_trace"),
        *("--dataset-path", str(trace)),
        *("--timed-trace-chunk-hash-size", str(_BLOCK)),
        *("--timed-trace-sec-multiplier", "0.001"),  # our traces count milliseconds
        *("--num-prompts", str(len(order.workload.trace.requests))),
        *("--temperature", str(order.workload.temperature)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--metric-percentiles", "90"),
        *("--save-result", "--save-detailed", "--disable-tqdm"),
        *("--result-dir", str(folder)),
        *("--result-filename", result.name),
    )
    # Its prompts are drawn from Python's hash of the block ids: fixed, so that every play has the same.
    environment = os.environ | {"PYTHONHASHSEED": "0", "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: vLLM's benchmark ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return BenchResult.model_validate(json.loads(result.read_bytes()))


def as_records(result: BenchResult, trace: Trace) -> tuple[Record, ...]:
    """Theirs as our records, on a clock that starts when its first request was sent.

    It does not save when its schedule began, so the first request counts as punctual.
    """
    records = []
    rows = zip(
        trace.requests,
        result.input_lens,
        result.output_lens,
        result.start_times,
        result.ttfts,
        result.itls,
        strict=True,
    )
    for index, (request, tokens_in, tokens_out, start, ttft, itl) in enumerate(rows):
        sent_s = start - result.start_times[0] + trace.requests[0].arrival_s
        chunk_s = tuple(sent_s + after for after in itertools.accumulate(itl, initial=ttft))
        chunk_tokens = tuple(range(1, len(chunk_s) + 1))
        if len(chunk_s) != tokens_out:  # some chunk had several, and it does not save which
            chunk_s, chunk_tokens = (chunk_s[0], chunk_s[-1]), (1, tokens_out)
        complete = ttft > 0 and tokens_out == request.output_length
        records.append(
            Record(
                request=index,
                due_s=request.arrival_s,
                sent_s=sent_s,
                chunk_s=chunk_s,
                chunk_tokens=chunk_tokens,
                finished_s=chunk_s[-1],
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                tokens_asked=request.output_length,
                error=None if complete else f"served {tokens_out} of {request.output_length} tokens",
            )
        )
    return tuple(records)


def printed(result: BenchResult) -> dict[str, float]:
    """Theirs, the numbers of its own report."""
    return {
        "request throughput (req/s)": result.request_throughput,
        "output throughput (tok/s)": result.output_throughput,
        "TTFT mean (ms)": result.mean_ttft_ms,
        "TTFT median (ms)": result.median_ttft_ms,
        "TTFT p90 (ms)": result.p90_ttft_ms,
        "TPOT mean (ms)": result.mean_tpot_ms,
        "TPOT median (ms)": result.median_tpot_ms,
        "TPOT p90 (ms)": result.p90_tpot_ms,
        "ITL mean (ms)": result.mean_itl_ms,
        "ITL median (ms)": result.median_itl_ms,
        "ITL p90 (ms)": result.p90_itl_ms,
        "E2E mean (ms)": result.mean_e2el_ms,
        "E2E median (ms)": result.median_e2el_ms,
        "E2E p90 (ms)": result.p90_e2el_ms,
    }


def in_their_terms(records: Sequence[Record]) -> dict[str, float]:
    """Answered requests in their definitions (vllm/benchmarks/serve.py of 0.32.0).

    Latencies count from the sending, TPOT is (E2E − TTFT) / (tokens − 1), ITL has one gap a chunk (here one
    a token, as without speculation), rates are per second from the replay's start to its last answer,
    percentiles are interpolated.
    """
    answered = [record for record in records if record.ok]
    duration_s = max(record.finished_s or 0.0 for record in answered)
    sent = np.array([record.sent_s for record in answered])
    ttft = np.array([record.chunk_s[0] for record in answered]) - sent
    e2e = np.array([record.chunk_s[-1] for record in answered]) - sent
    tokens = np.array([record.tokens_out for record in answered])
    several = tokens > 1
    tpot = (e2e - ttft)[several] / (tokens[several] - 1)
    itl = np.concatenate([_chunk_gaps_s(record) for record in answered])
    terms = {
        "request throughput (req/s)": len(answered) / duration_s,
        "output throughput (tok/s)": float(tokens.sum()) / duration_s,
    }
    for name, took_s in {"TTFT": ttft, "TPOT": tpot, "ITL": itl, "E2E": e2e}.items():
        terms |= _distribution(name, took_s)
    return terms


def _chunk_gaps_s(record: Record) -> NDArray[np.float64]:
    """Gaps as theirs takes them: of chunks that one read brings, all but the first come after no time."""
    at = np.repeat(record.chunk_s, np.diff(record.chunk_tokens, prepend=0))
    return np.diff(at)


def _distribution(name: str, took_s: NDArray[np.float64]) -> dict[str, float]:
    return {
        f"{name} mean (ms)": float(took_s.mean()) * 1e3,
        f"{name} median (ms)": float(np.median(took_s)) * 1e3,
        f"{name} p90 (ms)": float(np.percentile(took_s, 90)) * 1e3,
    }


def in_our_terms(records: Sequence[Record]) -> dict[str, float]:
    """A play as a trial would measure it, by the names and in the units that people read."""
    measured = summarise(records, (), slo=Slo(), max_num_seqs=None).metrics
    return {
        metric.shown: metric.factor * measured[name].value
        for name, metric in METRICS.items()
        if name in _OUR_METRICS
    }


def client_means_s(records: Sequence[Record]) -> dict[str, float]:
    """Means over requests and chunks, from the sending: what a histogram's sum and count give."""
    terms = in_their_terms(records)
    return {latency: terms[f"{latency.upper()} mean (ms)"] / 1e3 for latency in _HISTOGRAMS}


def paired(differences: Sequence[float]) -> Estimate:
    """Mean of one difference a pair, with Student's 95 % interval."""
    mean, n = float(np.mean(differences)), len(differences)
    if n < 2:
        return Estimate(value=mean)
    half = float(student.ppf(0.975, n - 1)) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half)


def ratio_cells(ratios: Sequence[float]) -> str:
    """Geometric mean of one ratio a pair, its interval, and whether that holds 1."""
    log = paired([math.log(ratio) for ratio in ratios])
    if log.low is None or log.high is None:
        return f"{math.exp(log.value):.3f} | "
    interval = f"{math.exp(log.low):.3f}–{math.exp(log.high):.3f}"
    return f"{math.exp(log.value):.3f} ({interval}) | {'yes' if log.low <= 0 <= log.high else 'no'}"


def table(title: str, ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> str:
    """Means over the plays of each side, and their paired ratio; one row a metric."""
    lines = [
        f"| {title} | ours | theirs | ours / theirs (95 %) | holds 1 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ours[0]:
        a, b = [terms[name] for terms in ours], [terms[name] for terms in theirs]
        cells = ratio_cells([above / below for above, below in zip(a, b, strict=True)])
        lines.append(f"| {name} | {np.mean(a):.5g} | {np.mean(b):.5g} | {cells} |")
    return "\n".join(lines)


def request_by_request(ours: Sequence[Played], theirs: Sequence[Played]) -> str:
    """The same request's latencies in both plays of a pair, as two trials are compared."""
    lines = [
        "| geometric mean over the same requests | ours / theirs (95 %) | holds 1 |",
        "| --- | --- | --- |",
    ]
    metrics: tuple[Literal["ttft_s", "tpot_s", "e2e_s"], ...] = ("ttft_s", "tpot_s", "e2e_s")
    for metric in metrics:
        pairs = zip(ours, theirs, strict=True)
        ratios = [compare(mine.records, other.records, metric).ratio for mine, other in pairs]
        lines.append(f"| {metric.removesuffix('_s').upper()} | {ratio_cells(ratios)} |")
    return "\n".join(lines)


def server_table(ours: Sequence[Played], theirs: Sequence[Played]) -> str:
    """What each client saw beyond the server's own histogram of the same play, and how far that differs."""
    lines = [
        "| mean from the sending, ms | ours | server | more | theirs | server | more | apart (95 %) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for latency in _HISTOGRAMS:
        cells, more = [], []
        for side in (ours, theirs):
            client = np.array([client_means_s(played.records)[latency] for played in side]) * 1e3
            server = np.array([played.server_mean_s[latency] for played in side]) * 1e3
            more.append(client - server)
            cells.append(f"{client.mean():.2f} | {server.mean():.2f} | {more[-1].mean():+.2f}")
        apart = paired(list(more[0] - more[1]))
        interval = "" if apart.low is None else f" ({apart.low:+.2f} to {apart.high:+.2f})"
        lines.append(f"| {latency.upper()} | {' | '.join(cells)} | {apart.value:+.2f}{interval} |")
    return "\n".join(lines)


def recomputed_within(theirs: Sequence[Played]) -> float:
    """The largest relative difference between a latency it printed and ours made of its requests' times."""
    return max(
        abs(value / played.their_terms[name] - 1)
        for played in theirs
        for name, value in in_their_terms(played.records).items()
        if name.endswith("(ms)")
    )


def token_lines(plays: Mapping[Side, Sequence[Played]]) -> str:
    """Whether each client counted the tokens that the server did, in every play."""
    lines = []
    for side, played in plays.items():
        by_client = [
            {"prompt": sum(r.tokens_in for r in p.records), "output": sum(r.tokens_out for r in p.records)}
            for p in played
        ]
        by_server = [dict(p.server_tokens) for p in played]
        verdict = "equal in every play" if by_client == by_server else "DIFFER"
        lines.append(f"tokens, {side}: client {by_client[0]}, server {by_server[0]}: {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a local folder with the model and its tokenizer")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=2.0, help="requests/s")
    parser.add_argument("--seed", type=int, default=0, help="of the trace")
    asked = parser.parse_args()
    order = order_for(asked.model, trace_of(asked.requests, asked.rate, asked.seed))
    plays: dict[Side, list[Played]] = {"ours": [], "theirs": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        VllmEngine().serve(order, Path(folder)) as endpoint,
    ):
        endpoint.warm_up(order.workload)
        for pair in range(asked.pairs):
            sides: tuple[Side, Side] = ("ours", "theirs") if pair % 2 == 0 else ("theirs", "ours")
            for side in sides:
                plays[side].append(played := play(side, endpoint, order, Path(folder)))
                shown = (
                    f"{name} {played.their_terms[name]:.4g}" for name in ("TTFT mean (ms)", "TPOT mean (ms)")
                )
                load = os.getloadavg()[0]
                print(f"pair {pair + 1}, {side}: {', '.join(shown)} (load {load:.1f})", file=sys.stderr)
        requests = order.workload.trace.requests
        tokens_in = sum(request.input_length for request in requests)
        tokens_out = sum(request.output_length for request in requests)
        print(
            f"vLLM {endpoint.version} on {endpoint.hardware}; {len(requests)} requests of {tokens_in} prompt "
            f"and {tokens_out} output tokens in all; {asked.pairs} pairs\n"
        )
    ours, theirs = plays["ours"], plays["theirs"]
    their_terms = [[played.their_terms for played in side] for side in (ours, theirs)]
    our_terms = [[in_our_terms(played.records) for played in side] for side in (ours, theirs)]
    print(table("their definitions", *their_terms), end="\n\n")
    print(table("our definitions", *our_terms), end="\n\n")
    print(request_by_request(ours, theirs), end="\n\n")
    print(server_table(ours, theirs), end="\n\n")
    print(token_lines(plays))
    print(f"its latencies, recomputed from its requests' times: within {recomputed_within(theirs):.1e}")


if __name__ == "__main__":
    main()
