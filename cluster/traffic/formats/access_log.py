"""Access logs of an OpenAI-compatible server or gateway: JSON lines of a time, a request and its usage.

Found are: a time (`timestamp`, `time`, `ts`, `created_at`, `created`, `start_time`); `prompt` or
`messages`, `usage` and the answer, at the top or inside `request`, `body`, `response`; `status` or
`status_code`; `session_id` or `conversation_id`; how long it took from that time (`duration_ms`,
`latency_ms`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.formats.values import answer_of, chat, first_count, instant, number, table, whole
from cluster.traffic.request import nearest

_TIMES = ("timestamp", "time", "ts", "created_at", "created", "start_time")
_TOOK = ("duration_ms", "latency_ms")
_PLACES = ("request", "body", "response")


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    first = head.partition("\n")[0]
    return first.lstrip().startswith("{") and '"usage"' in first and any(f'"{t}"' in first for t in _TIMES)


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, record in json_rows(path):
        yield record if isinstance(record, Dropped) else _row(line, record)


def _row(line: int, record: Mapping[str, object]) -> Row | Dropped:
    at = next((found for key in _TIMES if (found := instant(record.get(key))) is not None), None)
    if at is None:
        near = next((key for key in record if nearest(key, _TIMES)), None)
        return Dropped(line=line, reason="no time", detail=f"is it {near!r}?" if near else "")
    status = next(
        (s for key in ("status", "status_code") if (s := whole(_find(record, key))) is not None), 200
    )
    if status >= 400:
        return Dropped(line=line, reason="failed when it was recorded", bad=False)
    counts = table(_find(record, "usage"))
    prompt, messages = _find(record, "prompt"), chat(_find(record, "messages"))
    session = _find(record, "session_id") or _find(record, "conversation_id")
    return Row(
        line=line,
        at_s=at,
        duration_s=_lasted_s(record),
        input_length=first_count(counts, "prompt_tokens", "input_tokens"),
        output_length=first_count(counts, "completion_tokens", "output_tokens"),
        session_id=session if isinstance(session, str) and session else None,
        prompt=prompt if isinstance(prompt, str) and prompt and messages is None else None,
        messages=messages,
        answer=answer_of({"choices": _find(record, "choices")}),
    )


def _lasted_s(record: Mapping[str, object]) -> float | None:
    took_ms = next((ms for key in _TOOK if (ms := number(_find(record, key))) is not None), None)
    return None if took_ms is None else took_ms / 1000


def _find(record: Mapping[str, object], key: str) -> object:
    """A key's value at the top or in one of the places that gateways put bodies in."""
    return next((place[key] for place in _bodies(record) if place.get(key) is not None), None)


def _bodies(record: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield record
    for key in _PLACES:
        inner = record.get(key)
        if isinstance(inner, dict):
            yield inner
            body = inner.get("body")
            if isinstance(body, dict):
                yield body
