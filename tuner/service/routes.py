"""HTTP: paths to what can be asked at the desk, and answers as JSON. Shapes are `asked`'s and `answers`'."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from search_spaces.values import Json
from tuner.export.refusals import Mark
from tuner.export.targets import TARGETS
from tuner.service import uploads
from tuner.service.answers import (
    AblationTold,
    Health,
    Jobs,
    JobTold,
    Problem,
    TraceTold,
    Trials,
    TrialTold,
)
from tuner.service.asked import ID, IDEMPOTENCY_KEY, STUDY_NAME, AblationSubmission, Submission
from tuner.service.desk import Desk, NotFound
from tuner.service.event_log import NoSuchEvent
from tuner.service.guard import TRACE_TYPES
from tuner.service.jobs import State
from tuner.service.metrics import CONTENT_TYPE, Metrics
from tuner.service.outside import Outside
from tuner.service.page import page
from tuner.service.streams import read_all, sent, stream
from tuner.service.tokens import LOCAL_USER, Tokens
from tuner.session import trace_figures

Study = Annotated[str, Path(pattern=STUDY_NAME, description="The study's name.")]
Number = Annotated[int, Path(ge=0, le=10**9, description="The trial's number.")]
Id = Annotated[str, Path(pattern=ID, description="The ablation's id.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY,
        description="Sent again with the same request, it gets what that made, and makes nothing new.",
    ),
]
Last = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        pattern=r"^[0-9]{1,18}$",
        description="The last event that was seen; what follows is sent.",
    ),
]
Follow = Annotated[bool, Query(description="Whether to wait for more, or to end with what there is.")]
_BEARER = HTTPBearer(auto_error=False, description="Needed where the service has tokens.")


Target = StrEnum("Target", {name: name for name in TARGETS})  # type: ignore[misc]


class Told(JSONResponse):
    """JSON in ASCII: what a text holds beyond is escaped, and any can be sent."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


