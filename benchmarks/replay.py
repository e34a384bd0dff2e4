"""What the replay client costs, and how punctual it is, against a streaming server that costs little.

    python -m benchmarks.replay                            # the three loads below, twice
    python -m benchmarks.replay --load 500,8,10,5 --rounds 4
    python -m benchmarks.replay --tools --guidellm /tmp/guidellm/bin/guidellm   # whole tools instead

Contenders on a load, each in a process of its own, in turn and the order reversed every other round:

- `ours` is `cluster.node.replay`;
- `bare` is the least that can be written over the same library and event loop: it reads each stream to its
  end, looks at nothing and records nothing;
- `vllm` is the request function of `vllm bench serve`, where vLLM is installed, on our event loop.

CPU is that of the client's process from before the first due time to the last record, so what a request
costs beside its chunks is in it. Whole tools (`--tools`) are commands; a command's CPU is that of all its
processes, and its cost a chunk the slope between a short and a long run, which leaves out its start.
"""

import argparse
import asyncio
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection

import aiohttp
import numpy as np

from benchmarks.stream_server import MODEL, PROMPT_TOKENS, Served, allow_files, serving
from cluster.node.client import request_body
from cluster.node.replay import run_loop
from cluster.node.shards import ready
from cluster.settled_memory import settled_memory
from cluster.traffic.workload import Prompt
from objectives.statistics import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests evenly spaced at a rate, each of so many one-token chunks a tick apart."""

    rate: float
    tokens: int
    tick_ms: float
    seconds: float

    @property
    def streams(self) -> float:
        """Open at once, in the steady state."""
        return self.rate * min(self.tokens * self.tick_ms / 1e3, self.seconds)

    def prompts(self) -> list[Prompt]:
        return [
            Prompt(
                request=number,
                due_s=number / self.rate,
                token_ids=tuple(range(number, number + PROMPT_TOKENS)),
                max_tokens=self.tokens,
                input_length=PROMPT_TOKENS,
            )
            for number in range(round(self.rate * self.seconds))
        ]


LOADS = (
    Load(rate=50, tokens=256, tick_ms=10, seconds=6),
    Load(rate=500, tokens=8, tick_ms=10, seconds=6),
    Load(rate=1000, tokens=12, tick_ms=1000, seconds=11),
)

SHORT, LONG = (Load(rate=10, tokens=256, tick_ms=10, seconds=seconds) for seconds in (4, 20))
"""For whole tools. The slowest of them needs about half a core for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one contender used on one load."""

    failed: int
    chunks: int
    cpu_s: float
    wall_s: float
    lateness_s: Sequence[float]
    verdict: str = ""

    @property
    def cpu_us_per_chunk(self) -> float:
        return self.cpu_s / self.chunks * 1e6 if self.chunks else math.nan

    @property
    def line(self) -> str:
        late_ms = np.array(self.lateness_s) * 1e3
        return (
            f"{self.cpu_us_per_chunk:12.1f}  {self.cpu_s / self.wall_s:9.0%}  {np.median(late_ms):11.2f}"
            f"  {quantile(late_ms, 0.99):6.2f}  {self.failed:6d}"
        )


# --- the contenders


async def ours(load: Load, url: str, processes: int) -> Cost:
    prompts = load.prompts()
    began_s: list[float] = []

    def alive() -> None:
        """The watch's first look comes when bodies are made and memory has settled, before the first send."""
        if not began_s:
            began_s.append(time.process_time())

    with ready(prompts, processes=processes, base_url=url, model=MODEL, stuck_s=60, alive=alive) as playing:
        result = await playing()
        cpu_s = time.process_time() - began_s[0]
    wall_s = max((record.finished_s or math.nan) for record in result.records)
    if processes > 1:  # they say what share of a core the busiest took
        cpu_s = result.client_cpu_share * wall_s * processes
    return Cost(
        failed=sum(not record.ok for record in result.records),
        chunks=sum(record.tokens_out for record in result.records),
        cpu_s=cpu_s,
        wall_s=wall_s,
        lateness_s=[record.lateness_s for record in result.records],
        verdict=result.invalid or next((r.error for r in result.records if r.error), None) or "valid",
    )


