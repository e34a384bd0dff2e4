"""What a format's module makes of one row of a file: a request, or the reason why there is none."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from cluster.traffic.request import Message, TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recorded request as its format tells it; what the format does not tell is None."""

    line: int
    at_s: float | None = None
    """Seconds from any origin, the same for the whole file."""
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: tuple[int, ...] = ()
    block_tokens: int | None = None
    session_id: str | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that gives no request."""

    line: int
    reason: str
    """The same words for all rows dropped for the same reason: they are counted by it."""
    detail: str = ""
    """What this row has that is wrong, where there is more to say."""
    bad: bool = True
    """Whether the row is not what its format promises; else it is a request that was never served."""


Rows = Iterator[Row | Dropped]


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Numbered rows of a CSV file that has these columns, among others.

    Raises:
        TraceError: where a column is missing, or the file cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.DictReader(file, restval="")
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise TraceError([f"{path}:1: no column {', '.join(missing)}"])
            for row in reader:
                yield reader.line_num, row
    except (OSError, csv.Error) as error:
        raise TraceError([f"{path}: cannot be read: {error}"]) from error


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, object] | Dropped]]:
    """Numbered objects of a file of JSON lines; a line that is none is dropped.

    Raises:
        TraceError: where the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
                except orjson.JSONDecodeError as error:
                    yield number, Dropped(line=number, reason="not JSON", detail=error.msg)
                    continue
                if isinstance(record, dict):
                    yield number, record
                else:
                    yield number, Dropped(line=number, reason="not a JSON object")
    except OSError as error:
        raise TraceError([f"{path}: cannot be read: {error.strerror or error}"]) from error


def whole(value: object) -> int | None:
    """A count that is not negative, from a number or its text; None where it is no such thing."""
    if isinstance(value, str):
        return int(value) if value.strip().isascii() and value.strip().isdigit() and len(value) < 19 else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def instant(value: object) -> float | None:
    """Seconds since 1970 from ISO 8601 text (UTC where it names no zone) or an epoch in s or ms."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e14:
        return None
    # Seconds pass 1e11 in the year 5138; milliseconds passed it in 1973.
    return value / 1000 if value >= 1e11 else float(value)


def chat(value: object) -> tuple[Message, ...] | None:
    """Chat messages of text; None where it is anything else. Parts that are text are joined."""
    if not isinstance(value, list) or not value:
        return None
    found: list[Message] = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(role := item.get("role"), str):
            return None
        text = _text(item.get("content"))
        if text is None:
            return None
        found.append(Message(role=role, content=text))
    return tuple(found)


def _text(content: object) -> str | None:
    if isinstance(content, str):
        return content
    if content is None:  # an assistant's message that only calls tools
        return ""
    if not isinstance(content, list):
        return None
    parts = [part.get("text") if isinstance(part, dict) else None for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else None
