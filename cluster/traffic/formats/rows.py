"""Rows of what exports come in: JSON lines, one JSON array, CSV; row by row, `.gz` unpacked."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

import orjson

from cluster.traffic.formats.row import Dropped
from cluster.traffic.lines import MAX_LINE_BYTES, READ_ERRORS, numbered, opened, reason
from cluster.traffic.request import TraceError

_HEAD_BYTES = 65_536
_CHUNK = 2**20
_SPACE = " \t\r\n"

Record = tuple[int, dict[str, object] | Dropped]


def head(path: Path) -> str:
    """How the file begins.

    Raises:
        TraceError: where it can't be read.
    """
    try:
        with opened(path) as file:
            return file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except READ_ERRORS as error:
        raise _unreadable(path, error) from error


def is_csv_of(begins: str, columns: Sequence[str]) -> bool:
    """Whether a file that begins like this has a line of headings with these among them."""
    first = begins.partition("\n")[0]
    return all(column in first for column in columns) and not first.lstrip().startswith(("{", "["))


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Numbered rows of a CSV file that has these columns, among others.

    Raises:
        TraceError: where a column is missing, or the file can't be read.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # csv's own 128 KiB is less than a prompt may have
    try:
        with TextIOWrapper(opened(path), encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.DictReader(file, restval="")
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise TraceError([f"{path}:1: no column {', '.join(missing)}"])
            for row in reader:
                yield reader.line_num, row
    except (*READ_ERRORS, csv.Error) as error:
        raise _unreadable(path, error) from error


def json_rows(path: Path) -> Iterator[Record]:
    """Numbered objects of a file of JSON lines, or of one JSON array; what is none is dropped.

    An array is read element by element, and numbered by them, from 1.

    Raises:
        TraceError: where the file can't be read, or an array's element is not JSON.
    """
    try:
        yield from _elements(path) if head(path).lstrip().startswith("[") else _lines(path)
    except READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _lines(path: Path) -> Iterator[Record]:
    for number, raw in numbered(path):
        if raw is None:
            yield number, Dropped(line=number, reason="line too long", detail=f"over {MAX_LINE_BYTES} bytes")
            continue
        if not raw.strip():
            continue
        try:
            record = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            yield number, Dropped(line=number, reason="not JSON", detail=error.msg)
            continue
        yield number, _object(number, record)


def _elements(path: Path) -> Iterator[Record]:
    decode = json.JSONDecoder().raw_decode
    number = 0
    with TextIOWrapper(opened(path), encoding="utf-8-sig", errors="replace") as file:
        text, ended = file.read(_CHUNK).lstrip(_SPACE).removeprefix("["), False
        while not (text := text.lstrip(_SPACE + ",")).startswith("]"):
            try:
                record, end = decode(text)
            except (ValueError, RecursionError) as error:
                if ended or len(text) > MAX_LINE_BYTES:  # where the next one begins can't be told
                    place = f"element {number + 1} of its array"
                    raise TraceError([f"{path}:{number + 1}: not JSON: {place}: {error}"]) from error
                record, end = None, len(text)
            # An element that ends with what was read so far may go on: 12 of 123.
            if end < len(text) or ended:
                number, text = number + 1, text[end:]
                yield number, _object(number, record)
                continue
            more = file.read(_CHUNK)
            text, ended = text + more, not more


def _object(number: int, record: object) -> dict[str, object] | Dropped:
    return record if isinstance(record, dict) else Dropped(line=number, reason="not a JSON object")


def _unreadable(path: Path, error: Exception) -> TraceError:
    return TraceError([f"{path}: cannot be read: {reason(error)}"])
