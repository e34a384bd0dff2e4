"""LiteLLM's and Langfuse's exports, in each container that they come in."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cluster.traffic.formats.importing import import_trace
from cluster.traffic.trace import Message
from tests.cluster.traffic.formats.files import lines

CHAT = [{"role": "user", "content": "hello there"}]


def payload(at: float, **more: object) -> dict[str, object]:
    """LiteLLM's standard logging payload, the parts that matter."""
    return {
        "id": f"chatcmpl-{at}",
        "trace_id": "t1",
        "call_type": "acompletion",
        "cache_hit": None,
        "status": "success",
        "prompt_tokens": 12,
        "completion_tokens": 5,
        "startTime": 1_767_225_600 + at,
        "endTime": 1_767_225_602 + at,
        "messages": CHAT,
        "response": {"choices": [{"message": {"role": "assistant", "content": "hi"}}]},
        **more,
    }


def written(path: Path, records: Sequence[Mapping[str, object]]) -> Path:
    """The records in the container that the file's ending names; CSV writes objects as JSON text."""
    if path.suffix == ".jsonl":
        return lines(path, *records)
    if path.suffix == ".json":
        path.write_text(json.dumps(records, indent=1))
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        for record in records:
            writer.writerow(
                {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in record.items()}
            )
    return path


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_litellm_calls_are_requests_and_everything_else_is_accounted_for(tmp_path: Path, ending: str) -> None:
    records = [
        payload(0),
        payload(1.25, trace_id="t2", messages="a plain prompt", call_type="text_completion"),
        payload(2, status="failure"),
        payload(3, call_type="aembedding"),
        payload(4, cache_hit=True),
    ]
    trace, report = import_trace(written(tmp_path / f"l.{ending}", records), keep_text=True)
    assert (report.format, report.read, report.kept) == ("litellm", 5, 2)
    assert report.dropped == {
        "failed when it was recorded": 1,
        "not a call for text": 1,
        "answered from the gateway's cache": 1,
    }
    first, second = trace.requests
    assert (first.input_length, first.output_length, first.session_id) == (12, 5, "t1")
    assert first.messages == (Message(role="user", content="hello there"),)
    assert (second.arrival_s, second.prompt, second.session_id) == (1.25, "a plain prompt", "t2")
    assert (first.duration_s, second.duration_s) == (2.0, 2.0)


def test_litellm_spend_logs_have_times_as_text_and_no_messages(tmp_path: Path) -> None:
    records = [
        payload(
            0,
            startTime=f"2026-01-01 00:00:0{i}.500000",
            endTime="2026-01-01 00:00:01.250000",
            session_id=f"s{i}",
            messages={},
            response={},
        )
        for i in range(2)
    ]
    trace, _ = import_trace(written(tmp_path / "l.csv", records))
    assert [(r.arrival_s, r.session_id) for r in trace.requests] == [(0.0, "s0"), (1.0, "s1")]
    # The second would have ended before it began: not known.
    assert [r.duration_s for r in trace.requests] == [0.75, None]


def test_litellm_payloads_are_found_inside_what_a_callback_logs(tmp_path: Path) -> None:
    path = lines(tmp_path / "l.jsonl", {"kwargs": {"model": "m", "standard_logging_object": payload(0)}})
    trace, report = import_trace(path)
    assert (report.format, trace.requests[0].input_length) == ("litellm", 12)


def observation(at: str, **more: object) -> dict[str, object]:
    """A row of Langfuse's `observations_v2`."""
    return {
        "id": "o1",
        "trace_id": "t1",
        "type": "GENERATION",
        "start_time": f"2026-01-01 00:00:{at}",
        "level": "DEFAULT",
        "session_id": "who@example.com",
        "usage_details": {"input": 20, "input_cached_tokens": 100, "output": 7, "total": 127},
        "input": CHAT,
        "output": {"role": "assistant", "content": "hi"},
        **more,
    }


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_langfuse_generations_are_requests_with_cached_tokens_counted(tmp_path: Path, ending: str) -> None:
    records = [
        observation("00.250000", end_time="2026-01-01 00:00:01.500000"),
        observation("01.000000", type="SPAN"),
        observation("02.000000", level="ERROR"),
        observation("03.750000", session_id="", end_time=""),
    ]
    trace, report = import_trace(written(tmp_path / f"o.{ending}", records))
    assert (report.format, report.read, report.kept) == ("langfuse", 4, 2)
    assert report.dropped == {"not a call of a model": 1, "failed when it was recorded": 1}
    assert [(r.arrival_s, r.input_length, r.output_length) for r in trace.requests] == [
        (0.0, 120, 7),
        (3.5, 120, 7),
    ]
    assert trace.requests[0].session_id == "s0"
    assert [r.duration_s for r in trace.requests] == [1.25, None]


def test_langfuse_api_rows_are_in_camel_case_with_older_usage(tmp_path: Path) -> None:
    record = {
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-01T00:00:00.000Z",
        "endTime": "2026-01-01T00:00:00.500Z",
        "usage": {"input": 9, "output": 4, "total": 13, "unit": "TOKENS"},
        "input": {"messages": CHAT},
    }
    trace, report = import_trace(lines(tmp_path / "o.jsonl", record))
    assert trace.requests[0].duration_s == 0.5
    assert (report.format, trace.requests[0].input_length, trace.requests[0].output_length) == (
        "langfuse",
        9,
        4,
    )
