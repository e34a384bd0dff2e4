"""One request of a trace, and the line of JSON that it is written as.

Lengths and times are checked here, line by line; what concerns the whole file (its order, one block size,
the model's context) is the business of `cluster.traffic.trace`.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

BLOCK_TOKENS = 512
"""Tokens in one block of `hash_ids` where a line does not say, as in the Mooncake traces."""

MAX_TOKENS = 2**24
"""More tokens than this in one request is taken for a fault: no model's context comes near it."""

MAX_TIMESTAMP_MS = 2**43
"""About the year 2248 as milliseconds since 1970: below it a double still tells microseconds apart."""

MAX_HASH_ID = 2**63 - 1

REQUIRED_KEYS = ("timestamp", "input_length", "output_length")
OPTIONAL_KEYS = ("hash_ids", "block_size", "duration_ms", "session_id", "prompt", "messages")
_KNOWN_KEYS = frozenset(REQUIRED_KEYS + OPTIONAL_KEYS)

# A transposed or dropped letter scores above this; `chat_id`, `type`, `turn` stay below it.
_MISSPELT = 0.85


class TraceError(ValueError):
    """A trace, or what one is made of, cannot be used; every fault with its place.

    Attributes:
        faults: the first of them, each one line that starts with its place (`file:line: …`).
        more: how many further ones were counted but not kept.
    """

    def __init__(self, faults: Sequence[str], more: int = 0) -> None:
        super().__init__(tuple(faults), more)  # both in args, so that it pickles
        self.faults = tuple(faults)
        self.more = more

    def __str__(self) -> str:
        rest = (f"… and {self.more} more",) if self.more else ()
        return "\n".join((*self.faults, *rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message with literal text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One recorded request. Lengths are tokens."""

    arrival_s: float
    """Seconds after the trace's first request; whole microseconds in any trace that was read or made."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    """One id a block of the prompt; the last block may be partial."""
    duration_s: float | None = None
    """From its arrival to its answer's end, when it was recorded; whole microseconds as the arrival is.
    None where its recorder did not say."""
    session_id: str | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None


class LineFaults(ValueError):
    """What is wrong with one line, without its place."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


def to_line(request: Request, block_tokens: int) -> bytes:
    """The canonical line of a request, newline included; equal requests give equal bytes.

    Keys come in a fixed order, absent values are left out, times are rounded to a microsecond and
    `block_size` is written only where it is not 512, so that Mooncake's own lines stay as they are.
    """
    line: dict[str, object] = {
        "timestamp": _milliseconds(request.arrival_s),
        "input_length": request.input_length,
        "output_length": request.output_length,
    }
    if request.hash_ids:
        line["hash_ids"] = request.hash_ids
    if block_tokens != BLOCK_TOKENS:
        line["block_size"] = block_tokens
    if request.duration_s is not None:
        line["duration_ms"] = _milliseconds(request.duration_s)
    if request.session_id is not None:
        line["session_id"] = request.session_id
    if request.prompt is not None:
        line["prompt"] = request.prompt
    if request.messages is not None:
        line["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _milliseconds(seconds: float) -> float:
    microseconds = round(seconds * 1e6)
    return microseconds // 1000 if microseconds % 1000 == 0 else microseconds / 1000


def from_record(record: Mapping[str, object], *, origin_ms: float) -> tuple[Request, int | None]:
    """The request that a decoded line describes, and the block size it is written in.

    Args:
        record: the line's JSON object. Keys that are not known are let pass, unless one looks like a
            known key that is absent: dropping a misspelt `hash_ids` would silently drop its sharing.
        origin_ms: the timestamp to count `arrival_s` from.

    Returns:
        The request, and its block size in tokens; None where the line has no blocks and names no size.

    Raises:
        LineFaults: with everything that is wrong, not the first thing only.
    """
    faults: list[str] = []
    misspelt = _misspelt_keys(record)
    faults += [f"unknown key {wrong!r}: is it {right!r}?" for wrong, right in misspelt.items()]
    faults += [
        f"{key} is missing" for key in REQUIRED_KEYS if key not in record and key not in misspelt.values()
    ]
    timestamp = timestamp_ms(record, faults)
    input_length = _tokens(record, "input_length", faults)
    output_length = _tokens(record, "output_length", faults)
    block_tokens = _tokens(record, "block_size", faults)
    hash_ids = _hash_ids(record, faults)
    duration_ms = _time_ms(record, "duration_ms", faults)
    session_id = _text(record, "session_id", faults)
    prompt = _text(record, "prompt", faults)
    messages = _messages(record, faults)
    if prompt is not None and messages is not None:
        faults.append("prompt and messages are both given: keep one")
    if hash_ids and input_length:
        size = block_tokens or BLOCK_TOKENS
        blocks = math.ceil(input_length / size)
        if len(hash_ids) != blocks:
            faults.append(
                f"{len(hash_ids)} hash_ids for input_length {input_length}: "
                f"blocks of {size} tokens make {blocks} (other blocks are declared by block_size)"
            )
    if faults or timestamp is None or input_length is None or output_length is None:
        raise LineFaults(faults)
    request = Request(
        arrival_s=round((timestamp - origin_ms) * 1000) / 1e6,
        input_length=input_length,
        output_length=output_length,
        hash_ids=hash_ids,
        duration_s=None if duration_ms is None else round(duration_ms * 1000) / 1e6,
        session_id=session_id,
        prompt=prompt,
        messages=messages,
    )
    return request, block_tokens or (BLOCK_TOKENS if hash_ids else None)


def timestamp_ms(record: Mapping[str, object], faults: list[str]) -> float | None:
    """The line's timestamp, or None (with the fault noted, where it is there but unusable)."""
    return _time_ms(record, "timestamp", faults)


def unknown_keys(record: Mapping[str, object]) -> frozenset[str]:
    """Keys that a trace's line does not have."""
    return frozenset(record.keys() - _KNOWN_KEYS)


def nearest(word: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that `word` is most likely meant to be, or None."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return found[0] if found else None


def _misspelt_keys(record: Mapping[str, object]) -> dict[str, str]:
    """Unknown keys that look like a known one which the line lacks: found → meant."""
    if record.keys() <= _KNOWN_KEYS:
        return {}
    absent = [key for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if key not in record]
    pairs = ((key, nearest(key, absent, cutoff=_MISSPELT)) for key in sorted(unknown_keys(record)))
    return {wrong: right for wrong, right in pairs if right is not None}


def _time_ms(record: Mapping[str, object], key: str, faults: list[str]) -> float | None:
    if key not in record:
        return None
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        faults.append(f"{key} must be a number of milliseconds, got {_shown(value)}")
        return None
    if not 0 <= value <= MAX_TIMESTAMP_MS:
        faults.append(f"{key} must lie between 0 and {MAX_TIMESTAMP_MS} ms, got {_shown(value)}")
        return None
    return value


def _tokens(record: Mapping[str, object], key: str, faults: list[str]) -> int | None:
    if key not in record:
        return None
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int):
        faults.append(f"{key} must be a whole number of tokens, got {_shown(value)}")
        return None
    if not 1 <= value <= MAX_TOKENS:
        faults.append(f"{key} must lie between 1 and {MAX_TOKENS} tokens, got {_shown(value)}")
        return None
    return value


def _hash_ids(record: Mapping[str, object], faults: list[str]) -> tuple[int, ...]:
    value = record.get("hash_ids")
    if value is None:
        return ()
    if not isinstance(value, list):
        faults.append(f"hash_ids must be a list, got {_shown(value)}")
        return ()
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= MAX_HASH_ID:
            faults.append(f"hash_ids must be whole numbers from 0 to 2^63 - 1, got {_shown(item)}")
            return ()
    return tuple(value)


def _text(record: Mapping[str, object], key: str, faults: list[str]) -> str | None:
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        faults.append(f"{key} must be text that is not empty, got {_shown(value)}")
        return None
    return value


def _messages(record: Mapping[str, object], faults: list[str]) -> tuple[Message, ...] | None:
    value = record.get("messages")
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        faults.append(f"messages must be a list that is not empty, got {_shown(value)}")
        return None
    found: list[Message] = []
    for place, item in enumerate(value):
        role = item.get("role") if isinstance(item, dict) else None
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            faults.append(f"messages[{place}] must have a role and a content of text, got {_shown(item)}")
            return None
        found.append(Message(role=role, content=content))
    return tuple(found)


def _shown(value: object) -> str:
    """A value as it may stand in a one-line message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
