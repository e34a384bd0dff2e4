import gzip
import json
import pickle
import tracemalloc
from pathlib import Path

import pytest

from cluster.traffic.trace import Message, Request, Trace, TraceError, assemble, read_trace, write_trace
from tests.cluster.traffic.encoding import public

GOOD = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [3, 4]}


def write(folder: Path, *lines: object, name: str = "t.jsonl") -> Path:
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def faults(path: Path, **options: int) -> list[str]:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **options)
    return [fault.removeprefix(f"{path}") for fault in caught.value.faults]


def test_reads_what_a_mooncake_line_says(tmp_path: Path) -> None:
    later = {**GOOD, "timestamp": 2500.5, "session_id": "a", "hash_ids": [3, 9], "duration_ms": 830.25}
    trace = read_trace(write(tmp_path, {**GOOD, "timestamp": 1000}, later))
    assert trace.block_tokens == 512
    assert trace.requests == (
        Request(arrival_s=0.0, input_length=700, output_length=5, hash_ids=(3, 4)),
        Request(
            arrival_s=1.5005,
            input_length=700,
            output_length=5,
            hash_ids=(3, 9),
            session_id="a",
            duration_s=0.83025,
        ),
    )


def test_reads_literal_text(tmp_path: Path) -> None:
    bare = {"timestamp": 0, "input_length": 4, "output_length": 2}
    chat = [{"role": "system", "content": ""}, {"role": "user", "content": "hé"}]
    trace = read_trace(write(tmp_path, {**bare, "prompt": "Once"}, {**bare, "messages": chat}))
    assert trace.requests[0].prompt == "Once"
    assert trace.requests[1].messages == (
        Message(role="system", content=""),
        Message(role="user", content="hé"),
    )


def test_the_first_request_in_time_is_at_zero_and_sorting_is_said(tmp_path: Path) -> None:
    lines = [{**GOOD, "timestamp": t, "output_length": o} for t, o in ((50, 1), (20, 2), (50, 3), (21, 4))]
    trace = read_trace(write(tmp_path, *lines))
    assert [r.output_length for r in trace.requests] == [2, 4, 1, 3]
    assert [r.arrival_s for r in trace.requests] == [0.0, 0.001, 0.03, 0.03]
    assert trace.notes == ("2 lines were out of order of arrival: sorted",)


def test_a_trace_in_smaller_blocks_says_so_on_its_lines(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3], "block_size": 16}
    assert read_trace(write(tmp_path, line, line)).block_tokens == 16
    plain = {"timestamp": 0, "input_length": 40, "output_length": 1}
    assert read_trace(write(tmp_path, plain, line)).block_tokens == 16
    mixed = write(tmp_path, line, {**GOOD, "timestamp": 3})
    assert faults(mixed) == [":2: block_size 512, but 16 on line 1: a trace has one"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_length": -1}, "input_length must lie between 1 and 16777216 tokens, got -1"),
        ({"output_length": 0}, "output_length must lie between 1 and 16777216 tokens, got 0"),
        ({"output_length": 2.5}, "output_length must be a whole number of tokens, got 2.5"),
        ({"input_length": "700"}, "input_length must be a whole number of tokens, got '700'"),
        ({"input_length": True}, "input_length must be a whole number of tokens, got True"),
        ({"input_length": None}, "input_length must be a whole number of tokens, got None"),
        ({"timestamp": -3}, "timestamp must lie between 0 and 8796093022208 ms, got -3"),
        ({"timestamp": 1e300}, "timestamp must lie between 0 and 8796093022208 ms, got 1e+300"),
        ({"timestamp": "noon"}, "timestamp must be a number of milliseconds, got 'noon'"),
        ({"duration_ms": -1}, "duration_ms must lie between 0 and 8796093022208 ms, got -1"),
        ({"duration_ms": "long"}, "duration_ms must be a number of milliseconds, got 'long'"),
        ({"duration_s": 3}, "unknown key 'duration_s': is it 'duration_ms'?"),
        ({"hash_ids": 7}, "hash_ids must be a list, got 7"),
        ({"hash_ids": [1, -2]}, "hash_ids must be whole numbers from 0 to 2^63 - 1, got -2"),
        ({"session_id": 7}, "session_id must be text that is not empty, got 7"),
        ({"prompt": ""}, "prompt must be text that is not empty, got ''"),
        ({"messages": []}, "messages must be a list that is not empty, got []"),
        (
            {"messages": [{"role": "user"}]},
            "messages[0] must have a role and a content of text, got {'role': 'user'}",
        ),
        (
            {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
            "prompt and messages are both given: keep one",
        ),
        (
            {"hash_ids": [1]},
            "1 hash_ids for input_length 700: blocks of 512 tokens make 2 "
            "(other blocks are declared by block_size)",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path: Path, change: dict[str, object], said: str) -> None:
    assert faults(write(tmp_path, GOOD, {**GOOD, **change})) == [f":2: {said}"]


def test_a_misspelt_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    short = {"timestamp": 0, "input_lenght": 700, "output_length": 5, "hash_id": [1, 2]}
    assert faults(write(tmp_path, short)) == [
        ":1: unknown key 'hash_id': is it 'hash_ids'?",
        ":1: unknown key 'input_lenght': is it 'input_length'?",
    ]


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert faults(write(tmp_path, {"input_length": 3})) == [
        ":1: timestamp is missing",
        ":1: output_length is missing",
    ]


def test_other_keys_are_ignored_and_said(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, {**GOOD, "chat_id": 1, "turn": 2, "type": "text"}))
    assert trace.notes == ("ignored keys that a trace does not have: chat_id, turn, type",)


def test_nan_is_called_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, '{"timestamp": NaN, "input_length": 1, "output_length": 1}')
    assert faults(path) == [
        ":2: not JSON: it has NaN or Infinity in it, which is no number of milliseconds or tokens"
    ]


