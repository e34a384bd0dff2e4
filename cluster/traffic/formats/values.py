"""Values as recorders write them: counts, times, chats, answers."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import orjson

from cluster.traffic.request import Message


def whole(value: object) -> int | None:
    """A count that is not negative, from a number or its text; None where it is no such thing."""
    if isinstance(value, str):
        return int(value) if value.strip().isascii() and value.strip().isdigit() and len(value) < 20 else None
    if isinstance(value, float):  # a database may write 12.0
        return int(value) if value.is_integer() and 0 <= value < 1e15 else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def first_count(record: Mapping[str, object], *keys: str) -> int | None:
    """The first of these keys that has a count."""
    return next((count for key in keys if (count := whole(record.get(key))) is not None), None)


def instant(value: object) -> float | None:
    """Seconds since 1970 from ISO 8601 text (UTC where it names no zone) or an epoch in s or ms."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e14:
        return None
    # Seconds pass 1e11 in the year 5138; milliseconds passed it in 1973.
    return value / 1000 if value >= 1e11 else float(value)


def lasted_s(start_s: float, end_s: float | None) -> float | None:
    """From one instant to a later one; None where there is none, or it is earlier."""
    return end_s - start_s if end_s is not None and end_s >= start_s else None


def number(value: object) -> float | None:
    """A number that is not negative, from one or its text; None where it is no such thing."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < math.inf else None


def decoded(value: object) -> object:
    """A value that was written as JSON inside of text, read; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def table(value: object) -> Mapping[str, object]:
    """A JSON object, or an empty one where it is none."""
    found = decoded(value)
    return found if isinstance(found, dict) else {}


def prompt_of(value: object) -> tuple[str | None, tuple[Message, ...] | None]:
    """What was asked, as (prompt, messages), one at most; from text, messages, or an object of either."""
    found = decoded(value)
    if isinstance(found, dict):
        found = found.get("messages") or found.get("prompt")
    if isinstance(found, str):
        return (found or None), None
    return None, chat(found)


def chat(value: object) -> tuple[Message, ...] | None:
    """Chat messages of text; None where it is anything else. Parts that are text are joined."""
    if not isinstance(value, list) or not value:
        return None
    found: list[Message] = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(role := item.get("role"), str):
            return None
        text = said(item)
        if text is None:
            return None
        found.append(Message(role=role, content=text))
    return tuple(found)


def answer_of(value: object) -> str | None:
    """What was answered, the first choice of several: from text, a message, or either endpoint's response."""
    found = decoded(value)
    if isinstance(found, list):
        found = found[0] if found else None
    if isinstance(found, dict) and isinstance(choices := found.get("choices"), list):
        found = choices[0] if choices else None
        if isinstance(found, dict):
            found = found.get("message", found.get("text"))
    if isinstance(found, dict):
        return said(found)
    return found if isinstance(found, str) else None


def said(message: Mapping[str, object]) -> str | None:
    """A message's text, calls of tools included; None where it has parts that are not text."""
    content = message.get("content", message.get("parts"))
    text = _text(content)
    calls = message.get("tool_calls")
    return text if text is None or not isinstance(calls, list) else text + "".join(_called(calls))


def _text(content: object) -> str | None:
    if content is None:  # an assistant's message that only calls tools
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    for part in content:
        text = _part(part)
        if text is None:
            return None
        texts.append(text)
    return "".join(texts)


def _part(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    text = part.get("text", part.get("content"))
    if isinstance(text, str):
        return text
    if str(part.get("type", "")).startswith("tool"):  # its arguments and results are tokens too
        return orjson.dumps(part, option=orjson.OPT_SORT_KEYS).decode()
    return None


def _called(calls: Iterable[object]) -> Iterable[str]:
    """Name and arguments of each call: streams and histories differ in the rest."""
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield f"{function.get('name') or ''}{function.get('arguments') or ''}"
