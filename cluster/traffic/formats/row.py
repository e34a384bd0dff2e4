"""What a format's module makes of one row of a file: a request, or the reason why there is none."""

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.traffic.request import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recorded request as its format tells it; what the format does not tell is None."""

    line: int
    at_s: float | None = None
    """Seconds from any origin, the same for the whole file."""
    duration_s: float | None = None
    """From `at_s` to the answer's end."""
    input_length: int | None = None
    output_length: int | None = None
    output_is_limit: bool = False
    """Whether `output_length` is what was asked for at most, not what was given."""
    hash_ids: tuple[int, ...] = ()
    block_tokens: int | None = None
    session_id: str | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    """The prompt in its server's tokens."""
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that gives no request."""

    line: int
    reason: str
    """The same words for all rows dropped for the same reason: they are counted by it."""
    detail: str = ""
    """What this row has that is wrong, where there is more to say."""
    bad: bool = True
    """Whether the row is not what its format promises; else it is a request that was never served."""


Rows = Iterator[Row | Dropped]
