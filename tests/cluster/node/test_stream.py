"""What can be read from a streamed answer, and what is refused."""

import json

import pytest

from cluster.node.stream import EVENT_BYTES, Answer, EventReader, StreamFault, error_message, shown


def chunk(tokens: int | None = None, *, text: str = "a", finish_reason: str | None = None) -> bytes:
    fields: dict[str, object] = {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}
    if tokens is not None:
        fields["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens}
    return json.dumps(fields).encode()


def test_an_event_is_complete_at_its_blank_line_and_not_before() -> None:
    reader = EventReader()
    assert reader.feed(b"data: on") == []
    assert reader.feed(b"e\n") == []
    assert reader.feed(b"\nda") == [b"one"]
    assert reader.feed(b"ta:two\n\ndata: three\n\n") == [b"two", b"three"]


def test_comments_and_other_fields_and_carriage_returns_say_nothing() -> None:
    assert EventReader().feed(b": ping\r\n\r\nevent: x\r\nid: 1\r\ndata: one\r\n\r\n") == [b"one"]


def test_data_lines_of_one_event_are_joined_by_line_feeds() -> None:
    assert EventReader().feed(b"data: {\ndata: }\n\n") == [b"{\n}"]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: 1234\n" * 6000, b"data:\n" * 10000])
def test_an_endless_line_or_event_is_cut_off_at_the_bound(piece: bytes) -> None:
    reader = EventReader()
    for _ in range(EVENT_BYTES // len(piece) - 1):
        assert reader.feed(piece) == []
    with pytest.raises(StreamFault, match="endless event"):
        feed_thrice(reader, piece)


def feed_thrice(reader: EventReader, piece: bytes) -> None:
    for _ in range(3):
        reader.feed(piece)


def test_a_stream_longer_than_the_bound_is_fine_while_its_events_end() -> None:
    reader = EventReader()
    event = b"data: " + b"x" * 9000 + b"\n\n"
    assert sum(len(reader.feed(event[:7000])) + len(reader.feed(event[7000:])) for _ in range(200)) == 200


def test_tokens_are_counted_by_usage_however_many_a_chunk_holds() -> None:
    answer = Answer()
    answer.take(chunk(0, text=""))
    assert answer.progress == 0
    answer.take(chunk(3))
    answer.take(chunk(3, text="half a letter"))
    answer.take(chunk(8, finish_reason="length"))
    assert (answer.tokens_in, answer.tokens_out, answer.progress, answer.texts) == (7, 8, 8, 0)
    assert answer.finish_reason == "length"


def test_cached_tokens_come_with_the_last_usage_and_are_unknown_without() -> None:
    answer = Answer()
    answer.take(chunk(1))
    assert answer.cached_tokens is None
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}}
    answer.take(json.dumps({"choices": [], "usage": usage}).encode())
    assert answer.cached_tokens == 5


METRICS = {
    "time_to_first_token_ms": 43.5,
    "generation_time_ms": 200,
    "queue_time_ms": 0.25,
    "mean_itl_ms": 50.0,
    "tokens_per_second": 20.5,
    "speculative_decoding": {
        "mean_acceptance_length": 3.1,
        "num_spec_steps": 10,
        "num_draft_tokens": 40,
        "num_accepted_draft_tokens": 21,
    },
}
TIMES = ("server_queue_s", "server_ttft_s", "server_generation_s", "server_itl_mean_s")
DRAFTS = ("drafts", "draft_tokens", "accepted_tokens")


def told(metrics: object) -> tuple[tuple[float | None, ...], tuple[int | None, ...]]:
    """What an answer has of times and of drafts after a last chunk with these metrics."""
    answer = Answer()
    answer.take(chunk(5))
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    answer.take(json.dumps({"choices": [], "usage": usage, "metrics": metrics}).encode())
    assert (answer.tokens_in, answer.tokens_out) == (7, 5)
    return tuple(getattr(answer, name) for name in TIMES), tuple(getattr(answer, name) for name in DRAFTS)


def test_the_engines_own_times_and_drafts_come_with_the_last_usage() -> None:
    assert told(METRICS) == ((0.00025, 0.0435, 0.2, 0.05), (10, 40, 21))


