"""A trace: recorded requests without their text, as JSON lines; read, checked, written.

The line format is Mooncake's (FAST '25): `timestamp` in ms, `input_length`, `output_length`, `hash_ids`
(one a block of 512 tokens; equal leading ids mean a shared prefix), plus optional `duration_ms` and
`session_id`, and literal `prompt` or `messages` where text is known. A trace in other blocks says so with
`block_size` on its lines, the same on all of them, so that any line stands on its own and any slice is a
trace.

A file is read line by line: memory goes with the requests kept, not with the bytes read.
"""

import gzip
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from cluster.traffic.lines import MAX_LINE_BYTES, READ_ERRORS, numbered, reason
from cluster.traffic.request import (
    BLOCK_TOKENS,
    LineFaults,
    Message,
    Request,
    TraceError,
    from_record,
    timestamp_ms,
    to_line,
    unknown_keys,
)

__all__ = [
    "BLOCK_TOKENS",
    "FAULTS_SHOWN",
    "Message",
    "Request",
    "Trace",
    "TraceError",
    "assemble",
    "read_trace",
    "write_trace",
]

FAULTS_SHOWN = 10
"""Faults of one file that are kept and shown; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival, and where they came from."""

    requests: tuple[Request, ...]
    block_tokens: int = BLOCK_TOKENS
    digest: str = ""
    """SHA-256 of the canonical lines, hex: two traces with one digest are the same traffic."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a reader of the trace must know, one sentence each: what was sorted, ignored, spread."""


def assemble(
    requests: Iterable[Request], *, block_tokens: int = BLOCK_TOKENS, notes: Iterable[str] = ()
) -> Trace:
    """The trace of these requests: in order of arrival (ties as given), the first at 0, digest computed.

    Times are rounded to whole microseconds, the resolution of a trace's file.
    """
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    start_us = round(ordered[0].arrival_s * 1e6) if ordered else 0
    digest = hashlib.sha256()
    placed: list[Request] = []
    for request in ordered:
        arrival_s = (round(request.arrival_s * 1e6) - start_us) / 1e6
        lasted_s = request.duration_s
        duration_s = None if lasted_s is None else round(lasted_s * 1e6) / 1e6
        if arrival_s != request.arrival_s or duration_s != lasted_s:
            request = replace(request, arrival_s=arrival_s, duration_s=duration_s)
        placed.append(request)
        digest.update(to_line(request, block_tokens))
    return Trace(
        requests=tuple(placed), block_tokens=block_tokens, digest=digest.hexdigest(), notes=tuple(notes)
    )


def read_trace(path: str | os.PathLike[str], *, max_context: int | None = None) -> Trace:
    """Read and check a trace's file (`.gz`: compressed).

    Requests out of order are sorted, and a note says how many: recorders that log at a request's end
    write such files, and nothing is lost by sorting. Keys that are not known are ignored, with a note.

    Args:
        path: the file.
        max_context: tokens that a request's prompt and answer may take together, if that is known.

    Raises:
        TraceError: with every fault by file and line, where there is any; also where the file cannot
            be opened or has no requests in it.
    """
    reading = _Reading(os.fspath(path), max_context)
    requests = list(reading.requests())
    if not requests and not reading.faults:
        reading.fault(None, "no requests in it")
    if reading.faults:
        raise TraceError(reading.faults, reading.more)
    return assemble(requests, block_tokens=reading.block_tokens or BLOCK_TOKENS, notes=reading.notes())


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the trace's canonical lines (`.gz`: compressed); the file appears whole or not at all.

    Raises:
        TraceError: where the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw:
            # No name and no time in the header: the same trace gives the same bytes.
            packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if target.suffix == ".gz" else None
            out = packed or raw
            for request in trace.requests:
                out.write(to_line(request, trace.block_tokens))
            if packed is not None:
                packed.close()
        partial.replace(target)
    except OSError as error:
        raise TraceError([f"{target}: cannot be written: {error.strerror or error}"]) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


