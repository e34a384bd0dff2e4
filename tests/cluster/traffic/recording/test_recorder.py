import json
import threading
from io import FileIO
from pathlib import Path

import pytest

from cluster.traffic.recording import recorder as module
from cluster.traffic.recording.exchange import Exchange
from cluster.traffic.recording.recorder import RECORDED, Recorder
from cluster.traffic.trace import TraceError, read_trace
from tests.cluster.traffic.encoding import words

SYSTEM = " ".join(f"rule{i}" for i in range(40))


def chat(at: float, *turns: str, answer: str, session: str | None = None) -> Exchange:
    messages = [{"role": "system", "content": SYSTEM}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    reply = {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]}
    return Exchange(
        arrival_s=at,
        duration_s=0.25,
        path="/v1/chat/completions",
        asked=json.dumps({"messages": messages}).encode(),
        answered=json.dumps(reply).encode(),
        session_id=session,
    )


def test_what_is_written_is_a_trace_of_lengths_blocks_and_sessions_without_text(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with Recorder(out, words, block_tokens=16) as recorder:
        recorder.take(chat(0.5, "secret one", answer="a b c"))
        recorder.take(chat(2.0, "secret one", "a b c", "go on", answer="d e"))
        recorder.take(chat(1.0, "secret two", answer="f"))
    assert recorder.counts == {RECORDED: 3}
    trace = read_trace(out)
    assert [(r.arrival_s, r.output_length, r.session_id) for r in trace.requests] == [
        (0.0, 3, "s0"),
        (0.5, 1, "s1"),
        (1.5, 2, "s0"),
    ]
    assert [r.duration_s for r in trace.requests] == [0.25] * 3
    # 41 words of system prompt with its role, then the user's: two whole blocks of 16 are shared by all.
    assert [r.hash_ids[:2] for r in trace.requests] == [(0, 1)] * 3
    assert trace.requests[0].input_length == 44
    content = out.read_text()
    assert not any(word in content for word in ("secret", "rule1", "go on"))


def test_text_and_the_clients_session_ids_stay_where_they_are_asked_for(tmp_path: Path) -> None:
    for keep, name in ((True, "ann@example.com"), (False, "c0")):
        out = tmp_path / f"{keep}.jsonl"
        with Recorder(out, words, block_tokens=16, keep_text=keep) as recorder:
            recorder.take(chat(0, "hello", answer="x", session="ann@example.com"))
        (only,) = read_trace(out).requests
        assert only.session_id == name
        assert (only.messages is not None) is keep


def test_every_line_is_whole_while_the_recording_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with Recorder(out, words, block_tokens=16) as recorder:
        for number in range(50):
            recorder.take(chat(number, f"question {number}", answer="x"))
            # The line that is just being written may show in part to who reads meanwhile.
            assert all(json.loads(line) for line in out.read_bytes().split(b"\n")[:-1])
    assert len(read_trace(out).requests) == 50


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    out.write_text("precious")
    with pytest.raises(TraceError, match="is there already"):
        Recorder(out, words, block_tokens=16)
    assert out.read_text() == "precious"
    with pytest.raises(TraceError, match="cannot be written"):
        Recorder(tmp_path / "absent" / "t.jsonl", words, block_tokens=16)


def test_a_recording_of_nothing_leaves_no_file(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl", words, block_tokens=16) as recorder:
        recorder.take(chat(0, "hello", answer=""))
    assert list(tmp_path.iterdir()) == []
    assert recorder.counts == {"not recorded: no answer": 1}


def test_a_recorder_that_falls_behind_loses_exchanges_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    busy, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> list[int]:
        busy.set()
        go_on.wait()
        return words(text)

    with Recorder(tmp_path / "t.jsonl", slow, block_tokens=16) as recorder:
        recorder.take(chat(0, "one", answer="x"))
        busy.wait()  # the first is being written, so two may wait
        for number in range(5):
            recorder.take(chat(number, "more", answer="x"))
        go_on.set()
    assert recorder.counts == {RECORDED: 3, "lost: the recorder fell behind": 3}


def test_a_full_disk_is_told_and_what_comes_after_is_counted(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, a device that is always full")
    told = threading.Event()
    recorder = Recorder(tmp_path / "t.jsonl", words, block_tokens=16)
    recorder.on_failure(told.set)
    recorder._file.close()
    recorder._file = FileIO("/dev/full", "w")
    with recorder:
        recorder.take(chat(0, "one", answer="x"))
        assert told.wait(10)
        recorder.take(chat(1, "two", answer="x"))
    assert recorder.error is not None
    assert recorder.error.strerror == "No space left on device"
    assert recorder.counts == {"lost: the file cannot be written": 1}
