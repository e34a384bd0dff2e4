"""A proxy before any OpenAI-compatible server: passes everything on, and shows a recorder what passed.

Bodies of requests and of answers go through byte for byte, streams chunk by chunk as they arrive. The
server is asked not to compress, since nothing could be read from that; else its headers and the client's
pass too, without those that concern one connection only.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

from cluster.traffic.recording.exchange import Exchange, is_recorded
from cluster.traffic.recording.recorder import Recorder
from cluster.traffic.request import TraceError

LARGEST_BODY = 64 * 2**20
"""Bytes of a request that are let through, and bytes of an answer that are kept to be read."""

_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110, 7.6.1: headers that a proxy does not pass on."""

_ANEW = frozenset({"host", "content-length", "accept-encoding", "expect"})
"""Headers of a request that are made anew for the server."""

_GRACE_S = 1.0
"""What streams that are still open get when the recording ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a proxy listens and whom it passes to."""

    server: str
    """The server's origin, such as http://127.0.0.1:8000."""
    host: str = "127.0.0.1"
    port: int = 8001
    """0: any that is free."""
    session_header: str = "X-Session-Id"
    """The header in which clients may name the session; its value leaves as a number."""


def origin(server: str) -> URL:
    """A server's address, checked.

    Raises:
        TraceError: where it is none, or has a path: clients' own paths are passed on.
    """
    try:
        url = URL(server)
    except ValueError as error:
        raise TraceError([f"{server!r} is no address: {error}"]) from error
    if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/") or url.query_string:
        raise TraceError([f"{server!r}: name the server as http://host:port, without a path"])
    return url


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes the event loop that passes a chunk on for the least CPU: uvloop's, where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def served_model(server: str) -> str:
    """The model that a server says it serves: where it was loaded from, or its name.

    Raises:
        TraceError: where it does not say.
    """
    timeout = aiohttp.ClientTimeout(total=30)
    instead = "name its model, for the tokenizer"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(origin(server) / "v1" / "models") as response,
        ):
            said = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise TraceError([f"{server}: does not say what it serves ({error}): {instead}"]) from error
    models = said.get("data") if isinstance(said, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    name = (first.get("root") or first.get("id")) if isinstance(first, dict) else None
    if not isinstance(name, str):
        raise TraceError([f"{server}: does not say what it serves: {instead}"])
    return name


async def pass_through(
    listening: Listening, recorder: Recorder, *, stop: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Pass requests on and have them recorded, until told to stop.

    Args:
        listening: where, and to whom.
        recorder: what is shown each exchange; entered already.
        stop: ends it.
        ready: called with the proxy's address once it listens.

    Raises:
        TraceError: where it can't listen there.
    """
    passing = _Passing(listening, recorder)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    ) as session:
        passing.session = session
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", passing.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_GRACE_S)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, listening.host, listening.port).start()
            except OSError as error:
                place = f"{listening.host}:{listening.port}"
                raise TraceError([f"cannot listen on {place}: {error.strerror or error}"]) from error
            host, port = runner.addresses[0][:2]
            ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            await stop.wait()
            passing.stopping = True
        finally:
            await runner.cleanup()


class _Passing:
    """The handler of all requests."""

    session: aiohttp.ClientSession

    def __init__(self, listening: Listening, recorder: Recorder) -> None:
        self._server = str(origin(listening.server)).rstrip("/")
        self._session_header = listening.session_header
        self._recorder = recorder
        self._started = time.perf_counter()
        self.stopping = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        arrival_s = time.perf_counter() - self._started
        recorded = request.method == "POST" and is_recorded(request.path)
        body = await request.read()
        headers = [*_passed(request.headers, besides=_ANEW), ("Accept-Encoding", "identity")]
        try:
            async with self.session.request(
                request.method,
                URL(self._server + request.raw_path, encoded=True),
                headers=headers,
                data=body or None,
                allow_redirects=False,
            ) as upstream:
                kept: list[bytes] | None = [] if recorded and upstream.status == 200 else None
                if kept is None:
                    self._recorder.counts[_why_not(recorded, upstream.status)] += 1
                try:
                    return await self._answer(request, upstream, kept)
                finally:
                    # Also where the client left early: it asked, and so much was made for it.
                    if kept and not self.stopping:
                        self._recorder.take(
                            Exchange(
                                arrival_s=arrival_s,
                                duration_s=time.perf_counter() - self._started - arrival_s,
                                path=request.path,
                                asked=body,
                                answered=b"".join(kept),
                                session_id=request.headers.get(self._session_header),
                            )
                        )
        except aiohttp.ClientConnectorError as error:
            self._recorder.counts["not recorded: the server could not be reached"] += 1
            said = {"error": {"message": f"tuner trace record: {error}", "type": "bad_gateway", "code": 502}}
            return web.json_response(said, status=502)
        except aiohttp.ClientError:
            # The server broke off: so does the proxy, lest the client take a part for the whole.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _answer(
        self, request: web.Request, upstream: aiohttp.ClientResponse, kept: list[bytes] | None
    ) -> web.StreamResponse:
        """Pass the server's answer on, and keep it if it is to be recorded."""
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=_passed(upstream.headers)
        )
        await response.prepare(request)
        size = 0
        try:
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
                size += len(chunk)
                if kept is not None and size <= LARGEST_BODY:
                    kept.append(chunk)
            await response.write_eof()
        except ConnectionResetError:  # the client left; leaving the context tells the server
            self._recorder.counts["left by their client before the end"] += 1
        return response


def _passed(headers: Mapping[str, str], *, besides: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """Headers that go on to the other side, repeated ones repeated."""
    named = [value for name, value in headers.items() if name.lower() == "connection"]
    left_out = _ONE_CONNECTION | besides | {name.strip().lower() for name in ",".join(named).split(",")}
    return [(name, value) for name, value in headers.items() if name.lower() not in left_out]


def _why_not(recorded: bool, status: int) -> str:
    if not recorded:
        return "passed only: no completion"
    return f"not recorded: answered with status {status}"
