"""Langfuse's observations: blob storage exports (JSON lines, JSON, CSV) and answers of its API.

Source: langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields. Exports write
`start_time`, the API `startTime`. A prompt's tokens are split by kind (cached, audio, …): all whose names
have "input" in them make the prompt, all with "output" the answer, as Langfuse itself adds them up.
Legacy exports have no session on their rows.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import csv_rows, head, is_csv_of, json_rows
from cluster.traffic.formats.values import answer_of, first_count, instant, lasted_s, prompt_of, table, whole

_COLUMNS = ("start_time", "trace_id", "type")
_KEYS = (("start_time", "startTime"), ("trace_id", "traceId"), ("type",))


def recognises(begins: str) -> bool:
    """Whether a file that begins like this is one."""
    if is_csv_of(begins, _COLUMNS):
        return True
    kinds = ('"GENERATION"', '"SPAN"', '"EVENT"')
    return any(kind in begins for kind in kinds) and all(
        any(f'"{key}"' in begins for key in keys) for keys in _KEYS
    )


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, record in _records(path):
        yield record if isinstance(record, Dropped) else _row(line, record)


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, object] | Dropped]]:
    return csv_rows(path, _COLUMNS) if is_csv_of(head(path), _COLUMNS) else json_rows(path)


def _row(line: int, record: Mapping[str, object]) -> Row | Dropped:
    if str(record.get("type")).upper() != "GENERATION":
        return Dropped(line=line, reason="not a call of a model", bad=False)
    started = record.get("start_time", record.get("startTime"))
    at = instant(started)
    if at is None:
        return Dropped(line=line, reason="no time", detail=f"start_time is {started!r:.40}")
    if record.get("level") == "ERROR":
        return Dropped(line=line, reason="failed when it was recorded", bad=False)
    asked, given = _lengths(record)
    prompt, messages = prompt_of(record.get("input"))
    session = record.get("session_id") or record.get("sessionId")
    return Row(
        line=line,
        at_s=at,
        duration_s=lasted_s(at, instant(record.get("end_time", record.get("endTime")))),
        input_length=asked,
        output_length=given,
        session_id=session if isinstance(session, str) and session else None,
        prompt=prompt,
        messages=messages,
        answer=answer_of(record.get("output")),
    )


def _lengths(record: Mapping[str, object]) -> tuple[int | None, int | None]:
    details = table(record.get("usage_details", record.get("usageDetails")))
    asked, given = (_sum(details, kind) for kind in ("input", "output"))
    usage = table(record.get("usage"))
    return (
        first_count(usage, "input", "promptTokens") if asked is None else asked,
        first_count(usage, "output", "completionTokens") if given is None else given,
    )


def _sum(details: Mapping[str, object], kind: str) -> int | None:
    counts = [count for key, value in details.items() if kind in key and (count := whole(value)) is not None]
    return sum(counts) if counts else None
