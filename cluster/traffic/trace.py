"""A trace: recorded requests without their text, as JSON lines; read, checked, written.

The line format is Mooncake's (FAST '25): `timestamp` in ms, `input_length`, `output_length`, `hash_ids`
(one a block of 512 tokens; equal leading ids mean a shared prefix), plus optional `session_id`, and
literal `prompt` or `messages` where text is known.
"""

from dataclasses import dataclass

BLOCK_TOKENS = 512
"""Tokens in one block of `hash_ids`, as in the Mooncake traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message with literal text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One recorded request. Lengths are tokens."""

    arrival_s: float
    """Seconds after the trace's first request."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    """One id a block of the prompt; the last block may be partial."""
    session_id: str | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival, and where they came from."""

    requests: tuple[Request, ...]
    block_tokens: int = BLOCK_TOKENS
    digest: str = ""
    """SHA-256 of the canonical lines, hex: two traces with one digest are the same traffic."""