async def bare(load: Load, url: str, _: int) -> Cost:
    bodies = [request_body(prompt, model=MODEL, temperature=0.0, seed=0) for prompt in load.prompts()]
    headers = {"Content-Type": "application/json"}

    async def send(session: aiohttp.ClientSession, number: int) -> bool:
        try:
            async with session.post(
                url + "/v1/completions", data=bodies[number], headers=headers
            ) as response:
                while await response.content.readany():
                    pass
        except aiohttp.ClientError:
            return False
        return True

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        return await _sent(load, lambda number: send(session, number))


async def vllm(load: Load, url: str, _: int) -> Cost:
    from vllm.benchmarks.lib.endpoint_request_func import (
        RequestFuncInput,
        async_request_openai_completions,
    )

    prompts = load.prompts()

    async def send(session: aiohttp.ClientSession, number: int) -> bool:
        asked = RequestFuncInput(
            prompt=list(prompts[number].token_ids or ()),
            api_url=url + "/v1/completions",
            prompt_len=PROMPT_TOKENS,
            output_len=load.tokens,
            model=MODEL,
            ignore_eos=True,
        )
        said = await async_request_openai_completions(asked, session)
        return bool(said.success)

    # As vllm/benchmarks/serve.py of 0.32.0 makes its session.
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=300, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector, trust_env=True, timeout=aiohttp.ClientTimeout(total=6 * 60 * 60)
    ) as session:
        return await _sent(load, lambda number: send(session, number))


async def _sent(load: Load, send: Callable[[int], Awaitable[bool]]) -> Cost:
    """Send every request when it is due, and see each through."""
    lateness_s: list[float] = []
    answered = 0

    async def sent(number: int, due_s: float) -> None:
        nonlocal answered
        lateness_s.append(time.perf_counter() - due_s)
        done = await send(number)
        answered += done

    allow_files()
    requests = round(load.rate * load.seconds)
    with settled_memory():
        cpu_s = time.process_time()
        start_s = time.perf_counter() + 0.05
        async with asyncio.TaskGroup() as group:
            for number in range(requests):
                due_s = start_s + number / load.rate
                if (early_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                group.create_task(sent(number, due_s))
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - start_s
    return Cost(
        failed=requests - answered,
        chunks=load.tokens * answered,
        cpu_s=cpu_s,
        wall_s=wall_s,
        lateness_s=lateness_s,
    )


CONTENDERS = {"ours": ours, "bare": bare, "vllm": vllm}


def contend(contender: str, load: Load, url: str, processes: int, pipe: Connection) -> None:
    pipe.send(run_loop(CONTENDERS[contender](load, url, processes)))
    os._exit(0)  # vLLM's libraries have much to say where they are taken down


def measured(contender: str, load: Load, processes: int) -> tuple[Cost, Served]:
    """One contender against a server of its own, and what that server did."""
    spawn = multiprocessing.get_context("spawn")
    with serving(load.tokens, load.tick_ms) as server:
        mine, theirs = spawn.Pipe()
        client = spawn.Process(target=contend, args=(contender, load, server.url, processes, theirs))
        client.start()
        theirs.close()
        cost: Cost = mine.recv()
        client.join()
    assert server.served is not None, "it has stopped"
    return cost, server.served


def compare(load: Load, rounds: int, processes: int) -> None:
    print(
        f"\n{load.rate:g} requests/s of {load.tokens} chunks, one each {load.tick_ms:g} ms, "
        f"for {load.seconds:g} s: about {load.streams:.0f} streams at once; {loads_beside()}"
    )
    print("      µs CPU/chunk  CPU share  late p50 ms  p99 ms  failed  server CPU s")
    names = [name for name in CONTENDERS if name != "vllm" or find_spec("vllm") is not None]
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            cost, served = measured(name, load, processes)
            costs[name].append(cost)
            print(f"{name}  {cost.line}  {served.cpu_s:12.1f}  {cost.verdict}")
            sys.stdout.flush()
    medians = {
        name: statistics.median(cost.cpu_us_per_chunk for cost in seen) for name, seen in costs.items()
    }
    for name in names[1:]:
        print(
            f"ours / {name}: {medians['ours'] / medians[name]:.2f} times the CPU a chunk "
            f"({medians['ours']:.1f} against {medians[name]:.1f} µs, medians of {rounds})"
        )
    for name, seen in costs.items():
        late_ms = np.array([late_s for cost in seen for late_s in cost.lateness_s]) * 1e3
        p50_ms, p99_ms = np.median(late_ms), quantile(late_ms, 0.99)
        print(f"{name} sent late, all rounds: p50 {p50_ms:.2f}, p99 {p99_ms:.2f} ms")


def loads_beside() -> str:
    return f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"


# --- whole tools


def commands(url: str, load: Load, tokenizer: str, guidellm: str | None) -> Mapping[str, Sequence[str]]:
    """Each tool's own command for this load."""
    from benchmarks.against_vllm_bench import BENCH  # here, so that no contender's process loads it

    requests = str(round(load.rate * load.seconds))
    shape = f"{load.rate:g},{load.tokens},{load.tick_ms:g},{load.seconds:g}"
    found = {"ours": [sys.executable, "-m", "benchmarks.replay", "--load", shape, "--play", url]}
    if find_spec("vllm") is not None:
        found["vllm bench serve"] = [
            *(sys.executable, "-c", BENCH, "--backend", "openai", "--base-url", url, "--model", MODEL),
            *("--endpoint", "/v1/completions", "--tokenizer", tokenizer, "--dataset-name", "random"),
            *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)),
            *("--ignore-eos", "--num-prompts", requests, "--request-rate", f"{load.rate:g}"),
        ]
    if guidellm is not None:
        found["guidellm"] = [
            *(guidellm, "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions"),
            *("--profile", f"kind=constant,rate={load.rate:g}"),
            *("--constraint", f"kind=max_requests,count={requests}"),
            *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"),
        ]
    return found


