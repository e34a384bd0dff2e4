"""Traces from outside: kept whole, or refused at their first bad byte."""

import asyncio
import gzip
import itertools
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.traffic.trace import Trace, read_trace
from tuner.mistakes import Mistake
from tuner.service.job_files import ServiceFiles
from tuner.service.uploads import Limits, TooLarge, receive_trace

LIMITS = Limits(bytes=100_000, unpacked_bytes=200_000, line_bytes=10_000, requests=500)


def _lines(count: int) -> bytes:
    lines = ({"timestamp": 10 * at, "input_length": 5 + at % 7, "output_length": 3} for at in range(count))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class _Counted:
    """Chunks as they are taken."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self.taken = 0
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            self.taken += 1
            yield chunk


def _receive(folder: Path, chunks: Sequence[bytes], limits: Limits = LIMITS) -> Trace:
    files = ServiceFiles(folder / "runs")
    files.make()
    return asyncio.run(receive_trace(aiter(_Counted(chunks)), files, limits))


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "runs" / "service").rglob("*") if path.is_file())


@given(
    st.integers(1, 40), st.lists(st.integers(0, 3000), max_size=8), st.sampled_from(["plain", "gzip", "two"])
)
@settings(max_examples=40)
def test_a_trace_is_the_same_however_it_is_cut_and_packed(
    tmp_path_factory: pytest.TempPathFactory, count: int, cuts: list[int], packing: str
) -> None:
    folder = tmp_path_factory.mktemp("upload")
    plain = _lines(count)
    (folder / "plain.jsonl").write_bytes(plain)
    half = len(plain) // 2
    sent = {
        "plain": plain,
        "gzip": gzip.compress(plain),
        "two": gzip.compress(plain[:half]) + gzip.compress(plain[half:]),
    }[packing]
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    chunks = [sent[start:end] for start, end in itertools.pairwise(places)]
    trace = _receive(folder, chunks)
    assert trace.digest == read_trace(folder / "plain.jsonl").digest
    kept = folder / "runs" / "service" / "traces" / f"{trace.digest}.jsonl.gz"
    assert read_trace(kept) == trace


def test_the_same_trace_is_kept_once(tmp_path: Path) -> None:
    first = _receive(tmp_path, [_lines(5)])
    assert _receive(tmp_path, [gzip.compress(_lines(5))]).digest == first.digest
    assert _left(tmp_path) == [f"{first.digest}.jsonl.gz"]


def test_a_bomb_of_gzip_ends_where_it_has_unpacked_too_much(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\n" * 50_000_000)
    assert len(bomb) < LIMITS.bytes
    with pytest.raises(TooLarge):
        _receive(tmp_path, [bomb])
    lines = gzip.compress(b" " * 50_000_000)
    with pytest.raises(TooLarge):
        _receive(tmp_path, [lines])
    assert _left(tmp_path) == []


def test_what_an_upload_left_that_was_killed_is_swept_and_traces_are_kept(tmp_path: Path) -> None:
    kept = _receive(tmp_path, [_lines(5)])
    files = ServiceFiles(tmp_path / "runs")
    (files.folder / ".upload-x1").mkdir()
    (files.folder / ".upload-x1" / "trace.jsonl").write_bytes(_lines(3))
    files.sweep()
    assert _left(tmp_path) == [f"{kept.digest}.jsonl.gz"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(bytes=1000), "over 1000 bytes"),
        (Limits(unpacked_bytes=1000), "unpacks to over 1000"),
        (Limits(requests=10), "over 10 lines"),
        (Limits(line_bytes=20), "line 1 has over 20 bytes"),
    ],
)
def test_each_limit_holds(tmp_path: Path, limits: Limits, told: str) -> None:
    sent = _lines(100)
    with pytest.raises(TooLarge, match=told):
        _receive(tmp_path, [sent[at : at + 30] for at in range(0, len(sent), 30)], limits)
    assert _left(tmp_path) == []


def test_what_comes_after_the_first_bad_line_is_not_read(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path / "runs")
    files.make()
    chunks = _Counted([_lines(2), b'{"timestamp": 1}\n', *[_lines(1)] * 50])
    with pytest.raises(Mistake, match=r"line 3: .*input_length"):
        asyncio.run(receive_trace(aiter(chunks), files, LIMITS))
    assert chunks.taken == 2
    assert _left(tmp_path) == []


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", "no requests"),
        (b"\n\n", "no requests"),
        (b"\x1f", "line 1 is no JSON"),
        (b"hello\n", "line 1 is no JSON"),
        (b"[1]\n", "no JSON object"),
        (b'{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', "line 1 is no JSON"),
        (gzip.compress(_lines(9))[:-12], "middle of its gzip"),
        (b"\x1f\x8b" + b"x" * 50, "no gzip"),
        (gzip.compress(_lines(2)) + b"rest", "no gzip"),
        (zlib.compress(_lines(2)), "line 1 is no JSON"),
    ],
)
def test_what_is_no_trace_is_refused_and_leaves_nothing(tmp_path: Path, sent: bytes, told: str) -> None:
    with pytest.raises(Mistake, match=told) as refused:
        _receive(tmp_path, [sent])
    assert str(tmp_path) not in str(refused.value)
    assert _left(tmp_path) == []


def test_faults_that_show_only_in_the_whole_name_no_file_of_the_service(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 600, "output_length": 1}
    sent = (
        json.dumps(line | {"hash_ids": [1], "block_size": 1000})
        + "\n"
        + json.dumps(line | {"hash_ids": [1, 2]})
    )
    with pytest.raises(Mistake, match="a trace has one") as refused:
        _receive(tmp_path, [sent.encode()])
    assert str(tmp_path) not in str(refused.value)
