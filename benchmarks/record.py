"""What `tuner trace record` adds to a stream's latency, against a local server that costs little.

    python benchmarks/record.py --streams 32 --seconds 20 --model runs/models/SmolLM2-135M-Instruct

Two clients stream from the same server at once, one directly and one through the proxy, each at half of the
streams; so both see the same machine. Every chunk carries the time at which the server wrote it, and a
chunk's delay is the time at which the client read it less that. What the proxy adds is the difference of
the two clients' delays. Processes: server, proxy, client; they share the machine's cores.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import aiohttp
import numpy as np
import psutil

from cluster.traffic.recording.proxy import loop_factory

TICK_S = 0.01
"""Between two chunks of a stream: a model that makes 100 tokens a second."""

_FILLER = b" " * 120
"""Makes a chunk as long as vLLM's: 200 bytes."""

_STAMP = re.compile(rb'"at":([0-9.]+)')


class Stream(asyncio.Protocol):
    """One connection of the server: every request gets a stream of chunks, one a tick."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.waiting = b""
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        head, found, body = self.waiting.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if found and len(body) >= (int(length[1]) if length else 0):
            self.waiting = b""
            task = asyncio.ensure_future(self.answer())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(self.chunks):
            await asyncio.sleep(TICK_S)
            piece = b'data: {"at":%.6f,"choices":[{"index":0,"delta":{"content":" word"}}]}%s\n\n'
            self.write(piece % (time.perf_counter(), _FILLER))
        self.write(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def write(self, piece: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def serve(port_to: Connection, chunks: int) -> None:
    """The server's process."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Stream(chunks), "127.0.0.1", 0)
        port_to.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


@contextmanager
def serving(chunks: int) -> Iterator[str]:
    """The server's address while it runs."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, chunks), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


@contextmanager
def recording(server: str, model: str, out: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The proxy's address and process, as a user starts it."""
    command = ["trace", "record", "--to", server, "--out", str(out), "--model", model, "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from tuner.cli import main; main()", *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert address is not None
        yield address[0], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        print(process.stdout.read().strip())
        process.wait()


async def stream(
    client: aiohttp.ClientSession, address: str, body: bytes, until: float, delays: list[float]
) -> None:
    """Ask for one stream after the other until it is time."""
    headers = {"Content-Type": "application/json"}
    while time.perf_counter() < until:
        async with client.post(f"{address}/v1/chat/completions", data=body, headers=headers) as response:
            async for chunk in response.content.iter_any():
                now = time.perf_counter()
                delays += [now - float(at) for at in _STAMP.findall(chunk)]


async def measure(
    direct: str, proxied: str, streams: int, seconds: float, words: int
) -> tuple[list[float], list[float]]:
    """Delays of chunks by both ways, at the same time."""
    message = {"role": "user", "content": " ".join(f"w{i % 997}" for i in range(words))}
    body = json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()
    delays: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(streams):
            way = number % 2
            group.create_task(stream(client, (direct, proxied)[way], body, until, delays[way]))
    return delays


def milliseconds(delays: list[float]) -> str:
    """Percentiles of delays in one line."""
    p50, p90, p99 = np.percentile(np.array(delays) * 1000, (50, 90, 99), method="higher")
    return f"P50 {p50:6.3f}  P90 {p90:6.3f}  P99 {p99:6.3f} ms  ({len(delays)} chunks)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, help="folder or hub id of the tokenizer that the proxy uses"
    )
    parser.add_argument("--streams", type=int, default=32, help="half of them through the proxy")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--words", type=int, default=1000, help="of each prompt, which the proxy tokenises")
    parser.add_argument("--chunks", type=int, default=200, help="of each answer")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(asked.chunks) as server,
        recording(server, asked.model, Path(folder) / "t.jsonl") as (proxy, process),
    ):
        before = sum(process.cpu_times()[:2])
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            direct, through = runner.run(measure(server, proxy, asked.streams, asked.seconds, asked.words))
        cpu_s = sum(process.cpu_times()[:2]) - before
    print(f"direct   {milliseconds(direct)}")
    print(f"proxied  {milliseconds(through)}")
    added = np.percentile(through, (50, 99)) - np.percentile(direct, (50, 99))
    print(f"added    P50 {added[0] * 1000:.3f} ms, P99 {added[1] * 1000:.3f} ms")
    print(f"the proxy's CPU: {cpu_s / len(through) * 1e6:.1f} µs a chunk, tokenising included")


if __name__ == "__main__":
    main()