def cpu_of(command: Sequence[str], folder: str) -> float:
    """Run a command to its end in that folder; CPU seconds of it and of all that it started."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "HF_HUB_OFFLINE": "1"}
    with open(os.path.join(folder, "said"), "w+b") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            tail = said.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"error: {command[0]} ended with status {process.returncode}:\n{tail}")
    return used.ru_utime + used.ru_stime


def compare_tools(rounds: int, tokenizer: str, guidellm: str | None) -> None:
    print(f"\n{SHORT.rate:g} requests/s of {SHORT.tokens} chunks, whole tools; {loads_beside()}")
    print("                  CPU s of 4 s  of 20 s  µs CPU/chunk between  requests of 20 s")
    slopes: dict[str, list[float]] = {}
    for turn in range(rounds):
        names = list(commands("", SHORT, tokenizer, guidellm))
        for name in names if turn % 2 == 0 else reversed(names):
            spent: list[tuple[float, Served]] = []
            for load in (SHORT, LONG):
                with serving(load.tokens, load.tick_ms) as server, tempfile.TemporaryDirectory() as folder:
                    cpu_s = cpu_of(commands(server.url, load, tokenizer, guidellm)[name], folder)
                assert server.served is not None, "it has stopped"
                spent.append((cpu_s, server.served))
            (short_s, short), (long_s, long) = spent
            slope = (long_s - short_s) / (long.chunks - short.chunks) * 1e6
            slopes.setdefault(name, []).append(slope)
            print(f"{name:16s}  {short_s:12.1f}  {long_s:7.1f}  {slope:20.1f}  {long.requests:16d}")
            sys.stdout.flush()
    for name, seen in slopes.items():
        print(f"{name}: {statistics.median(seen):.1f} µs CPU a chunk (median of {rounds})")


def load_of(text: str) -> Load:
    try:
        rate, tokens, tick_ms, seconds = text.split(",")
        return Load(rate=float(rate), tokens=int(tokens), tick_ms=float(tick_ms), seconds=float(seconds))
    except ValueError:
        raise argparse.ArgumentTypeError("want RATE,TOKENS,TICK_MS,SECONDS such as 500,8,10,5") from None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", type=load_of, action="append", metavar="RATE,TOKENS,TICK_MS,SECONDS")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1, help="of ours")
    parser.add_argument("--tools", action="store_true", help="compare whole tools instead")
    parser.add_argument("--guidellm", metavar="COMMAND", help="where GuideLLM is installed")
    parser.add_argument(
        "--tokenizer", default="runs/models/SmolLM2-135M-Instruct", help="for the tools' random prompts"
    )
    parser.add_argument("--play", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play is not None:
        run_loop(ours(arguments.load[0], arguments.play, 1))
    elif arguments.tools:
        compare_tools(arguments.rounds, os.path.abspath(arguments.tokenizer), arguments.guidellm)
    else:
        for load in arguments.load or LOADS:
            compare(load, arguments.rounds, arguments.processes)


if __name__ == "__main__":
    main()
