"""What a streamed answer says: bytes to events (server-sent events), events to token counts.

No sockets and no clocks here, so that everything a server can send is tested without one. Sources: the event
stream format of the WHATWG HTML standard, and the OpenAI-compatible chunks as vLLM sends them.
"""

from typing import Any

import orjson

EVENT_BYTES = 1 << 20
"""Most bytes of one event. A chunk of vLLM has a few hundred; only a runaway line gets here."""

_TOKENS_AT_MOST = 1 << 40
_MS_AT_MOST = 1e9  # eleven days
_DONE = b"[DONE]"
_BLANK = (b"", b"\r")


class StreamFault(Exception):
    """The server sent something that no answer can be read from. The message is one line."""


class EventReader:
    """Cuts a byte stream into the data of its events, however the network cut it.

    Lines end with LF or CR LF; no server of this API ends them with CR alone, and one that did would run
    into the bound on a line's length.
    """

    __slots__ = ("_data", "_data_bytes", "_tail", "_tail_bytes")

    def __init__(self) -> None:
        self._tail: list[bytes] = []  # pieces of a line whose end has not come yet
        self._tail_bytes = 0
        self._data: list[bytes] = []  # data lines of an event whose blank line has not come yet
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that this piece completes. Raises StreamFault past EVENT_BYTES."""
        end = piece.find(b"\n")
        if end < 0:
            self._keep(piece)
            return []
        whole = end == len(piece) - 2 and piece.endswith(b"\n\n") and piece.startswith(b"data: ")
        if whole and not self._tail and not self._data and not piece.endswith(b"\r\n\n"):
            return [piece[6:-2]]  # nearly every read brings one event, whole: what follows comes to the same
        if self._tail:
            self._tail.append(piece)
            piece = b"".join(self._tail)
            self._tail.clear()
            self._tail_bytes = 0
        *lines, rest = piece.split(b"\n")
        data = self._data
        events = []
        for line in lines:
            if line in _BLANK:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
                    self._data_bytes = 0
            elif line.startswith(b"data:"):
                data.append(line[5:].removesuffix(b"\r").removeprefix(b" "))
                self._data_bytes += len(line) + 1
            # Other fields (event, id, retry) and comments, which keep idle connections open, say nothing.
        self._keep(rest)
        return events

    def _keep(self, rest: bytes) -> None:
        """Hold the beginning of a line, within the bound on what is held."""
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        if self._tail_bytes + self._data_bytes > EVENT_BYTES:
            raise StreamFault(f"endless event: over {EVENT_BYTES} bytes without its end")


class Answer:
    """What the events of one answer add up to.

    Tokens are counted by the server's usage only, because a chunk may hold several (speculation) or none.
    """

    __slots__ = (
        "accepted_tokens",
        "cached_tokens",
        "counted",
        "done",
        "draft_tokens",
        "drafts",
        "finish_reason",
        "progress",
        "server_generation_s",
        "server_itl_mean_s",
        "server_queue_s",
        "server_ttft_s",
        "texts",
        "tokens_in",
        "tokens_out",
    )

    def __init__(self) -> None:
        self.tokens_in: int | None = None
        self.tokens_out = 0
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.counted = False
        """Whether chunks with output carry usage, so that each arrival's tokens are known."""
        self.texts = 0
        """Chunks that carried text; counted only where `counted` is false."""
        self.progress = 0
        """Tokens so far; chunks with text so far where the server counts tokens only at the end."""
        self.done = False
        # What the engine says of the request itself, as the Record has it.
        self.server_queue_s: float | None = None
        self.server_ttft_s: float | None = None
        self.server_generation_s: float | None = None
        self.server_itl_mean_s: float | None = None
        self.drafts: int | None = None
        self.draft_tokens: int | None = None
        self.accepted_tokens: int | None = None

    def take(self, data: bytes) -> None:
        """Add one event. Raises StreamFault where it is malformed or reports an error."""
        if data == _DONE:
            self.done = True
            return
        try:
            chunk: object = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise StreamFault(f"malformed chunk: {shown(data)}") from None
        if self.counted and self._goes_on(chunk):
            return
        if not isinstance(chunk, dict):
            raise StreamFault(f"malformed chunk: {shown(data)}")
        if chunk.get("error") is not None:
            raise StreamFault(f"error within the stream: {error_message(data)}")
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._count(usage)
            if choice is not None:
                self.counted = True
                self.progress = self.tokens_out
            elif isinstance(metrics := chunk.get("metrics"), dict):
                self._time(metrics)
                self._draft(metrics.get("speculative_decoding"))
        if isinstance(choice, dict):
            reason = choice.get("finish_reason")
            if isinstance(reason, str):
                self.finish_reason = reason
            if not self.counted and _has_text(choice):
                self.texts += 1
                self.progress = self.texts

    def _goes_on(self, chunk: Any) -> bool:
        """Whether a chunk adds tokens and says nothing else; they are counted then.

        Nearly every chunk does, so what is asked of all of them elsewhere is tried here at one go.
        """
        try:
            served = chunk["usage"]["completion_tokens"]
            more = type(served) is int and self.tokens_out < served < _TOKENS_AT_MOST
            if more and chunk["choices"][0]["finish_reason"] is None and "error" not in chunk:
                self.tokens_out = self.progress = served
                return True
        except (LookupError, TypeError):
            pass
        return False

    def _count(self, usage: dict[str, object]) -> None:
        said = usage.get("completion_tokens", 0)
        served = _count_of(said)
        if served is None:
            raise StreamFault(f"malformed usage: completion_tokens is {shown(repr(said))}")
        if served < self.tokens_out:
            raise StreamFault(f"malformed usage: completion_tokens fell from {self.tokens_out} to {served}")
        self.tokens_out = served
        prompt = _count_of(usage.get("prompt_tokens"))
        if prompt is not None:
            self.tokens_in = prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count_of(details.get("cached_tokens"))

    def _time(self, metrics: dict[str, object]) -> None:
        """`--enable-per-request-metrics`; what cannot be a time is as if it were not there."""
        self.server_queue_s = _seconds(metrics.get("queue_time_ms"))
        self.server_ttft_s = _seconds(metrics.get("time_to_first_token_ms"))
        self.server_generation_s = _seconds(metrics.get("generation_time_ms"))
        self.server_itl_mean_s = _seconds(metrics.get("mean_itl_ms"))

    def _draft(self, told: object) -> None:
        """`--per-request-spec-decode-metrics`, whose shape vLLM calls experimental: all of it or nothing."""
        if not isinstance(told, dict):
            return
        drafts = _count_of(told.get("num_spec_steps"))
        proposed = _count_of(told.get("num_draft_tokens"))
        accepted = _count_of(told.get("num_accepted_draft_tokens"))
        if drafts is not None and proposed is not None and accepted is not None and accepted <= proposed:
            self.drafts, self.draft_tokens, self.accepted_tokens = drafts, proposed, accepted


def _count_of(value: object) -> int | None:
    """A number of tokens, if it is one: bool is an int to Python, and a server can send any number."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOKENS_AT_MOST:
        return value
    return None


def _seconds(milliseconds: object) -> float | None:
    """A time, if it is one: a server can send any number, and negative where its clocks were set."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    return milliseconds / 1e3 if 0 <= milliseconds < _MS_AT_MOST else None


def _has_text(choice: dict[str, object]) -> bool:
    """Whether a chunk carries output, in either API's shape; reasoning is output too."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))
    return bool(choice.get("text"))


def error_message(body: bytes) -> str:
    """The message in an error body of the API, or its beginning where it has none. One line."""
    try:
        parsed: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return shown(body)
    if isinstance(parsed, dict):
        error = parsed.get("error", parsed)
        message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        if isinstance(message, str):
            return shown(message)
    return shown(body)


def shown(text: bytes | str, limit: int = 200) -> str:
    """The beginning of something foreign as one printable line."""
    start = text[: 4 * limit]
    if isinstance(start, bytes):
        start = start.decode("utf-8", "replace")
    line = " ".join(start.split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= limit else line[:limit] + "…"
