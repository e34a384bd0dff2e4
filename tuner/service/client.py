"""The service's HTTP as a command uses it. It follows no redirect, so a token goes nowhere else."""

import http.client
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tuner.mistakes import Mistake
from tuner.service.jobs import State

DEFAULT_URL = "http://127.0.0.1:8470"
TIMEOUT_S = 60.0
"""Without a byte. A stream has one at least every quarter of that."""

UPLOAD_TIMEOUT_S = 600.0
"""Of a trace: once all of it is sent it is read as a whole, a minute or so for a million lines."""

TRACES = "/v1/traces"
_CHUNK = 1 << 16
_ENDS = frozenset(state.value for state in State if state.over)
"""Events after which none comes unless somebody asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedEvent:
    """A server-sent event."""

    id: str
    name: str
    data: Mapping[str, Any]


class Unreachable(Mistake):
    """Nothing answers there, or it was cut off."""


class Client:
    """One service, asked with one token."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise Mistake("--service names no service; write http://host:port")
        self._url = url.rstrip("/")
        self._parts = parts
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        return self._asked("GET", path, None, {})

    def post(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._asked("POST", path, sent, kind | named)

    def upload(self, trace: Path) -> Any:
        """Send a trace's file as it lies there; what the service makes of it."""
        try:
            with trace.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
                return self._asked("POST", TRACES, file, headers)
        except FileNotFoundError as error:
            raise Mistake(f"{trace}: no such file") from error

    def events(self, path: str, last: str | None, *, follow: bool) -> Iterator[StreamedEvent]:
        """A study's events after the last one seen.

        Args:
            follow: wait for more until the study is over.

        Raises Unreachable where it ends before; asked again with the last id, it goes on.
        """
        over = not follow
        headers = {} if last is None else {"Last-Event-ID": last}
        with self._answer("GET", f"{path}?follow={str(follow).lower()}", None, headers) as answer:
            fields: dict[str, str] = {}
            while line := self._read_line(answer):
                text = line.decode().rstrip("\r\n")
                if text and not text.startswith(":"):
                    name, _, value = text.partition(":")
                    fields[name] = value.removeprefix(" ")
                elif not text and "data" in fields:
                    over = not follow or fields["event"] in _ENDS
                    yield StreamedEvent(
                        id=fields["id"], name=fields["event"], data=json.loads(fields["data"])
                    )
                    fields = {}
        if not over:
            raise Unreachable(f"{self._url} ended before the study did")

    def _read_line(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.readline()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._url} stopped answering: {error}") from error

    def _asked(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        with self._answer(method, path, body, headers) as answer:
            try:
                return json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Unreachable(f"{self._url} answered what is no JSON: {error}") from error

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        timeout_s = UPLOAD_TIMEOUT_S if path == TRACES else TIMEOUT_S
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=timeout_s)
        try:
            try:
                # One that refuses an upload answers, and is told, before it has all of it.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(
                        method, self._parts.path.rstrip("/") + path, body, {**self._headers, **headers}
                    )
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                start = "start one with tuner serve, or name one with --service"
                raise Unreachable(f"no service at {self._url}: {error}; {start}") from error
            if answer.status >= 300:
                raise Mistake(_told(answer))
            yield answer
        finally:
            connection.close()


def study_path(study: str, *rest: str) -> str:
    """The path of something of a study."""
    return "/".join(("/v1/studies", quote(study, safe=""), *rest))


def read_token(path: Path | None) -> str | None:
    """The token: from a file, else from TUNER_TOKEN. Never from the command line, which others can see."""
    if path is None:
        return os.environ.get("TUNER_TOKEN") or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{path}: no token can be read from it") from error
    if not token or not token.isascii() or not token.isprintable():
        raise Mistake(f"{path}: holds no token")
    return token


def _told(answer: http.client.HTTPResponse) -> str:
    """What the service says is wrong."""
    text = answer.read(_CHUNK)
    try:
        told = json.loads(text)
        return str(told["error"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {answer.status} {answer.reason}"
