"""A server of the OpenAI-compatible API that streams at a steady pace and costs little, for benchmarks.

It reads no prompt and samples no token: every stream gets one chunk of vLLM's shape each tick, from pieces
made beforehand, whatever was asked. It runs in a process of its own, on one core.
"""

import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

from cluster.node.replay import run_loop

MODEL = "model"
PROMPT_TOKENS = 512
"""What the server says that it counted."""

WHEEL_MS = 10
"""The server looks at its streams this often; each gets a chunk when its own tick has passed."""

_ABOUT = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL}]}).encode()
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ABOUT) + _ABOUT
)
"""To whatever is not a POST: tools ask for health and for the models first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the server did, as it counts itself."""

    requests: int
    chunks: int
    cpu_s: float


class Stream(asyncio.Protocol):
    """One connection: answers each request in turn."""

    wheel: "list[list[Stream]]"
    """Streams by the turn in which they get their next chunk; one slot is one turn."""
    turn: int
    pieces: Sequence[bytes]
    requests: int
    chunks: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without deriving from it
        self.sent = 0
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data
        head, found, body = self.heard.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"POST"):
            self.heard = body
            self.transport.write(_ANSWER)
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) >= int(length):
            self.heard = b""
            self.sent = 0
            self.wheel[self.turn - 1].append(self)

    @classmethod
    def tick_all(cls) -> None:
        """One turn of the wheel."""
        due, cls.wheel[cls.turn] = cls.wheel[cls.turn], []
        cls.turn = (cls.turn + 1) % len(cls.wheel)
        for stream in due:
            stream.tick()

    def tick(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(self.pieces[self.sent])
        self.sent += 1
        Stream.chunks += 1
        if self.sent < len(self.pieces):
            self.wheel[self.turn - 1].append(self)
        else:
            Stream.requests += 1


def pieces(tokens: int) -> list[bytes]:
    """An answer's parts as they go over the wire, as vLLM's with usage in every chunk."""

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
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def choice(served: int) -> dict[str, object]:
        reason = "length" if served == tokens else None
        return {"index": 0, "text": " word", "logprobs": None, "finish_reason": reason, "stop_reason": None}

    parts = [framed(event([choice(served)], served)) for served in range(1, tokens + 1)]
    parts[0] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + parts[0]
    )
    parts[-1] += framed(event([], tokens), b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return parts


def _serve(tokens: int, tick_ms: float, pipe: Connection) -> None:
    """Serve until the pipe says to stop; tells its port, and at the end what it did."""

    async def main() -> None:
        Stream.wheel = [[] for _ in range(max(1, round(tick_ms / WHEEL_MS)))]
        Stream.turn, Stream.pieces, Stream.requests, Stream.chunks = 0, pieces(tokens), 0, 0
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Stream, "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        due_s = loop.time()
        while not pipe.poll():
            due_s = max(due_s + WHEEL_MS / 1e3, loop.time())
            await asyncio.sleep(due_s - loop.time())
            Stream.tick_all()
        pipe.send(Served(requests=Stream.requests, chunks=Stream.chunks, cpu_s=time.process_time()))
        server.close()

    allow_files()
    run_loop(main())


def allow_files() -> None:
    """Raise this process's limit on open files as far as it may go."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Server:
    """A running server, seen from the process that started it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.served: Served | None = None
        """Known once it has stopped."""


@contextmanager
def serving(tokens: int, tick_ms: float) -> Iterator[Server]:
    """A server of streams of so many chunks, one a tick; stopped on leaving."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(tokens, tick_ms, there), daemon=True)
    process.start()
    there.close()
    server = Server(f"http://127.0.0.1:{here.recv()}")
    try:
        yield server
    finally:
        here.send("stop")
        server.served = here.recv()
        process.join()
