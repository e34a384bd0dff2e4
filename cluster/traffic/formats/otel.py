"""OpenTelemetry spans of calls to models, as JSON lines: OTLP's own, a collector's file, an SDK's console.

Source: semantic conventions for generative AI, `gen_ai.usage.input_tokens` and `output_tokens`; up to 1.26,
and in vLLM's own spans, `prompt_tokens` and `completion_tokens`. Text is there only where it was asked for:
`gen_ai.input.messages` and `gen_ai.output.messages`, before them `gen_ai.prompt` and `gen_ai.completion`
(also numbered, `gen_ai.prompt.0.content`, as OpenLLMetry writes them).

A call that both the client and the server recorded is one request: the inner span is left out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.formats.values import answer_of, first_count, instant, lasted_s, prompt_of, whole

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CALLS = frozenset({"chat", "text_completion", "generate_content", "completion"})
"""Operations that are one call of a model; agents' spans add up the usage of several."""
_ERROR = 2
_DEPTH = 16
"""Levels of lists and objects in an attribute that are taken apart: a message's parts have five."""


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    return '"resourceSpans"' in head or ('"gen_ai.' in head and '"attributes"' in head)


def rows(path: Path) -> Rows:
    """The file's spans of model calls. It is read twice: a span's parents come after it."""
    inside = _inner(path)
    for line, span in _spans(path):
        yield span if isinstance(span, Dropped) else _row(line, span, inside)


class _Span:
    """One span, whichever way it is written."""

    def __init__(self, record: Mapping[str, object]) -> None:
        context = record.get("context")
        ids = context if isinstance(context, dict) else record
        self.key = str(ids.get("spanId") or ids.get("span_id") or "")
        self.parent = str(record.get("parentSpanId") or record.get("parent_id") or "")
        self.started = record.get("startTimeUnixNano", record.get("start_time"))
        self.ended = record.get("endTimeUnixNano", record.get("end_time"))
        self.attributes = _attributes(record.get("attributes"))
        for event in _list(record.get("events")):
            if isinstance(event, dict):
                self.attributes |= _attributes(event.get("attributes"))
        status = record.get("status")
        code = (status.get("code") or status.get("status_code")) if isinstance(status, dict) else None
        self.failed = code in (_ERROR, "ERROR", "STATUS_CODE_ERROR") or "error.type" in self.attributes

    @property
    def is_call(self) -> bool:
        operation = self.attributes.get("gen_ai.operation.name")
        return any(key in self.attributes for key in (*_INPUT, *_OUTPUT)) and operation in (None, *_CALLS)


def _row(line: int, span: _Span, inside: frozenset[str]) -> Row | Dropped:
    if not span.is_call:
        return Dropped(line=line, reason="not a call of a model", bad=False)
    if span.key in inside:
        return Dropped(line=line, reason="the same call, seen by its server", bad=False)
    if span.failed:
        return Dropped(line=line, reason="failed when it was recorded", bad=False)
    at = _seconds(span.started)
    if at is None:
        return Dropped(line=line, reason="no time", detail=f"the span starts at {span.started!r:.40}")
    said = span.attributes
    asked = said.get("gen_ai.input.messages") or said.get("gen_ai.prompt") or _numbered(said, "gen_ai.prompt")
    given = (
        said.get("gen_ai.output.messages")
        or said.get("gen_ai.completion")
        or _numbered(said, "gen_ai.completion")
    )
    prompt, messages = prompt_of(asked)
    session = said.get("gen_ai.conversation.id") or said.get("session.id")
    return Row(
        line=line,
        at_s=at,
        duration_s=lasted_s(at, _seconds(span.ended)),
        input_length=first_count(said, *_INPUT),
        output_length=first_count(said, *_OUTPUT),
        session_id=session if isinstance(session, str) and session else None,
        prompt=prompt,
        messages=messages,
        answer=answer_of(given),
    )


def _seconds(value: object) -> float | None:
    """Seconds since 1970 of nanoseconds (a number or its text) or of ISO 8601 text."""
    nanoseconds = whole(value)
    return instant(value) if nanoseconds is None else nanoseconds / 1e9


def _inner(path: Path) -> frozenset[str]:
    """Spans of calls that lie within another call's span, by id."""
    parents: dict[str, str] = {}
    calls: set[str] = set()
    for _, span in _spans(path):
        if isinstance(span, _Span) and span.key:
            parents[span.key] = span.parent
            if span.is_call:
                calls.add(span.key)
    return frozenset(call for call in calls if _has_call_above(call, parents, calls))


def _has_call_above(call: str, parents: Mapping[str, str], calls: set[str]) -> bool:
    above, seen = parents.get(call), {call}
    while above and above not in seen:  # a file may say that a span is its own parent
        if above in calls:
            return True
        seen.add(above)
        above = parents.get(above)
    return False


def _spans(path: Path) -> Iterator[tuple[int, _Span | Dropped]]:
    for line, record in json_rows(path):
        if isinstance(record, Dropped):
            yield line, record
        elif "resourceSpans" in record:
            for resource in _list(record["resourceSpans"]):
                for scope in _within(resource, "scopeSpans", "instrumentationLibrarySpans"):
                    for span in _within(scope, "spans"):
                        yield line, _Span(span) if isinstance(span, dict) else _odd(line)
        elif "attributes" in record:
            yield line, _Span(record)
        else:
            yield line, _odd(line)


def _odd(line: int) -> Dropped:
    return Dropped(line=line, reason="not a span")


def _within(holder: object, *keys: str) -> list[object]:
    if not isinstance(holder, dict):
        return []
    return next((_list(holder[key]) for key in keys if key in holder), [])


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _attributes(value: object, depth: int = _DEPTH) -> dict[str, object]:
    """Attributes by key, from an object or from OTLP's list of keys with typed values."""
    if isinstance(value, dict):
        return dict(value)
    found: dict[str, object] = {}
    for item in _list(value):
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            found[item["key"]] = _typed(item.get("value"), depth)
    return found


def _typed(value: object, depth: int) -> object:
    """A value out of OTLP's `{"intValue": "12"}`, lists and objects taken apart."""
    if not isinstance(value, dict) or len(value) != 1 or not depth:
        return value
    ((kind, inner),) = value.items()
    if kind == "arrayValue" and isinstance(inner, dict):
        return [_typed(item, depth - 1) for item in _list(inner.get("values"))]
    if kind == "kvlistValue" and isinstance(inner, dict):
        return _attributes(inner.get("values"), depth - 1)
    return inner


def _numbered(said: Mapping[str, object], prefix: str) -> list[dict[str, object]]:
    """Messages out of `prefix.0.role`, `prefix.0.content`, and so on."""
    found: list[dict[str, object]] = []
    while (content := said.get(f"{prefix}.{len(found)}.content")) is not None:
        found.append({"role": said.get(f"{prefix}.{len(found)}.role") or "user", "content": content})
    return found
