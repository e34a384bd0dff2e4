"""One request and its answer as they passed, read for what a trace needs. No socket, no tokenizer.

Of headers nothing is kept but the session's id, so no secret can reach a trace.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from cluster.traffic.formats.values import answer_of, chat, first_count, table
from cluster.traffic.request import Message

PATHS = ("/chat/completions", "/completions")
"""Ends of the paths that are recorded; everything else only passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What passed, as bytes, with the times it came in and was over."""

    arrival_s: float
    """Seconds after the recording's start."""
    duration_s: float
    """From its arrival to the answer's end, or to its client's leaving."""
    path: str
    asked: bytes
    answered: bytes
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One prompt. Exactly one of `prompt`, `messages` and `token_ids` is there."""

    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came back for one prompt."""

    text: str
    """Content alone: what a client sends back with its next turn."""
    thought: str
    """Reasoning, which it does not."""
    prompt_tokens: int | None
    """As the server counted; None where it did not say."""
    output_tokens: int | None


def is_recorded(path: str) -> bool:
    """Whether requests to this path are recorded."""
    return path.endswith(PATHS)


def asked(exchange: Exchange) -> tuple[Asked, ...]:
    """The prompts of a request, several for a batch; none where it has no text that could be read."""
    try:
        body = orjson.loads(exchange.asked)
    except orjson.JSONDecodeError:
        return ()
    if not isinstance(body, dict):
        return ()
    if exchange.path.endswith("/chat/completions"):
        messages = chat(body.get("messages"))
        return () if messages is None else (Asked(messages=messages),)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not _is_tokens(prompt):
        prompts = [_prompt(item) for item in prompt]
        return tuple(one for one in prompts if one is not None) if all(prompts) else ()
    one = _prompt(prompt)
    return () if one is None else (one,)


def answered(exchange: Exchange, prompts: int) -> tuple[Answered, ...]:
    """What came back for each of so many prompts: the first choice of each. Streams are put together.

    Usage counts all prompts and choices of a request together, so it says something of one only where
    there is one.
    """
    choices: dict[int, _Choice] = {}
    usage: Mapping[str, object] = {}
    for event in _events(exchange.answered):
        usage = table(event.get("usage")) or usage
        found = event.get("choices")
        for choice in found if isinstance(found, list) else ():
            if isinstance(choice, dict):
                index = choice.get("index", 0)
                choices.setdefault(index if isinstance(index, int) else 0, _Choice()).take(choice)
    alone = prompts == 1 and len(choices) == 1
    each = max(len(choices) // prompts, 1)
    return tuple(
        Answered(
            text="".join(choice.text),
            thought="".join(choice.thought),
            prompt_tokens=first_count(usage, "prompt_tokens") if prompts == 1 else None,
            output_tokens=first_count(usage, "completion_tokens") if alone else None,
        )
        for choice in (choices.get(place * each, _Choice()) for place in range(prompts))
    )


class _Choice:
    """One choice's pieces as they came."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thought: list[str] = []

    def take(self, choice: Mapping[str, object]) -> None:
        """Add what a chunk, or a whole response, says of it."""
        for key in ("delta", "message"):
            said = choice.get(key)
            if isinstance(said, dict):
                self.text.append(answer_of(said) or "")
                for thinking in ("reasoning_content", "reasoning"):
                    if isinstance(said.get(thinking), str):
                        self.thought.append(said[thinking])
                        break
        if isinstance(choice.get("text"), str):
            self.text.append(str(choice["text"]))


def _events(answered: bytes) -> Iterator[Mapping[str, object]]:
    """The JSON objects of a response: one, or those of a stream of events."""
    stripped = answered.lstrip()
    pieces = [stripped] if stripped.startswith(b"{") else _data(stripped)
    for piece in pieces:
        try:
            event = orjson.loads(piece)
        except orjson.JSONDecodeError:  # "[DONE]", or a stream that was cut off
            continue
        if isinstance(event, dict):
            yield event


def _data(stream: bytes) -> Iterator[bytes]:
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            yield line[5:]


def _prompt(value: object) -> Asked | None:
    if isinstance(value, str) and value:
        return Asked(prompt=value)
    return Asked(token_ids=tuple(value)) if _is_tokens(value) and isinstance(value, list) else None


def _is_tokens(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**32 for item in value)
    )
