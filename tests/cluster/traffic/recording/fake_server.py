"""An OpenAI-compatible server that answers as it is told, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class FakeServer:
    """Answers every chat with `pieces`, streamed where it is asked to."""

    pieces: tuple[str, ...] = ("an ", "old ", "city")
    usage: dict[str, int] | None = None
    break_after: int | None = None
    """Pieces after which the connection is dropped."""
    endless: bool = False
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    """Everything that was sent, answer by answer."""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        body = await request.read()
        self.bodies.append(body)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "served", "root": "org/model"}]})
        if not body or request.path.endswith("/embeddings"):
            return web.Response(text="pong", headers={"X-Here": "yes", "Set-Cookie": "a=1"})
        asked = json.loads(body)
        if asked.get("fail"):
            return web.json_response({"error": "no"}, status=asked["fail"])
        if not asked.get("stream"):
            said = {
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "".join(self.pieces)}}]
            }
            whole = json.dumps(said | ({"usage": self.usage} if self.usage else {})).encode()
            self.sent.append(whole)
            return web.Response(body=whole, content_type="application/json")
        return await self._stream(request)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent = b""
        try:
            for number, chunk in enumerate(self._chunks()):
                if self.break_after == number:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                sent += chunk
                await response.write(chunk)
                await asyncio.sleep(0)
            while self.endless:
                await response.write(b": wait\n\n")
                await asyncio.sleep(0.01)
        except (ConnectionResetError, asyncio.CancelledError):
            self.left.set()
            raise
        self.sent.append(sent)
        return response

    def _chunks(self) -> list[bytes]:
        events: list[dict[str, object]] = [
            {"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in self.pieces
        ]
        if self.usage:
            events.append({"choices": [], "usage": self.usage})
        return [f"data: {json.dumps(event)}\r\n\r\n".encode() for event in events] + [b"data: [DONE]\n\n"]


@asynccontextmanager
async def serving(fake: FakeServer) -> AsyncIterator[str]:
    """The fake's address while it serves."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
