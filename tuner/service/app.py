"""The application: routes, what stands before them, and what an error is told as.

An error says what was wrong with the request and nothing about the machine. What else goes wrong is
`tuner.service.guard`'s to tell.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import tuner
from tuner.mistakes import Mistake
from tuner.records import RecordError
from tuner.service.allow_list import AllowList
from tuner.service.desk import Desk, NotFound, NotYours
from tuner.service.guard import Guard
from tuner.service.job_files import ServiceFiles
from tuner.service.metrics import Metrics
from tuner.service.outside import Outside
from tuner.service.places import Place
from tuner.service.processes import Processes
from tuner.service.queue import Conflict, Queue, QueueFull
from tuner.service.routes import Told, open_routes, routes
from tuner.service.scheduler import Scheduler
from tuner.service.tokens import Tokens
from tuner.service.uploads import Limits, TooLarge

_log = logging.getLogger("tuner.service")

_STATUS: dict[type[Mistake], int] = {
    NotYours: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    QueueFull: 429,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a service is made of."""

    files: ServiceFiles
    places: Sequence[Place]
    processes: Processes
    tokens: Tokens
    allowed: AllowList
    limits: Limits = field(default_factory=Limits)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that every job's process is given."""
    hosts: frozenset[str] | None = frozenset()
    """Names beside loopback's that a request may ask for; None: any."""


def create_app(service: Service) -> FastAPI:
    """The application over a runs folder, whose queue goes on where it was left as it starts."""
    service.files.make()
    queue = Queue(service.files.database)
    scheduler = Scheduler(
        queue, service.files, service.places, service.processes, environment=service.environment
    )
    desk = Desk(queue, service.files, scheduler, service.allowed)
    metrics = Metrics(queue, service.places)
    outside = Outside({str(service.files.runs), str(Path.cwd()), str(Path.home())})
    over = asyncio.Event()

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        thread = threading.Thread(target=scheduler.run, name="scheduler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            scheduler.close()
            await asyncio.to_thread(thread.join)
            queue.close()

    app = FastAPI(
        title="Tuner",
        description="Measured autotuning of vLLM: submit studies, follow them, read what they found.",
        version=tuner.__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(open_routes(app.openapi))
    app.include_router(routes(desk, service.tokens, metrics, outside, service.limits, over))
    _tell_errors(app, outside)
    app.state.over = over
    app.add_middleware(Guard, metrics=metrics, hosts=service.hosts)
    return app


def _tell_errors(app: FastAPI, outside: Outside) -> None:
    def problem(request: Request, status: int, error: str, **headers: str) -> Response:
        told = {"error": outside.text(error), "id": request.state.id}
        return Told(told, status_code=status, headers=headers)

    @app.exception_handler(Mistake)
    async def mistake(request: Request, error: Mistake) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 422)
        if isinstance(error, RecordError):
            _log.error("a study's file: %s", error, extra={"event": "record", "id": request.state.id})
        return problem(request, status, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        return problem(request, 422, "; ".join(faults))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return problem(request, error.status_code, str(error.detail), **(error.headers or {}))

    @app.exception_handler(RecursionError)
    async def nested(request: Request, _error: RecursionError) -> Response:
        return problem(request, 400, "the body is nested too deep")
