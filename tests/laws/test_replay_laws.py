"""Laws of the replay client that hold for all input."""

import json
import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster.node.client import Call
from cluster.node.stream import Answer, EventReader, StreamFault
from tests.cluster.node.fake_server import prompt

payloads = st.lists(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1, max_size=30),
    min_size=1,
    max_size=8,
)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(places)]


@given(
    payloads, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.lists(st.integers(0, 10_000), max_size=20)
)
def test_any_cutting_of_the_stream_gives_the_same_events(
    data: list[str], ending: str, comments: bool, cuts: list[int]
) -> None:
    stream = "".join(
        (f": ping{ending}{ending}" if comments else "") + f"data: {datum}{ending}{ending}" for datum in data
    ).encode()
    reader = EventReader()
    assert [event for piece in pieces(stream, cuts) for event in reader.feed(piece)] == [
        datum.encode() for datum in data
    ]


@given(st.lists(st.integers(0, 20), max_size=30), st.booleans())
def test_tokens_are_what_usage_said_last_whatever_the_chunks_hold(sizes: list[int], final: bool) -> None:
    answer, total = Answer(), 0
    for size in sizes:
        total += size
        usage = {"prompt_tokens": 1, "completion_tokens": total}
        answer.take(json.dumps({"choices": [{"text": "x" * size}], "usage": usage}).encode())
        assert answer.progress == total
    if final:
        answer.take(json.dumps({"choices": [], "usage": {"completion_tokens": total}}).encode())
    assert answer.tokens_out == total


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "usage", "error", "text", "delta", "content", "completion_tokens"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


counts = st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers(-(2**63), 2**64 - 1)
chunks = st.fixed_dictionaries(
    {
        "choices": st.sampled_from([[], [{"text": "a"}], [{"delta": {"content": "a"}}], None, [1]]),
        "usage": st.fixed_dictionaries(
            {"completion_tokens": counts, "prompt_tokens": counts},
            optional={"prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": counts})},
        ),
    },
    optional={
        "metrics": st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("queue_time_ms", "time_to_first_token_ms", "generation_time_ms"), counts),
                "speculative_decoding": st.fixed_dictionaries(
                    dict.fromkeys(("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"), counts)
                ),
            },
        )
    },
)


@given(st.binary(max_size=50) | (json_values | chunks).map(lambda value: json.dumps(value).encode()))
def test_whatever_an_event_holds_it_is_taken_or_refused_in_one_line(data: bytes) -> None:
    call = Call(prompt(max_tokens=3), model="m", temperature=0.0, seed=0)
    assert "\n" not in refusal(call, data)
    record = call.record("unfinished")
    assert 0 <= record.tokens_out < 2**63  # what a table can hold
    assert 0 <= record.tokens_in < 2**63
    assert len(record.chunk_s) == len(record.chunk_tokens)
    for seconds in (record.server_queue_s, record.server_ttft_s, record.server_generation_s):
        assert seconds is None or 0 <= seconds < math.inf
    if record.drafts is not None:
        assert record.drafts >= 0
        assert 0 <= (record.accepted_tokens or 0) <= (record.draft_tokens or 0) < 2**63


def refusal(call: Call, data: bytes) -> str:
    """Why an event was not taken; empty if it was."""
    try:
        call.arrive([data], 1.0)
    except StreamFault as fault:
        return str(fault)
    return ""


class Thorough(Answer):
    """Reads every chunk the long way."""

    def _goes_on(self, chunk: object) -> bool:
        return False


plain = st.builds(
    lambda served, reason: {
        "choices": [{"text": "a", "finish_reason": reason}],
        "usage": {"prompt_tokens": 3, "completion_tokens": served},
    },
    st.integers(0, 12) | counts,
    st.sampled_from([None, None, None, "length", 7]),
)


@given(st.lists(plain | chunks | json_values, max_size=12))
def test_the_short_way_through_a_chunk_comes_to_the_same_as_the_long_way(said: list[object]) -> None:
    quick, thorough = Answer(), Thorough()
    for chunk in [*said, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 12}}]:
        data = json.dumps(chunk).encode()
        assert fault(quick, data) == fault(thorough, data)
        for name in ("tokens_out", "progress", "finish_reason", "counted", "texts"):
            assert getattr(quick, name) == getattr(thorough, name)


def fault(answer: Answer, data: bytes) -> str | None:
    try:
        answer.take(data)
    except StreamFault as refused:
        return str(refused)
    return None
