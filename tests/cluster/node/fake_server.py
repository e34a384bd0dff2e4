"""A server of the OpenAI-compatible API that streams by script, and misbehaves by script.

Raw asyncio rather than an HTTP library, since a library would not send what these tests need to see.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from cluster.traffic.trace import Message
from cluster.traffic.workload import Prompt

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def prompt(
    request: int = 0,
    *,
    due_s: float = 0.0,
    max_tokens: int = 4,
    text: str | None = None,
    messages: tuple[Message, ...] | None = None,
) -> Prompt:
    """A prompt of three token ids, unless it has text or messages."""
    return Prompt(
        request=request,
        due_s=due_s,
        token_ids=(1, 2, 3) if text is None and messages is None else None,
        text=text,
        messages=messages,
        max_tokens=max_tokens,
        input_length=3,
        session_id=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one request is answered. Times are seconds."""

    before_s: float = 0.0
    """From the request's arrival to the first chunk."""
    gap_s: float = 0.0
    chunks: tuple[int, ...] | None = None
    """Tokens of each chunk; None: one each until max_tokens."""
    continuous: bool = True
    """Whether each chunk carries usage, where asked for."""
    usage: bool = True
    """Whether there is a usage chunk at the end."""
    cached_tokens: int | None = None
    metrics: dict[str, object] | None = None
    finish_reason: str = "length"
    status: int = 200
    error: str = "no"
    """Message of the error body where the status is not 200."""
    refuse: bool = False
    """Close the connection without a word."""
    cut_after: int | None = None
    """Break the connection off, mid-line, after this many chunks."""
    hang_after: int | None = None
    """Send nothing more after this many chunks, and keep the connection open until the client leaves."""
    raw: bytes | None = None
    """Send this instead of chunks, then end the response properly."""
    forever: bytes | None = None
    """Send this over and over until the client leaves."""


Behave = Callable[[int], Script]
"""From the order of arrival to the script."""


@dataclass(slots=True, kw_only=True)
class Arrival:
    at_s: float
    """On the event loop's clock."""
    path: str
    body: dict[str, object]


@dataclass(slots=True)
class FakeServer:
    """Serves while its context is open, in the running loop.

    `behave` is one script for all requests, or gives one for each.
    """

    behave: Behave | Script = Script()
    metrics: Callable[[int], str | None] = lambda _: ""
    """The body of the n-th scrape; None: status 500."""
    arrivals: list[Arrival] = field(default_factory=list)
    scrapes: int = 0
    connections: int = 0
    open_streams: int = 0
    _server: asyncio.Server | None = None
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.die()

    async def die(self) -> None:
        """Close the port and break off every connection, as a killed process would."""
        if self._server is None:
            return
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        self._server = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _method, path, _ = head.split(" ", 2)
        lengths = [
            line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")
        ]
        body = await reader.readexactly(int(lengths[0])) if lengths else b"{}"
        if path == "/metrics":
            return self._scraped(writer)
        at_s = asyncio.get_running_loop().time()
        self.arrivals.append(Arrival(at_s=at_s, path=path, body=json.loads(body)))
        script = self.behave if isinstance(self.behave, Script) else self.behave(len(self.arrivals) - 1)
        self.open_streams += 1
        try:
            return await self._answer(script, self.arrivals[-1], reader, writer)
        finally:
            self.open_streams -= 1

    def _scraped(self, writer: asyncio.StreamWriter) -> bool:
        text = self.metrics(self.scrapes)
        self.scrapes += 1
        writer.write(_plain(500 if text is None else 200, (text or "").encode()))
        return True

    async def _answer(
        self, script: Script, arrival: Arrival, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await asyncio.sleep(script.before_s)
        if script.refuse:
            return False
        if script.status != 200:
            error = {"error": {"message": script.error, "code": script.status}}
            writer.write(_plain(script.status, json.dumps(error).encode()))
            return True
        writer.write(HEAD)
        if script.forever is not None:
            while True:
                writer.write(_piece(script.forever))
                await writer.drain()
                await asyncio.sleep(0)
        if script.raw is not None:
            writer.write((_piece(script.raw) if script.raw else b"") + b"0\r\n\r\n")
            return True
        for number, event in enumerate(events(script, arrival.body, chat="chat" in arrival.path)):
            if number == script.hang_after:
                await reader.read()  # until the client leaves
                return False
            if number == script.cut_after:
                writer.write(_piece(event[: len(event) // 2]))
                await writer.drain()
                return False
            if number and script.gap_s:
                await asyncio.sleep(script.gap_s)
            writer.write(_piece(event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True


def events(script: Script, body: dict[str, object], *, chat: bool = False) -> Iterable[bytes]:
    """The events of a well-behaved answer, as vLLM sends them."""
    asked = body["max_tokens"]
    assert isinstance(asked, int)
    sizes = (1,) * asked if script.chunks is None else script.chunks
    served = 0
    for number, size in enumerate(sizes):
        served += size
        last = number == len(sizes) - 1
        text = " word" * size
        chunk: dict[str, object] = {
            "id": "cmpl-0",
            "choices": [
                {
                    "index": 0,
                    **({"delta": {"content": text}} if chat else {"text": text}),
                    "finish_reason": script.finish_reason if last else None,
                }
            ],
        }
        if script.continuous:
            chunk["usage"] = {"prompt_tokens": 3, "completion_tokens": served, "total_tokens": 3 + served}
        yield _event(chunk)
    if script.usage:
        usage: dict[str, object] = {"prompt_tokens": 3, "completion_tokens": served}
        if script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
        told = {} if script.metrics is None else {"metrics": script.metrics}
        yield _event({"id": "cmpl-0", "choices": [], "usage": usage, **told})
    yield b"data: [DONE]\n\n"


def _event(chunk: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _piece(data: bytes) -> bytes:
    """One piece of a body in chunked transfer coding."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _plain(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} said\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body