class _Reading:
    """One file being read: its faults, and what was learnt of it so far."""

    def __init__(self, name: str, max_context: int | None) -> None:
        self.name = name
        self.max_context = max_context
        self.faults: list[str] = []
        self.more = 0
        self.block_tokens: int | None = None
        self._block_line = 0
        self._origin_ms: float | None = None
        self._latest_s = 0.0
        self._late_lines = 0
        self._ignored: Counter[str] = Counter()

    def fault(self, line: int | None, what: str) -> None:
        """Note a fault, or only count it where enough are noted."""
        if len(self.faults) == FAULTS_SHOWN:
            self.more += 1
            return
        place = self.name if line is None else f"{self.name}:{line}"
        self.faults.append(f"{place}: {what}")

    def requests(self) -> Iterator[Request]:
        """The requests of the good lines, in the file's order; the bad ones become faults."""
        for number, raw in self._lines():
            text = raw.strip()
            if not text:
                continue
            try:
                record = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                self.fault(number, _not_json(raw, error))
                continue
            if not isinstance(record, dict):
                self.fault(number, f"not a JSON object but {type(record).__name__}")
                continue
            request = self._request(number, record)
            if request is not None:
                yield request

    def notes(self) -> tuple[str, ...]:
        """What reading did that the reader of the trace must know."""
        notes: list[str] = []
        if self._late_lines:
            notes.append(f"{self._late_lines} lines were out of order of arrival: sorted")
        if self._ignored:
            keys = ", ".join(sorted(self._ignored))
            notes.append(f"ignored keys that a trace does not have: {keys}")
        return tuple(notes)

    def _request(self, number: int, record: dict[str, object]) -> Request | None:
        """The line's request, or None after noting what is wrong with it."""
        if self._origin_ms is None:
            self._origin_ms = timestamp_ms(record, [])
        try:
            request, block_tokens = from_record(record, origin_ms=self._origin_ms or 0.0)
        except LineFaults as wrong:
            for fault in wrong.faults:
                self.fault(number, fault)
            return None
        if not self._agrees(number, block_tokens) or not self._fits(number, request):
            return None
        self._late_lines += request.arrival_s < self._latest_s
        self._latest_s = max(self._latest_s, request.arrival_s)
        self._ignored.update(unknown_keys(record))
        return request

    def _agrees(self, number: int, block_tokens: int | None) -> bool:
        """Whether the line is written in the file's block size, which the first line to have one sets."""
        if block_tokens is None or block_tokens == self.block_tokens:
            return True
        if self.block_tokens is None:
            self.block_tokens, self._block_line = block_tokens, number
            return True
        self.fault(
            number,
            f"block_size {block_tokens}, but {self.block_tokens} on line {self._block_line}: a trace has one",
        )
        return False

    def _fits(self, number: int, request: Request) -> bool:
        """Whether the model's context, if known, can hold the request."""
        total = request.input_length + request.output_length
        if self.max_context is None or total <= self.max_context:
            return True
        self.fault(
            number,
            f"input_length {request.input_length} + output_length {request.output_length} = {total} tokens "
            f"is over the model's context of {self.max_context}",
        )
        return False

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Numbered lines, from 1; a fault to the file itself ends them."""
        number = 0
        try:
            for number, raw in numbered(self.name):
                if raw is None:
                    self.fault(number, f"longer than {MAX_LINE_BYTES} bytes")
                else:
                    yield number, raw
        except READ_ERRORS as error:
            self.fault(number or None, f"cannot be read: {reason(error)}")


def _not_json(raw: bytes, error: orjson.JSONDecodeError) -> str:
    """Why a line is not JSON, with the two reasons that are met most called by name."""
    if b"NaN" in raw or b"Infinity" in raw:
        return "not JSON: it has NaN or Infinity in it, which is no number of milliseconds or tokens"
    if not raw.endswith(b"\n"):
        return "not JSON: the file ends in the middle of this line"
    return f"not JSON: {error.msg} at column {error.colno}"