def _may(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Refusals that an operation documents, besides those that all have."""
    words = {
        404: "There is no such thing.",
        409: "It does not go with the state of things.",
        413: "It is too large.",
        415: "It has another content type.",
        422: "What is asked cannot be done; `error` says why.",
        429: "Too much of yours is waiting.",
        403: "It is somebody else's, or comes from a page of another origin.",
        401: "A token is needed, or it is nobody's.",
        400: "It cannot be read.",
    }
    every = sorted({400, 401, 403, 422, *statuses})
    return {status: {"model": Problem, "description": words[status]} for status in every}


def _json(model: type[Any], description: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": model, "description": description}}


def _other(
    kind: str, description: str, schema: Mapping[str, Json] = MappingProxyType({"type": "string"})
) -> dict[int | str, dict[str, Any]]:
    """An answer that is no JSON."""
    return {200: {"content": {kind: {"schema": dict(schema)}}, "description": description}}


_TEXT: Json = {"type": "string"}
_EVENT: dict[str, Json] = {
    "type": "object",
    "properties": {"id": _TEXT, "event": _TEXT, "data": _TEXT},
    "required": ["id", "event", "data"],
    "additionalProperties": False,
}
"""One server-sent event; its data is a JSON object."""


def open_routes(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """What anybody may read: that the service is there, and its page."""
    router = APIRouter()

    @router.get("/healthz", response_class=Told, responses=_json(Health, "The service answers."))
    def healthz() -> Told:
        """Whether the service answers. Needs no token."""
        return Told({"status": "ok"})

    @router.get("/docs", response_class=HTMLResponse)
    def docs() -> HTMLResponse:
        """This page. Needs no token."""
        return HTMLResponse(page(document()))

    return router


def routes(
    desk: Desk,
    tokens: Tokens,
    metrics: Metrics,
    outside: Outside,
    limits: uploads.Limits,
    over: asyncio.Event,
) -> APIRouter:
    """Everything else."""

    def user(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> str:
        """Who asks."""
        name = LOCAL_USER
        if tokens:
            found = None if given is None else tokens.user_of(given.credentials)
            if found is None:
                raise HTTPException(401, "a token is needed", headers={"WWW-Authenticate": "Bearer"})
            name = found
        request.state.user = name
        return name

    User = Annotated[str, Depends(user)]
    router = APIRouter(dependencies=[Depends(user)], default_response_class=Told)

    def told(value: Json, status: int = 200) -> Told:
        return Told(outside.json(value), status_code=status)

    @router.get(
        "/metrics",
        response_class=Response,
        responses=_other("text/plain", "Metrics.") | _may(),
    )
    def metrics_text() -> Response:
        """Metrics for Prometheus, which sends the token as it sends any."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @router.post(
        "/v1/traces",
        status_code=201,
        responses=_json(TraceTold, "The trace is kept.", 201) | _may(413, 415),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in TRACE_TYPES},
            }
        },
    )
    async def upload_trace(request: Request) -> Told:
        """Upload a trace: the lines of a trace's file, plain or gzip. It is checked as it comes."""
        trace = await uploads.receive_trace(request.stream(), desk.files, limits)
        value: dict[str, Json] = {
            "trace": trace.digest,
            "notes": list(trace.notes),
            "figures": trace_figures(trace),
        }
        return told(value, 201)

    @router.post(
        "/v1/studies",
        status_code=202,
        responses=_json(JobTold, "The study is queued.", 202)
        | _json(JobTold, "It was submitted before, under this key.")
        | _may(404, 409, 413, 415, 429),
    )
    def submit_study(asked: Submission, user: User, key: Key = None) -> Told:
        """Submit a study: it waits in the queue until it is its user's turn and there is room."""
        job, new = desk.submit(user, asked, key)
        return told(desk.study(job.study), 202 if new else 200)

    @router.get("/v1/studies", responses=_json(Jobs, "All studies that were submitted.") | _may())
    def list_studies() -> Told:
        """List the studies that were submitted, in order."""
        return told({"jobs": desk.studies()})

    @router.get("/v1/studies/{study}", responses=_json(JobTold, "The study as it stands.") | _may(404))
    def read_study(study: Study) -> Told:
        """Read a study's place in the queue and state."""
        return told(desk.study(study))

    @router.post(
        "/v1/studies/{study}/pause",
        responses=_json(JobTold, "It is paused, or will be.") | _may(404, 409, 413, 415),
    )
    def pause_study(study: Study, user: User) -> Told:
        """Pause a study: what runs is ended, what was measured is kept, and it can be resumed."""
        return told(desk.stop(user, study, State.PAUSED))

    @router.post(
        "/v1/studies/{study}/resume",
        responses=_json(JobTold, "It is queued again.") | _may(404, 409, 413, 415),
    )
    def resume_study(study: Study, user: User) -> Told:
        """Queue a paused or failed study again; it goes on from what was measured."""
        return told(desk.resume(user, study))

    @router.post(
        "/v1/studies/{study}/cancel",
        responses=_json(JobTold, "It is cancelled, or will be.") | _may(404, 409, 413, 415),
    )
    def cancel_study(study: Study, user: User) -> Told:
        """Cancel a study for good; what was measured is kept."""
        return told(desk.stop(user, study, State.CANCELLED))

    async def followed(
        last_event_id: str | None, follow: bool, study: str, ablation: str | None = None
    ) -> StreamingResponse:
        path, going_on = await run_in_threadpool(desk.events_of, study, ablation)
        after = int(last_event_id or 0)
        try:
            seen = await run_in_threadpool(read_all, path, after)
        except NoSuchEvent as error:
            raise NotFound(str(error)) from error

        async def there() -> AsyncIterator[bytes]:
            for event in seen:
                yield sent(event, outside)

        body = stream(path, after, going_on, outside, over) if follow else there()
        return StreamingResponse(body, media_type="text/event-stream")

    @router.get(
        "/v1/studies/{study}/events",
        response_class=Response,
        responses=_other("text/event-stream", "Server-sent events.", _EVENT) | _may(404),
    )
    async def follow_study(
        study: Study, last_event_id: Last = None, follow: Follow = True
    ) -> StreamingResponse:
        """Follow a study: its events as server-sent events, from the first or after the last one seen."""
        return await followed(last_event_id, follow, study)

    @router.get(
        "/v1/studies/{study}/trials", responses=_json(Trials, "Finished trials, by number.") | _may(404, 409)
    )
    def list_trials(study: Study) -> Told:
        """List the finished trials of a study, repeats among them."""
        return told({"trials": desk.trials(study)})

    @router.get(
        "/v1/studies/{study}/trials/{number}", responses=_json(TrialTold, "The trial.") | _may(404, 409)
    )
    def read_trial(study: Study, number: Number) -> Told:
        """Read one finished trial."""
        return told(desk.trial(study, number))

    @router.get(
        "/v1/studies/{study}/front",
        responses=_json(dict[str, Any], "As `tuner front --json` prints it.") | _may(404, 409),
    )
    def read_front(study: Study) -> Told:
        """Read the front of a study with the control beside it, as `tuner front --json` prints it."""
        return told(desk.front(study))

    @router.get(
        "/v1/studies/{study}/trials/{number}/explanation",
        responses=_json(dict[str, Any], "As `tuner explain --json` prints it.") | _may(404, 409),
    )
    def explain_trial(study: Study, number: Number) -> Told:
        """Explain where a trial's time goes, as `tuner explain --json` prints it."""
        return told(desk.explanation(study, number))

    @router.get(
        "/v1/studies/{study}/trials/{number}/export",
        response_class=Response,
        responses=_other("application/zip", "A zip of the folder.") | _may(404, 409),
    )
    def export_trial(
        study: Study,
        number: Number,
        to: Annotated[Target, Query(description="As `tuner export --to` takes it.")],
        allow: Annotated[
            list[Mark] | None,
            Query(description="What is let pass, and marked: the --allow options of `tuner export`."),
        ] = None,
    ) -> Response:
        """Export a trial as files that start in production: a zip of what `tuner export` writes."""
        packed = desk.export(study, number, to.value, allow or ())
        headers = {"Content-Disposition": f'attachment; filename="{study}-{number}.zip"'}
        return Response(packed, media_type="application/zip", headers=headers)

    @router.post(
        "/v1/studies/{study}/ablations",
        status_code=202,
        responses=_json(JobTold, "The ablation is queued.", 202)
        | _json(JobTold, "It was submitted before, under this key.")
        | _may(404, 409, 413, 415, 429),
    )
    def submit_ablation(study: Study, asked: AblationSubmission, user: User, key: Key = None) -> Told:
        """Submit an ablation of a trial; it waits in the same queue as studies do."""
        job, new = desk.ablate(user, study, asked, key)
        told_job = desk.ablation(study, job.id)
        del told_job["report"]
        return told(told_job, 202 if new else 200)

    @router.get("/v1/studies/{study}/ablations", responses=_json(Jobs, "Its ablations.") | _may(404))
    def list_ablations(study: Study) -> Told:
        """List the ablations of a study, in order of submission."""
        return told({"jobs": desk.ablations(study)})

    @router.get(
        "/v1/studies/{study}/ablations/{id}", responses=_json(AblationTold, "The ablation.") | _may(404)
    )
    def read_ablation(study: Study, id: Id) -> Told:
        """Read an ablation, with its report once it is done."""
        return told(desk.ablation(study, id))

    @router.get(
        "/v1/studies/{study}/ablations/{id}/events",
        response_class=Response,
        responses=_other("text/event-stream", "Server-sent events.", _EVENT) | _may(404),
    )
    async def follow_ablation(
        study: Study, id: Id, last_event_id: Last = None, follow: Follow = True
    ) -> StreamingResponse:
        """Follow an ablation, as a study is followed."""
        return await followed(last_event_id, follow, study, id)

    @router.post(
        "/v1/studies/{study}/ablations/{id}/cancel",
        responses=_json(JobTold, "It is cancelled, or will be.") | _may(404, 409, 413, 415),
    )
    def cancel_ablation(study: Study, id: Id, user: User) -> Told:
        """Cancel an ablation; what it measured is kept, and the same one asked again goes on from it."""
        return told(desk.cancel_ablation(user, study, id))

    return router
