"""OpenTelemetry spans: OTLP from the library's own encoder where it is there, other shapes by hand."""

import json
from pathlib import Path

import pytest

from cluster.traffic.formats.importing import import_trace
from cluster.traffic.trace import Message
from tests.cluster.traffic.encoding import words
from tests.cluster.traffic.formats.files import lines

NEW: dict[str, object] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.usage.input_tokens": 30,
    "gen_ai.usage.output_tokens": 6,
}
OLD: dict[str, object] = {"gen_ai.usage.prompt_tokens": 31, "gen_ai.usage.completion_tokens": 7}


def typed(value: object) -> dict[str, object]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def span(
    name: str, attributes: dict[str, object], *, at: float = 0, parent: str = "", **more: object
) -> dict[str, object]:
    """A span as OTLP's JSON has it: nanoseconds as text, attributes as a list."""
    return {
        "traceId": "t",
        "spanId": name,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(int((1_767_225_600 + at) * 1e9)),
        "attributes": [{"key": key, "value": typed(value)} for key, value in attributes.items()],
        **more,
    }


def otlp(*spans: dict[str, object]) -> dict[str, object]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def test_both_generations_of_attribute_names_are_read(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        otlp(span("a", NEW), span("http", {"http.route": "/"})),
        otlp(span("b", OLD, at=1.5, endTimeUnixNano=str(1_767_225_604 * 10**9))),
    )
    trace, report = import_trace(path)
    assert (report.format, report.read, report.kept) == ("otel", 3, 2)
    assert report.dropped == {"not a call of a model": 1}
    assert [(r.arrival_s, r.input_length, r.output_length) for r in trace.requests] == [
        (0.0, 30, 6),
        (1.5, 31, 7),
    ]
    assert [r.duration_s for r in trace.requests] == [None, 2.5]


def test_a_call_that_client_and_server_recorded_is_one_request(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        otlp(span("llm_request", OLD, at=0.2, parent="post")),
        otlp(span("post", {"http.method": "POST"}, at=0.1, parent="chat")),
        otlp(span("chat", NEW, parent="agent")),
        otlp(span("agent", {**NEW, "gen_ai.operation.name": "invoke_agent"})),
        otlp(span("loop", OLD, at=3, parent="loop")),
    )
    trace, report = import_trace(path)
    assert report.dropped == {"the same call, seen by its server": 1, "not a call of a model": 2}
    assert [r.input_length for r in trace.requests] == [30, 31]


def test_failed_calls_are_not_requests(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        otlp(span("a", NEW, status={"code": 2}), span("b", {**NEW, "error.type": "timeout"}), span("c", NEW)),
    )
    assert import_trace(path)[1].dropped == {"failed when it was recorded": 2}


@pytest.mark.parametrize(
    "text",
    [
        {
            "gen_ai.input.messages": json.dumps(
                [{"role": "user", "parts": [{"type": "text", "content": "one two"}]}]
            )
        },
        {"gen_ai.prompt": json.dumps([{"role": "user", "content": "one two"}])},
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "one two"},
    ],
)
def test_messages_are_found_however_they_are_written(tmp_path: Path, text: dict[str, object]) -> None:
    path = lines(tmp_path / "s.jsonl", otlp(span("a", {**NEW, **text, "gen_ai.conversation.id": "c9"})))
    (only,) = import_trace(path, keep_text=True)[0].requests
    assert only.messages == (Message(role="user", content="one two"),)
    assert only.session_id == "c9"
    hashed, _ = import_trace(path, encode=words)
    assert hashed.requests[0].hash_ids == (0, 1)  # 30 tokens in blocks of 16


def test_spans_as_an_sdk_prints_them_are_read(tmp_path: Path) -> None:
    printed = {
        "name": "chat m",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "parent_id": None,
        "start_time": "2026-01-01T00:00:00.500000Z",
        "status": {"status_code": "UNSET"},
        "attributes": NEW,
    }
    later = {**printed, "context": {"span_id": "0x3"}, "start_time": "2026-01-01T00:00:02.750000Z"}
    trace, _ = import_trace(lines(tmp_path / "s.jsonl", printed, later))
    assert [r.arrival_s for r in trace.requests] == [0.0, 2.25]


def test_spans_that_opentelemetrys_own_encoder_wrote_are_read(tmp_path: Path) -> None:
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    json_format = pytest.importorskip("google.protobuf.json_format")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    ).InMemorySpanExporter()
    processor = pytest.importorskip("opentelemetry.sdk.trace.export").SimpleSpanProcessor(memory)
    provider = sdk.TracerProvider()
    provider.add_span_processor(processor)
    for number in range(3):
        tracer = provider.get_tracer("t")
        tracer.start_span("llm_request", start_time=10**18 + number * 10**9, attributes=OLD).end()
    message = encoder.encode_spans(memory.get_finished_spans())
    trace, report = import_trace(lines(tmp_path / "s.jsonl", json_format.MessageToDict(message)))
    assert (report.read, report.kept) == (3, 3)
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.0, 2.0]
    assert {(r.input_length, r.output_length) for r in trace.requests} == {(31, 7)}


def test_attributes_nested_without_end_are_left_as_they_are(tmp_path: Path) -> None:
    value: dict[str, object] = {"stringValue": "x"}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    deep = span("a", NEW)
    deep["attributes"].append({"key": "gen_ai.prompt", "value": value})  # type: ignore[attr-defined]  # a list
    assert import_trace(lines(tmp_path / "s.jsonl", otlp(deep)))[1].kept == 1
