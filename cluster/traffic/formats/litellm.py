"""LiteLLM: its standard logging payload as JSON lines or an array, and its spend logs, as those or as CSV.

Source: docs.litellm.ai/docs/proxy/logging_spec. Messages are there only where they are stored, which spend
logs do not do unless told to. A trace id is the session's id that clients may give; without one, LiteLLM
makes one up for each request.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import csv_rows, head, is_csv_of, json_rows
from cluster.traffic.formats.values import answer_of, first_count, instant, lasted_s, prompt_of

_COLUMNS = ("startTime", "prompt_tokens", "completion_tokens")
_TEXT_CALLS = frozenset({"", "completion", "acompletion", "text_completion", "atext_completion"})


def recognises(begins: str) -> bool:
    """Whether a file that begins like this is one."""
    return is_csv_of(begins, _COLUMNS) or (
        begins.lstrip()[:1] in ("{", "[") and all(f'"{key}"' in begins for key in (*_COLUMNS, "call_type"))
    )


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, record in _records(path):
        yield record if isinstance(record, Dropped) else _row(line, _payload(record))


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, object] | Dropped]]:
    return csv_rows(path, _COLUMNS) if is_csv_of(head(path), _COLUMNS) else json_rows(path)


def _payload(record: Mapping[str, object]) -> Mapping[str, object]:
    """The payload itself, where a callback logged it with everything around it."""
    for key in ("kwargs", "standard_logging_object"):
        inner = record.get(key)
        record = inner if isinstance(inner, dict) else record
    return record


def _row(line: int, record: Mapping[str, object]) -> Row | Dropped:
    at = instant(_number(record.get("startTime")))
    if at is None:
        return Dropped(line=line, reason="no time", detail=f"startTime is {record.get('startTime')!r:.40}")
    if str(record.get("status") or "success").lower() != "success":
        return Dropped(line=line, reason="failed when it was recorded", bad=False)
    if str(record.get("call_type") or "") not in _TEXT_CALLS:
        return Dropped(line=line, reason="not a call for text", bad=False)
    if str(record.get("cache_hit")).lower() == "true":
        return Dropped(line=line, reason="answered from the gateway's cache", bad=False)
    prompt, messages = prompt_of(record.get("messages"))
    session = record.get("session_id") or record.get("trace_id")
    return Row(
        line=line,
        at_s=at,
        duration_s=lasted_s(at, instant(_number(record.get("endTime")))),
        input_length=first_count(record, "prompt_tokens"),
        output_length=first_count(record, "completion_tokens"),
        session_id=session if isinstance(session, str) and session else None,
        prompt=prompt,
        messages=messages,
        answer=answer_of(record.get("response")),
    )


def _number(value: object) -> object:
    """A number that CSV made text, as one; anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
