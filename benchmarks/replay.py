"""What the replay client costs, and how punctual it is, against a streaming server that costs little.

    python -m benchmarks.replay                            # the three loads below, twice, in alternation
    python -m benchmarks.replay --load 500,8,10,5 --rounds 4

The server runs in a process of its own and sends every stream one chunk of vLLM's shape each tick. Each
contender runs in a fresh process too: `ours` is `cluster.node.replay`; `bare` is the least that can be
written over the same library and event loop: it reads each stream to its end, looks at nothing and records
nothing. CPU is that of the client's process from the first due time to the last record, so what a request
costs beside its chunks is in it.
"""

import argparse
import asyncio
import gc
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal, cast

import aiohttp
import numpy as np

from cluster.node.client import Call, request_body
from cluster.node.replay import replay, run_loop
from cluster.traffic.workload import Prompt
from objectives.statistics import quantile

MODEL = "model"
PROMPT_TOKENS = 512
Contender = Literal["ours", "bare"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one contender used on one load."""

    requests: int
    failed: int
    chunks: int
    cpu_s: float
    wall_s: float
    late_p50_ms: float
    late_p99_ms: float
    rss_mb: float
    verdict: str

    @property
    def cpu_us_per_chunk(self) -> float:
        return self.cpu_s / self.chunks * 1e6 if self.chunks else math.nan


# --- the server


WHEEL_MS = 10
"""The server looks at its streams this often; each gets a chunk when its own tick has passed."""


class Stream(asyncio.Protocol):
    """One connection: answers each request in turn, from pieces made beforehand."""

    wheel: "list[list[Stream]]"
    """Streams by the turn in which they get their next chunk; one slot is one turn."""
    turn: int
    pieces: Sequence[bytes]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without deriving from it
        self.sent = 0
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data
        head, found, body = self.heard.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if found and len(body) >= int(length):
            self.heard = b""
            self.sent = 0
            self.wheel[self.turn - 1].append(self)

    def tick(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(self.pieces[self.sent])
        self.sent += 1
        if self.sent < len(self.pieces):
            self.wheel[self.turn - 1].append(self)

    @classmethod
    def tick_all(cls) -> None:
        """One turn of the wheel."""
        due, cls.wheel[cls.turn] = cls.wheel[cls.turn], []
        cls.turn = (cls.turn + 1) % len(cls.wheel)
        for stream in due:
            stream.tick()


def pieces(tokens: int) -> list[bytes]:
    """An answer's parts as they go over the wire: 300 bytes a chunk, as vLLM's with continuous usage."""

    def framed(*events: bytes) -> bytes:
        return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)

    def event(choices: list[dict[str, object]], served: int) -> bytes:
        chunk = {
            "id": "cmpl-0f3c1f2b8a4d4e0f9a7b6c5d4e3f2a1b",
            "object": "text_completion",
            "created": 1_796_020_757,
            "model": MODEL,
            "choices": choices,
            "usage": {
                "prompt_tokens": PROMPT_TOKENS,
                "total_tokens": PROMPT_TOKENS + served,
                "completion_tokens": served,
            },
        }
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    parts = [
        framed(
            event(
                [
                    {
                        "index": 0,
                        "text": " word",
                        "logprobs": None,
                        "finish_reason": "length" if served == tokens else None,
                    }
                ],
                served,
            )
        )
        for served in range(1, tokens + 1)
    ]
    parts[0] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + parts[0]
    )
    parts[-1] += framed(event([], tokens), b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return parts


def serve(load: Load, pipe: Connection) -> None:
    """Serve until the pipe says to stop; tells its port, and at the end its own CPU seconds."""

    async def main() -> None:
        Stream.wheel = [[] for _ in range(max(1, round(load.tick_ms / WHEEL_MS)))]
        Stream.turn, Stream.pieces = 0, pieces(load.tokens)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Stream, "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        due_s = loop.time()
        while not pipe.poll():
            due_s = max(due_s + WHEEL_MS / 1e3, loop.time())
            await asyncio.sleep(due_s - loop.time())
            Stream.tick_all()
        pipe.send(time.process_time())
        server.close()

    allow_files()
    run_loop(main())


def allow_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- the contenders


async def ours(load: Load, url: str) -> Cost:
    prompts = load.prompts()
    cpu_s = time.process_time()
    result = await replay(prompts, base_url=url, model=MODEL, stuck_s=60, alive=lambda: None)
    cpu_s = time.process_time() - cpu_s
    lateness = [record.lateness_s for record in result.records]
    return Cost(
        requests=len(prompts),
        failed=sum(not record.ok for record in result.records),
        chunks=sum(record.tokens_out for record in result.records),
        # Making the bodies is before the first due time, for both.
        cpu_s=cpu_s - bodies_cpu_s(prompts),
        wall_s=max((record.finished_s or math.nan) for record in result.records),
        late_p50_ms=statistics.median(lateness) * 1e3,
        late_p99_ms=quantile(np.array(lateness), 0.99) * 1e3,
        rss_mb=rss_mb(),
        verdict=result.invalid or next((r.error for r in result.records if r.error), None) or "valid",
    )


def bodies_cpu_s(prompts: Sequence[Prompt]) -> float:
    """CPU seconds of making all the requests once more."""
    start_s = time.process_time()
    for prompt in prompts:
        Call(prompt, model=MODEL, temperature=0.0, seed=0)
    return time.process_time() - start_s


async def bare(load: Load, url: str) -> Cost:
    prompts = load.prompts()
    bodies = [request_body(prompt, model=MODEL, temperature=0.0, seed=0) for prompt in prompts]
    headers = {"Content-Type": "application/json"}
    lateness: list[float] = []
    failed = 0

    async def send(due_s: float, body: bytes) -> None:
        nonlocal failed
        lateness.append(time.perf_counter() - due_s)
        try:
            async with session.post(url + "/v1/completions", data=body, headers=headers) as response:
                while await response.content.readany():
                    pass
        except aiohttp.ClientError:
            failed += 1

    gc.collect()
    gc.freeze()
    allow_files()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        cpu_s = time.process_time()
        start_s = time.perf_counter() + 0.05
        async with asyncio.TaskGroup() as group:
            for prompt, body in zip(prompts, bodies, strict=True):
                due_s = start_s + prompt.due_s
                if (early_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                group.create_task(send(due_s, body))
        cpu_s = time.process_time() - cpu_s
    return Cost(
        requests=len(prompts),
        failed=failed,
        chunks=load.tokens * (len(prompts) - failed),
        cpu_s=cpu_s,
        wall_s=time.perf_counter() - start_s,
        late_p50_ms=statistics.median(lateness) * 1e3,
        late_p99_ms=quantile(np.array(lateness), 0.99) * 1e3,
        rss_mb=rss_mb(),
        verdict="",
    )


def rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def contend(contender: Contender, load: Load, url: str, pipe: Connection) -> None:
    pipe.send(run_loop(ours(load, url) if contender == "ours" else bare(load, url)))


def measured(contender: Contender, load: Load) -> tuple[Cost, float]:
    """One contender against a server of its own; its cost, and the server's CPU seconds."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    server = spawn.Process(target=serve, args=(load, there))
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    mine, theirs = spawn.Pipe()
    client = spawn.Process(target=contend, args=(contender, load, url, theirs))
    client.start()
    theirs.close()
    cost: Cost = mine.recv()
    client.join()
    here.send("stop")
    server_cpu_s: float = here.recv()
    server.join()
    return cost, server_cpu_s


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
    arguments = parser.parse_args()
    for load in arguments.load or LOADS:
        print(
            f"\n{load.rate:g} requests/s of {load.tokens} chunks, one each {load.tick_ms:g} ms, "
            f"for {load.seconds:g} s: about {load.streams:.0f} streams at once"
        )
        print("       µs CPU/chunk  CPU share  late p50 ms  p99 ms  RSS MB  failed  server CPU s  verdict")
        costs: dict[Contender, list[float]] = {"ours": [], "bare": []}
        for _ in range(arguments.rounds):
            for contender, seen in costs.items():
                cost, server_cpu_s = measured(contender, load)
                seen.append(cost.cpu_us_per_chunk)
                print(
                    f"{contender}   {cost.cpu_us_per_chunk:12.1f}  {cost.cpu_s / cost.wall_s:9.0%}"
                    f"  {cost.late_p50_ms:11.2f}  {cost.late_p99_ms:6.2f}  {cost.rss_mb:6.0f}"
                    f"  {cost.failed:6d}  {server_cpu_s:12.1f}  {cost.verdict}"
                )
                sys.stdout.flush()
        ratio = statistics.median(costs["ours"]) / statistics.median(costs["bare"])
        print(f"ours costs {ratio:.2f} times the bare loop's CPU per chunk (medians of {arguments.rounds})")


if __name__ == "__main__":
    main()
