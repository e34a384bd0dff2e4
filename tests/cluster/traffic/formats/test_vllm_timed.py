from pathlib import Path

from cluster.traffic.formats.importing import import_trace
from tests.cluster.traffic.formats.files import failure, lines


def line(at: float, length: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": ids, **more}


def test_sixteen_token_blocks_tell_a_timed_trace_from_mooncakes(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", line(0, 40, [1, 2, 3]), line(1.5, 33, [1, 2, 9]))
    trace, report = import_trace(path)
    assert (report.format, trace.block_tokens) == ("vllm-timed", 16)
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.5]  # seconds
    mooncake = lines(tmp_path / "m.jsonl", line(0, 600, [1, 2]), line(1500, 513, [1, 9]))
    trace, report = import_trace(mooncake)
    assert (report.format, trace.block_tokens) == ("mooncake", 512)
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.5]  # milliseconds
    ours = lines(tmp_path / "o.jsonl", line(0, 40, [1, 2, 3], block_size=16))
    assert import_trace(ours)[1].format == "mooncake"


def test_qwens_chats_are_sessions_by_their_first_one(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "q.jsonl",
        line(0, 20, [1, 2], chat_id=7, parent_chat_id=-1, turn=1, type="text"),
        line(1, 20, [3, 4], chat_id=8, parent_chat_id=-1, turn=1, type="text"),
        line(2, 40, [1, 2, 5], chat_id=9, parent_chat_id=7, turn=2, type="text"),
        line(3, 60, [1, 2, 5, 6], chat_id=10, parent_chat_id=9, turn=3, type="text"),
    )
    trace, _ = import_trace(path)
    assert [r.session_id for r in trace.requests] == ["s0", "s1", "s0", "s0"]


def test_blocks_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", line(0, 40, [1, 2, 3]), line(1, 40, [1]), line(2, 40, [-1, 2, 3]))
    said = failure(path, format="vllm-timed")
    assert f"{path}:2: blocks that do not fit: 1 hash_ids for input_length 40: blocks have 16" in said
    assert f"{path}:3: no blocks: hash_ids must be whole numbers" in said
