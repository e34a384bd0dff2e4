import json

import pytest

from cluster.traffic.recording.exchange import Exchange, answered, asked
from cluster.traffic.request import Message

CHAT = "/v1/chat/completions"


def passed(body: object, reply: bytes = b"", path: str = "/v1/completions") -> Exchange:
    return Exchange(arrival_s=0.0, duration_s=1.0, path=path, asked=json.dumps(body).encode(), answered=reply)


def stream(*events: object) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"


def test_prompts_come_as_text_tokens_or_several_of_either() -> None:
    assert [a.prompt for a in asked(passed({"prompt": "one"}))] == ["one"]
    assert [a.token_ids for a in asked(passed({"prompt": [1, 2]}))] == [(1, 2)]
    assert [a.prompt for a in asked(passed({"prompt": ["one", "two"]}))] == ["one", "two"]
    assert [a.token_ids for a in asked(passed({"prompt": [[1], [2, 3]]}))] == [(1,), (2, 3)]
    (only,) = asked(passed({"messages": [{"role": "user", "content": "hi"}]}, path=CHAT))
    assert only.messages == (Message(role="user", content="hi"),)


@pytest.mark.parametrize("body", [None, 3, [], {}, {"prompt": ""}, {"prompt": [1, -2]}, {"prompt": ["a", 3]}])
def test_a_body_without_text_has_no_prompts(body: object) -> None:
    assert asked(passed(body)) == ()
    assert asked(passed(body, path=CHAT)) == ()
    assert asked(Exchange(arrival_s=0, duration_s=1, path=CHAT, asked=b"\xff{", answered=b"")) == ()


def test_a_stream_is_put_together_with_thoughts_apart_and_calls_of_tools_in() -> None:
    def delta(**said: object) -> dict[str, object]:
        return {"choices": [{"index": 0, "delta": said}]}

    reply = stream(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm "),
        delta(content="It is "),
        delta(content="raining"),
        delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "look", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"at":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 8}},
    )
    (only,) = answered(passed({}, reply, CHAT), 1)
    assert only.text == 'It is raininglook{"at":1}'
    assert only.thought == "hm "
    assert (only.prompt_tokens, only.output_tokens) == (9, 8)


def test_a_stream_that_was_cut_off_gives_what_came() -> None:
    whole = stream({"choices": [{"index": 0, "text": "one "}]}, {"choices": [{"index": 0, "text": "two"}]})
    (only,) = answered(passed({}, whole[: whole.index(b"two")]), 1)
    assert (only.text, only.output_tokens) == ("one ", None)


def test_usage_of_several_prompts_or_choices_is_not_taken_for_one() -> None:
    texts = [{"index": i, "text": f"t{i}"} for i in range(4)]
    reply = json.dumps({"choices": texts, "usage": {"prompt_tokens": 8, "completion_tokens": 4}}).encode()
    two_of_two = answered(passed({}, reply), 2)  # two choices each: the first of each
    assert [(a.text, a.prompt_tokens, a.output_tokens) for a in two_of_two] == [
        ("t0", None, None),
        ("t2", None, None),
    ]
    (one_of_four,) = answered(passed({}, reply), 1)
    assert (one_of_four.text, one_of_four.prompt_tokens, one_of_four.output_tokens) == ("t0", 8, None)


@pytest.mark.parametrize(
    "reply", [b"", b"{", b"[]", b"data: 3\n", b'{"choices": 3}', b'{"choices": [4, {"index": "x"}]}']
)
def test_hostile_answers_are_empty_ones(reply: bytes) -> None:
    (only,) = answered(passed({}, reply), 1)
    assert (only.text, only.output_tokens) == ("", None)
