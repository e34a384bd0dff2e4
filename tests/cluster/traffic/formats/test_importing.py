import csv
import gzip
import json
import tracemalloc
from datetime import datetime
from pathlib import Path

import pytest

from cluster.traffic.formats.importing import FORMATS, import_trace
from cluster.traffic.show import figures
from cluster.traffic.trace import Message, read_trace
from tests.cluster.traffic.encoding import public, words
from tests.cluster.traffic.formats.files import failure, lines


@pytest.mark.parametrize("name", ["azure_llm_2023_conv.csv", "azure_llm_2023_code.csv"])
def test_azure_rows_are_those_that_the_csv_module_and_datetime_find(name: str) -> None:
    path = public(name)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    trace, report = import_trace(path)
    assert (report.format, report.read, report.kept, report.dropped) == ("azure", len(rows), len(rows), {})
    shown = figures(trace)
    assert shown.input_length.total == sum(int(row["ContextTokens"]) for row in rows)
    assert shown.output_length.total == sum(int(row["GeneratedTokens"]) for row in rows)
    # strptime knows six digits of a second, the file has seven.
    first, last = (
        datetime.strptime(rows[i]["TIMESTAMP"][:-1], "%Y-%m-%d %H:%M:%S.%f")  # noqa: DTZ007
        for i in (0, -1)
    )
    assert shown.duration_s == pytest.approx((last - first).total_seconds(), abs=2e-6)


def test_azure_of_2024_writes_zones_and_whole_seconds(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00+00:00,10,2",
        "2024-05-10 00:00:00.500000+00:00,11,3",
        "2024-05-10 02:00:01+02:00,12,4",
    )
    trace, _ = import_trace(path)
    assert [(r.arrival_s, r.input_length) for r in trace.requests] == [(0.0, 10), (0.5, 11), (1.0, 12)]


def test_burstgpt_rows_without_an_answer_were_never_served() -> None:
    trace, report = import_trace(public("burstgpt_excerpt.csv"))
    assert (report.read, report.kept, dict(report.dropped)) == (24, 23, {"no tokens asked or given": 1})
    assert report.examples == ()
    assert figures(trace).sessions == 12


def test_mooncakes_rounded_arrivals_are_spread_and_nothing_else_changes() -> None:
    path = public("mooncake_conversation.jsonl")
    plain = read_trace(path)
    trace, report = import_trace(path)
    assert (report.read, report.kept) == (12031, 12031)
    (note,) = trace.notes
    assert "12031 requests on 1180 timestamps" in note
    moved = [b.arrival_s - a.arrival_s for a, b in zip(plain.requests, trace.requests, strict=True)]
    # By less than a step of 3 s, counted from the first request, which moved by so much itself.
    assert all(-3.0 < m < 3.0 for m in moved)
    assert [r.hash_ids for r in trace.requests] == [r.hash_ids for r in plain.requests]
    assert figures(plain).gap_cv == pytest.approx(3.03, abs=0.01)
    assert figures(trace).gap_cv == pytest.approx(1.0, abs=0.05)  # what Poisson arrivals have
    assert import_trace(path)[0].digest == trace.digest


def test_times_that_were_not_rounded_are_left_alone() -> None:
    path = public("mooncake_synthetic.jsonl")
    assert import_trace(path)[0] == read_trace(path)