def test_of_a_request_with_one_token_the_engine_has_no_time_between_tokens() -> None:
    times, drafts = told({"time_to_first_token_ms": 43.5, "generation_time_ms": 0.0, "queue_time_ms": 0.25})
    assert times == (0.00025, 0.0435, 0.0, None)
    assert drafts == (None, None, None)


@pytest.mark.parametrize("metrics", [None, [], "fast", 3, {}, {"speculative_decoding": []}])
def test_metrics_that_say_nothing_are_no_fault(metrics: object) -> None:
    assert told(metrics) == ((None,) * 4, (None,) * 3)


@pytest.mark.parametrize("value", [-1.0, "43.5", True, None, [1], 1e300, 2**62])
def test_what_cannot_be_a_time_is_absent_and_the_others_are_not(value: object) -> None:
    times, drafts = told(METRICS | {"time_to_first_token_ms": value})
    assert times == (0.00025, None, 0.2, 0.05)
    assert drafts == (10, 40, 21)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_spec_steps": -1},
        {"num_draft_tokens": "40"},
        {"num_accepted_draft_tokens": None},
        {"num_accepted_draft_tokens": 41},  # more than were proposed
        {"num_accepted_draft_tokens": 20.5},
    ],
)
def test_drafts_that_cannot_be_are_absent_altogether(wrong: dict[str, object]) -> None:
    speculation = METRICS["speculative_decoding"]
    assert isinstance(speculation, dict)
    times, drafts = told(METRICS | {"speculative_decoding": speculation | wrong})
    assert times == (0.00025, 0.0435, 0.2, 0.05)
    assert drafts == (None, None, None)


def test_without_usage_in_chunks_those_with_text_are_progress_but_not_tokens() -> None:
    answer = Answer()
    answer.take(json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}).encode())
    answer.take(json.dumps({"choices": [{"delta": {"content": "a b"}}]}).encode())
    answer.take(json.dumps({"choices": [{"delta": {"reasoning_content": "c"}}]}).encode())
    assert (answer.progress, answer.tokens_out) == (2, 0)
    answer.take(json.dumps({"choices": [], "usage": {"completion_tokens": 5}}).encode())
    assert (answer.progress, answer.tokens_out) == (2, 5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"choices": [', "malformed chunk"),
        (b"[1, 2]", "malformed chunk"),
        (b"\xff\xfe", "malformed chunk"),
        (b'{"choices": [{"text": NaN}]}', "malformed chunk"),
        (
            b'{"error": {"message": "EngineCore died", "code": 500}}',
            "error within the stream: EngineCore died",
        ),
        (b'{"choices": [], "usage": {"completion_tokens": -1}}', "malformed usage: completion_tokens is -1"),
        (
            b'{"choices": [], "usage": {"completion_tokens": "9"}}',
            "malformed usage: completion_tokens is '9'",
        ),
        (b'{"choices": [], "usage": {"completion_tokens": true}}', "malformed usage"),
        (b'{"choices": [], "usage": {"completion_tokens": 1}}', "fell from 2 to 1"),
    ],
)
def test_what_cannot_be_read_is_a_fault_of_one_line(data: bytes, message: str) -> None:
    answer = Answer()
    answer.take(chunk(2))
    with pytest.raises(StreamFault, match=message) as fault:
        answer.take(data)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("data", [b"{}", b'{"choices": null}', b'{"choices": [null]}', b'{"usage": null}'])
def test_a_chunk_that_says_nothing_is_no_fault(data: bytes) -> None:
    answer = Answer()
    answer.take(data)
    assert answer.progress == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "type": "BadRequestError"}}', "too long"),
        (b'{"object": "error", "message": "old shape"}', "old shape"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "plain"}', "plain"),
        (b"Internal\nServer Error", "Internal Server Error"),
        (b"", ""),
    ],
)
def test_an_error_body_gives_its_message(body: bytes, message: str) -> None:
    assert error_message(body) == message


def test_foreign_text_is_shown_as_one_short_printable_line() -> None:
    line = shown(b"\x1b[31m\x00a\r\nb " + b"x" * 10_000)
    assert line.isprintable()
    assert line.startswith("?[31m?a b x")
    assert len(line) == 201
