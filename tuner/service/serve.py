"""From what the operator asks to a service that listens."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tuner.mistakes import Mistake
from tuner.service.allow_list import AllowList
from tuner.service.app import Service, create_app
from tuner.service.child import RAY_VARIABLE, TRACKING_VARIABLE
from tuner.service.guard import is_loopback
from tuner.service.job_files import ServiceFiles
from tuner.service.logs import log_to_stderr
from tuner.service.places import places_of
from tuner.service.processes import OwnSessions, hold_alone
from tuner.service.tokens import Tokens

SHUTDOWN_S = 5
"""For answers under way when the service is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """What `tuner serve` was asked."""

    runs: Path
    host: str
    port: int
    tokens: Path | None = None
    allow_list: Path | None = None
    gpus: Sequence[str] = ()
    """Sets of GPUs of this machine, one study at a time each; none: one at a time."""
    simulated: int = 2
    """Simulated studies at a time."""
    address: str | None = None
    """Of a Ray cluster; None: a Ray of this machine's own."""
    tracking_uri: str | None = None


def serve(asked: ServeRequest, say: Callable[[str], None]) -> None:
    """Serve until interrupted. Studies go on without it.

    Raises Mistake where it may not or cannot listen there, or another service has these runs.
    """
    tokens = Tokens.read(asked.tokens)
    if not is_loopback(asked.host) and not tokens:
        raise Mistake(
            f"--host {asked.host} lets others in, and there is no token; name a file of them with --tokens "
            "(tuner token NAME makes one), or stay on 127.0.0.1"
        )
    allowed = AllowList() if asked.allow_list is None else AllowList.read(asked.allow_list)
    places = places_of(asked.gpus, cluster=asked.address is not None, simulated=asked.simulated)
    files = ServiceFiles(asked.runs.resolve())
    files.make()
    try:
        lock = hold_alone(files.lock)
    except BlockingIOError:
        raise Mistake(f"another service has {asked.runs}; stop it, or give this one other --runs") from None
    files.sweep()
    listener = bound(asked.host, asked.port)
    environment = {
        name: value
        for name, value in ((RAY_VARIABLE, asked.address), (TRACKING_VARIABLE, asked.tracking_uri))
        if value is not None
    }
    app = create_app(
        Service(
            files=files,
            places=places,
            processes=OwnSessions(),
            tokens=tokens,
            allowed=allowed,
            environment=environment,
            hosts=None if tokens else frozenset({asked.host}),
        )
    )
    log_to_stderr()
    shown = f"[{asked.host}]" if ":" in asked.host else asked.host
    at = f"http://{shown}:{listener.getsockname()[1]}/docs"
    server = Server(app, lambda: say(f"serving {asked.runs} at {at}; Ctrl-C ends the service and no study"))
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        os.close(lock)


class Server(uvicorn.Server):
    """The HTTP server. It says when it listens, and tells streams that it ends before it waits for them."""

    def __init__(self, app: FastAPI, ready: Callable[[], object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._over: asyncio.Event = app.state.over
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._over.set()
        await super().shutdown(sockets)


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to an address, by us and not the server, which would end in a traceback.

    Raises Mistake where that cannot be.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise Mistake(f"--host {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Mistake(
            f"cannot listen on {host}:{port}: {error.strerror or error}; try another --port"
        ) from error
    return listener
