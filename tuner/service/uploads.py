"""A trace from outside, checked as it streams: it is never held in memory, and a bad one ends at its first
bad line.

Bytes are counted packed and unpacked, so a few of gzip cannot become many; each line is read by the reader
of traces. What passed is read once more as a whole and kept under the digest of its canonical lines, so no
name from outside becomes a file's, and the same trace is kept once.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson
from starlette.concurrency import run_in_threadpool

from cluster.traffic.request import LineFaults, from_record
from cluster.traffic.trace import Trace, TraceError, read_trace, write_trace
from tuner.mistakes import Mistake
from tuner.service.job_files import UPLOADING, ServiceFiles

GZIP = b"\x1f\x8b"
_STEP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one upload."""

    bytes: int = 256 << 20
    """As they come over the network."""
    unpacked_bytes: int = 1 << 30
    line_bytes: int = 8 << 20
    requests: int = 1_000_000


class TooLarge(Mistake):
    """An upload is over a limit."""


async def receive_trace(stream: AsyncIterator[bytes], files: ServiceFiles, limits: Limits) -> Trace:
    """Receive a trace, plain or gzip, and keep it.

    Raises:
        TooLarge: it is over a limit.
        Mistake: a line of it is no request, or it is none as a whole.
    """
    with tempfile.TemporaryDirectory(prefix=UPLOADING, dir=files.folder) as folder:
        plain = Path(folder) / "trace.jsonl"
        with plain.open("wb") as file:
            check = _Check(file, limits)
            async for chunk in stream:
                await run_in_threadpool(check.take, chunk)
            await run_in_threadpool(check.end)
        return await run_in_threadpool(_keep, plain, files)


def _keep(plain: Path, files: ServiceFiles) -> Trace:
    try:
        trace = read_trace(plain)
    except TraceError as error:
        raise Mistake(str(error).replace(f"{plain}", "the trace")) from error
    kept = files.trace(trace.digest)
    if not kept.exists():
        write_trace(trace, kept)
    return trace


class _Check:
    """What has come so far."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._taken = 0
        self._unpacked = 0
        self._lines = 0
        self._open = b""  # of a line whose end has not come
        self._head = b""
        self._unpack: zlib._Decompress | None = None
        self._begun = False

    def take(self, chunk: bytes) -> None:
        self._taken += len(chunk)
        if self._taken > self._limits.bytes:
            raise TooLarge(f"the trace has over {self._limits.bytes} bytes, the most this service takes")
        if not self._begun:
            self._head += chunk
            if len(self._head) < len(GZIP):
                return
            self._begin()
            chunk, self._head = self._head, b""
        for plain in self._unpacked_pieces(chunk):
            self._write(plain)

    def end(self) -> None:
        if not self._begun and self._head:
            self._write(self._head)
        if self._unpack is not None and not self._unpack.eof:
            raise Mistake("the trace ends in the middle of its gzip stream")
        if self._open.strip():
            self._line(self._open)

    def _begin(self) -> None:
        self._begun = True
        if self._head.startswith(GZIP):
            self._unpack = zlib.decompressobj(wbits=31)

    def _unpacked_pieces(self, chunk: bytes) -> Iterator[bytes]:
        if self._unpack is None:
            yield chunk
            return
        while chunk:
            if self._unpack.eof:  # a gzip file may be several, one after the other
                self._unpack = zlib.decompressobj(wbits=31)
            try:
                plain = self._unpack.decompress(chunk, _STEP)
            except zlib.error as error:
                raise Mistake(f"the trace is no gzip: {error}") from None
            chunk = self._unpack.unused_data if self._unpack.eof else self._unpack.unconsumed_tail
            yield plain

    def _write(self, plain: bytes) -> None:
        self._unpacked += len(plain)
        if self._unpacked > self._limits.unpacked_bytes:
            raise TooLarge(f"the trace unpacks to over {self._limits.unpacked_bytes} bytes")
        self._file.write(plain)
        *whole, self._open = (self._open + plain).split(b"\n")
        for line in whole:
            self._line(line)
        if len(self._open) > self._limits.line_bytes:
            raise TooLarge(f"line {self._lines + 1} has over {self._limits.line_bytes} bytes")

    def _line(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > self._limits.requests:
            raise TooLarge(f"the trace has over {self._limits.requests} lines")
        text = line.strip().removeprefix(b"\xef\xbb\xbf")
        if not text:
            return
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise Mistake(f"line {self._lines} is no JSON: {error.msg}") from None
        if not isinstance(record, dict):
            raise Mistake(f"line {self._lines} is no JSON object")
        try:
            from_record(record, origin_ms=0.0)
        except LineFaults as wrong:
            raise Mistake(f"line {self._lines}: {'; '.join(wrong.faults)}") from None