def test_a_file_cut_off_in_mid_line_is_told_from_bad_json(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:30])
    assert faults(path) == [":2: not JSON: the file ends in the middle of this line"]
    path.write_text(json.dumps(GOOD)[:30] + "\n" + json.dumps(GOOD) + "\n[]\n")
    first, second = faults(path)
    assert first.startswith(":1: not JSON: ")
    assert second == ":3: not a JSON object but list"


def test_ten_faults_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    path = write(tmp_path, *["{}x"] * 37)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert len(caught.value.faults) == 10
    assert caught.value.more == 27
    assert str(caught.value).splitlines()[-1] == "… and 27 more"


def test_a_request_longer_than_the_context_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, {**GOOD, "output_length": 324}, {**GOOD, "output_length": 325})
    assert len(read_trace(path, max_context=1025).requests) == 2
    assert faults(path, max_context=1024) == [
        ":2: input_length 700 + output_length 325 = 1025 tokens is over the model's context of 1024"
    ]


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_an_empty_file_has_no_requests(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    assert faults(path) == [": no requests in it"]


def test_a_file_that_cannot_be_opened_is_one_fault(tmp_path: Path) -> None:
    assert faults(tmp_path / "absent") == [": cannot be read: No such file or directory"]
    assert faults(tmp_path) == [": cannot be read: Is a directory"]
    with pytest.raises(TraceError, match="zero byte"):
        read_trace("a\0b")


def test_a_damaged_gzip_is_a_fault(tmp_path: Path) -> None:
    whole = gzip.compress("".join(json.dumps(GOOD) + "\n" for _ in range(1000)).encode())
    path = tmp_path / "t.jsonl.gz"
    for damaged in (whole[: len(whole) // 2], b"plain", whole[:20] + b"\xff" * 20 + whole[40:]):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match="cannot be read"):
            read_trace(path)


def test_the_digest_is_of_the_traffic_not_of_the_file(tmp_path: Path) -> None:
    spaced = write(tmp_path, '{"output_length":5, "timestamp":7.0, "x":1, "input_length":3}', name="a")
    plain = write(tmp_path, {"timestamp": 0, "input_length": 3, "output_length": 5}, "", name="b")
    assert read_trace(spaced).digest == read_trace(plain).digest
    other = write(tmp_path, {"timestamp": 0, "input_length": 3, "output_length": 6}, name="c")
    assert read_trace(other).digest != read_trace(plain).digest


def test_writing_gives_the_digested_lines_and_nothing_beside_them(tmp_path: Path) -> None:
    trace = assemble([Request(arrival_s=1.0, input_length=600, output_length=1, hash_ids=(1, 2))])
    write_trace(trace, tmp_path / "t.jsonl")
    write_trace(trace, tmp_path / "t.jsonl.gz")
    line = b'{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}\n'
    assert (tmp_path / "t.jsonl").read_bytes() == line
    assert gzip.decompress((tmp_path / "t.jsonl.gz").read_bytes()) == line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl", "t.jsonl.gz"]
    assert read_trace(tmp_path / "t.jsonl.gz") == trace


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    trace = assemble([Request(arrival_s=0.0, input_length=1, output_length=1)])
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        write_trace(trace, tmp_path / "absent" / "t.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(trace, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_traces_and_their_faults_survive_the_wire() -> None:
    trace = assemble([Request(arrival_s=0.0, input_length=1, output_length=1)])
    assert pickle.loads(pickle.dumps(trace)) == trace
    error = pickle.loads(pickle.dumps(TraceError(["a:1: b"], 4)))
    assert (error.faults, error.more, str(error)) == (("a:1: b",), 4, "a:1: b\n… and 4 more")


def test_memory_goes_with_the_requests_not_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    padding = "x" * 2000  # an ignored key makes the file ten times what its requests weigh
    with path.open("w") as out:
        for number in range(8_000):
            line = {"timestamp": number, "input_length": 300, "output_length": 400, "zzz": padding}
            out.write(json.dumps(line) + "\n")
    tracemalloc.start()
    try:
        trace: Trace = read_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace.requests) == 8_000
    assert path.stat().st_size > 16e6
    assert peak < 5e6


@pytest.mark.parametrize(
    ("name", "lines"), [("mooncake_conversation.jsonl", 12031), ("mooncake_synthetic.jsonl", 3993)]
)
def test_the_public_mooncake_traces_are_read_and_written_back_to_the_number(
    tmp_path: Path, name: str, lines: int
) -> None:
    path = public(name)
    trace = read_trace(path)
    assert (len(trace.requests), trace.notes) == (lines, ())
    write_trace(trace, tmp_path / "copy")
    with path.open() as original, (tmp_path / "copy").open() as copy:
        assert all(json.loads(a) == json.loads(b) for a, b in zip(original, copy, strict=True))
