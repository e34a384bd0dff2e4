"""What stands before every request: who may send it at all, how large it may be, and what is logged of it.

A service on loopback can be reached by every page that a browser on the machine shows. So a request that
names another host (a name that was made to point here), or says that it comes from a page of another origin,
is refused; and what changes anything must carry a content type that a page of another origin cannot send.

What goes wrong in the service itself is told as a line with the request's id, and the rest is in the log
under that id.
"""

import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.service.metrics import Metrics

JSON_BYTES = 512 << 10
"""Most bytes of a JSON body: a space's text and a little."""

TRACES = "/v1/traces"
TRACE_TYPES = ("application/jsonl", "application/x-ndjson", "application/gzip", "application/octet-stream")
_SAFE = ("GET", "HEAD", "OPTIONS")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

_log = logging.getLogger("tuner.service.requests")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, hosts: frozenset[str] | None) -> None:
        """Args:
        hosts: names that a request may ask for, loopback's always; None: any, since a token is needed.
        """
        self._app = app
        self._metrics = metrics
        self._hosts = None if hosts is None else hosts | _LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(scope, self._metrics)
        answer = request.answering(send)
        refused = self._refusal(scope)
        if refused is None:
            try:
                await self._app(scope, _limited(scope, receive), answer)
                return
            except ClientDisconnect:
                return  # nobody is there to be answered
            except Exception:
                _log.exception("a request failed", extra={"event": "request_failed", "id": request.id})
                if request.answered:
                    raise  # the answer has begun; all that is left is to cut it off
                refused = 500, "the service failed to answer; its log has more under this id"
        status, why = refused
        body = {"error": why, "id": request.id}
        await JSONResponse(body, status_code=status)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason for a request that goes no further."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return 421, "this service answers to the name of this machine's loopback only"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests from pages of another origin are refused"
        if scope["method"] in _SAFE:
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests from pages of another site are refused"
        return _body_refusal(scope["path"], headers)


def _body_refusal(path: str, headers: Headers) -> tuple[int, str] | None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    length = headers.get("content-length", "")
    if path == TRACES:
        if kind not in TRACE_TYPES:
            return 415, f"send a trace as {' or '.join(TRACE_TYPES)}"
        return None
    has_body = length not in ("", "0") or "transfer-encoding" in headers
    if has_body and kind != "application/json":
        return 415, "send JSON, with content-type application/json"
    if length.isdecimal() and int(length) > JSON_BYTES:
        return 413, f"the body has over {JSON_BYTES} bytes"
    return None


def _limited(scope: Scope, receive: Receive) -> Receive:
    """The body counted as it comes, where it does not say how long it is, or lies."""
    if scope["path"] == TRACES:
        return receive  # counted where it is read
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > JSON_BYTES:
            raise HTTPException(413, f"the body has over {JSON_BYTES} bytes")
        return message

    return counted


class _Request:
    """One request from its arrival on."""

    def __init__(self, scope: Scope, metrics: Metrics) -> None:
        self.id = secrets.token_hex(8)
        self.answered = False
        self._scope = scope
        self._metrics = metrics
        self._begun = time.perf_counter()
        scope.setdefault("state", {})["id"] = self.id

    def answering(self, send: Send) -> Callable[[Message], Awaitable[None]]:
        """Sends the answer with the headers that all have, and counts and logs it as it begins."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = self.id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                self._told(message["status"])
            await send(message)

        return sending

    def _told(self, status: int) -> None:
        took_s = time.perf_counter() - self._begun
        route = getattr(self._scope.get("route"), "path", "other")
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        self._metrics.answered(method, route, status, took_s)
        _log.info(
            "answered",
            extra={
                "event": "request",
                "id": self.id,
                "method": method,
                "route": route,
                "status": status,
                "seconds": round(took_s, 6),
                "user": self._scope["state"].get("user"),
            },
        )


_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


def _name(host: str) -> str:
    """A Host header's name, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