def test_sharegpt_takes_the_first_exchange_at_the_rate_given(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    talk = [
        {"from": "human", "value": "a b c"},
        {"from": "gpt", "value": "d e"},
        {"from": "human", "value": "f"},
    ]
    wrong = [{"from": "gpt", "value": "x"}, {"from": "human", "value": "y"}]
    path.write_text(
        json.dumps([{"id": str(i), "conversations": talk} for i in range(400)] + [{"conversations": wrong}])
    )
    trace, report = import_trace(path, encode=words, rate=5.0, keep_text=True)
    assert (report.format, report.kept) == ("sharegpt", 400)
    assert report.dropped == {"begins with no question and answer": 1}
    first = trace.requests[0]
    assert (first.input_length, first.output_length) == (4, 2)  # the role is a word of the text
    assert first.messages == (Message(role="user", content="a b c"),)
    assert figures(trace).rate == pytest.approx(5.0, rel=0.2)
    assert "give a rate" in failure(path, encode=words)
    assert "give a model" in failure(path, rate=5.0)


def test_a_custom_dataset_of_vllm_has_prompts_and_output_lengths(tmp_path: Path) -> None:
    path = lines(tmp_path / "c.jsonl", {"prompt": "one two", "output_tokens": 10})
    trace, report = import_trace(path, encode=words, rate=1.0)
    (only,) = trace.requests
    assert (report.format, only.input_length, only.output_length, only.prompt) == ("vllm-custom", 2, 10, None)


def test_an_access_log_is_found_in_any_of_its_shapes(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    chat = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    path = lines(
        tmp_path / "log.jsonl",
        {"timestamp": "2026-01-01T00:00:00Z", "messages": chat, "usage": usage, "session_id": "s"},
        {"ts": 1767225601.5, "usage": {"input_tokens": 6, "output_tokens": 4}, "latency_ms": 250},
        {"time": 1767225602000, "request": {"body": {"prompt": "p"}}, "response": {"body": {"usage": usage}}},
        {"time": 1767225603000, "status": 503, "usage": usage},
    )
    trace, report = import_trace(path, keep_text=True)
    assert (report.format, report.dropped) == ("access-log", {"failed when it was recorded": 1})
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.5, 2.0]
    assert [(r.input_length, r.output_length) for r in trace.requests] == [(5, 3), (6, 4), (5, 3)]
    assert trace.requests[0].messages == (Message(role="user", content="hi"),)
    assert [r.duration_s for r in trace.requests] == [None, 0.25, None]
    assert (trace.requests[0].session_id, trace.requests[2].prompt) == ("s", "p")
    assert trace.notes == ("prefix sharing was not found out: that needs a model, for its tokenizer",)


def test_text_becomes_blocks_that_share_what_the_text_shares(tmp_path: Path) -> None:
    system = " ".join(f"word{i}" for i in range(40))
    path = lines(
        tmp_path / "log.jsonl",
        *[
            {"timestamp": i, "prompt": f"{system} {i} and more", "usage": {"completion_tokens": 3}}
            for i in range(3)
        ],
    )
    trace, _ = import_trace(path, encode=words)
    assert trace.block_tokens == 16
    assert [r.hash_ids for r in trace.requests] == [(0, 1, 2), (0, 1, 3), (0, 1, 4)]
    assert all(r.prompt is None for r in trace.requests)
    assert import_trace(path, encode=words)[0] == trace  # another key, the same numbers


def test_a_few_bad_rows_are_named_and_counted_and_many_stop_the_import(tmp_path: Path) -> None:
    good = [f"2023-11-16 18:15:{i:02}.0,5,5" for i in range(50)]
    path = lines(
        tmp_path / "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", *good, "noon,5,5", "2023-11-17,-1,5"
    )
    trace, report = import_trace(path, most_bad=0.05)
    assert (report.read, report.kept, report.dropped) == (52, 50, {"no time": 1, "no length": 1})
    assert report.examples == (
        f"{path}:52: no time: TIMESTAMP is 'noon'",
        f"{path}:53: no length: tokens must be whole numbers",
    )
    assert len(trace.requests) == 50
    assert f"{path}: 2 of 52 rows are bad as azure, over the 1% allowed\n{path}:52" in failure(path)


def test_what_cannot_be_imported_says_why_in_one_line(tmp_path: Path) -> None:
    unknown = lines(tmp_path / "x", "hello")
    assert failure(unknown).startswith(
        f"{unknown}: no format recognises it: name one of vllm-timed, mooncake, azure"
    )
    assert failure(unknown, format="azur") == "unknown format 'azur': is it 'azure'?"
    assert failure(unknown, format="azure") == (
        f"{unknown}:1: no column TIMESTAMP, ContextTokens, GeneratedTokens"
    )
    assert failure(tmp_path / "no") == f"{tmp_path / 'no'}: cannot be read: No such file or directory"
    empty = lines(tmp_path / "e.csv", "TIMESTAMP,ContextTokens,GeneratedTokens")
    assert failure(empty) == f"{empty}: no requests in it as azure"
    assert "rate must be a positive number" in failure(empty, rate=-1.0)


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff\xfe", b"{}\n[]\n1\n", b"[" * 2000, b'"', b"a,b\n\x00,\n", b'{"timestamp": NaN}'],
)
def test_hostile_files_are_faults_in_every_format(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    assert failure(path, format=name, rate=1.0, encode=words)


def test_session_ids_of_others_leave_as_numbers_unless_text_is_kept(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    users = ["ann@example.com", "bob", "ann@example.com"]
    path = lines(
        tmp_path / "log.jsonl", *[{"ts": i, "usage": usage, "session_id": u} for i, u in enumerate(users)]
    )
    assert [r.session_id for r in import_trace(path)[0].requests] == ["s0", "s1", "s0"]
    assert [r.session_id for r in import_trace(path, keep_text=True)[0].requests] == users


def test_a_chat_that_goes_on_is_one_session_and_its_answers_are_not_kept(tmp_path: Path) -> None:
    def asked(at: int, *turns: str, answer: str) -> dict[str, object]:
        roles = ("user", "assistant")
        chat = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        said = {"message": {"role": "assistant", "content": answer}}
        return {"ts": at, "messages": chat, "usage": {"completion_tokens": 2}, "choices": [said]}

    path = lines(
        tmp_path / "log.jsonl",
        asked(0, "tell me of Rome", answer="an old city"),
        asked(1, "tell me of Rome", answer="a city in Italy"),
        asked(2, "how are you", answer="fine"),
        asked(3, "tell me of Rome", "an old city", "how old", answer="very"),
        asked(4, "tell me of Rome", "an old city", "how old", "very", "thanks", answer="welcome"),
    )
    trace, _ = import_trace(path, encode=words)
    assert [r.session_id for r in trace.requests] == ["s0", None, None, "s0", "s0"]
    assert "1 sessions of 3 requests were recognised" in trace.notes[0]
    assert all(r.messages is None for r in trace.requests)


def test_a_file_of_another_format_is_given_up_early(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", *["noon,1,1"] * 5000)
    assert "1000 of 1000 rows are bad as azure" in failure(path)


def test_compressed_files_are_read_as_they_are(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,10,2\n"
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert len(import_trace(path)[0].requests) == 1
    path.write_bytes(gzip.compress(text.encode())[:30])
    assert "cannot be read" in failure(path)


def test_memory_goes_with_the_requests_not_with_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    padding = "x" * 4000
    with path.open("w") as out:
        for number in range(5_000):
            usage = {"prompt_tokens": 300, "completion_tokens": 40}
            out.write(json.dumps({"ts": number, "usage": usage, "padding": padding}) + "\n")
    tracemalloc.start()
    try:
        trace, _ = import_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace.requests) == 5_000
    assert path.stat().st_size > 20e6
    assert peak < 8e6
