"""vLLM's own log, `--enable-log-requests` (on by default until 0.10): one line when a request comes in.

Until 0.11.1 the line had the prompt; since 0.11.2 it has the sampling parameters only, and prompt and
token ids are logged at DEBUG. No version's line has the output's length: that is on the line that
`--enable-log-outputs` (0.10.1 on) writes when a request ends, else the limit it asked for stands in.
Times have a resolution of a second and no year. Text is as `--max-log-len` left it.
"""

import ast
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.lines import MAX_LINE_BYTES, READ_ERRORS, numbered, opened, reason
from cluster.traffic.request import TraceError

STEP_S = 1.0
"""Resolution of the log's times."""

_LEAP_YEAR = 2000
_YEAR = timedelta(days=366)

_TIME = re.compile(r"(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_IDS = r"(?P<ids>None|\[[\d, ]*\])"
# Greedy up to the last "params:", since a prompt may have those words in it.
_RECEIVED = re.compile(
    r"Received request (?P<id>\S+): (?:prompt: (?P<prompt>.*), )?params: (?P<params>.*)", re.S
)
_PARAMS_IDS = re.compile(rf".*prompt_token_ids: {_IDS}", re.S)
_DETAILS = re.compile(rf"Request (?P<id>\S+) details: prompt: (?P<prompt>.*), prompt_token_ids: {_IDS}", re.S)
_LIMIT = re.compile(r"\bmax_tokens=(\d{1,12})\b")
_GENERATED = re.compile(
    r"Generated response (?P<id>\S+)(?P<stream> \([^)]*\))?: output: (?P<text>.*?)"
    rf"(?:, output_token_ids: {_IDS})?, finish_reason: ",
    re.S,
)


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    return bool(_TIME.search(head)) and ("Received request " in head or "vLLM API server version" in head)


def rows(path: Path) -> Rows:
    """The file's requests; its other lines are not rows.

    Raises:
        TraceError: where the file can't be read, or its requests have no lengths.
    """
    try:
        answers = _answers(path)
        lengths = False
        bare = 0
        for row in _requests(path, answers):
            if isinstance(row, Dropped) and row.reason == "no prompt":
                bare += 1
            lengths = lengths or isinstance(row, Row)
            yield row
    except READ_ERRORS as error:
        raise TraceError([f"{path}: cannot be read: {reason(error)}"]) from error
    if bare and not lengths:
        raise TraceError(
            [
                f"{path}: its {bare} requests have no lengths: vLLM's request log has carried none since "
                "0.11.2. Record the traffic with tuner trace record, or serve with --otlp-traces-endpoint "
                "and import the spans"
            ]
        )


def _requests(path: Path, answers: Mapping[str, int]) -> Rows:
    details: dict[str, re.Match[str]] = {}
    """DEBUG lines of requests whose INFO line comes next."""
    clock = _Clock()
    with opened(path) as again:
        for number, raw in numbered(path):
            if raw is None:
                yield Dropped(line=number, reason="line too long", detail=f"over {MAX_LINE_BYTES} bytes")
                continue
            text = raw.decode("utf-8", errors="replace").rstrip()
            if (found := _DETAILS.search(text)) is not None:
                details[found["id"]] = found
                continue
            received = _RECEIVED.search(text)
            if received is None:
                continue
            at = clock.seconds(text)
            shown = details.pop(received["id"], None)
            prompt, ids = _asked(received, shown)
            if at is None:
                yield Dropped(line=number, reason="no time")
            elif prompt is None and ids is None:
                yield Dropped(line=number, reason="no prompt", detail="since 0.11.2 only DEBUG logs it")
            else:
                answer, length = None, None
                if received["id"] in answers:
                    again.seek(answers[received["id"]])
                    answer, length = _answered(again.readline().decode("utf-8", errors="replace"))
                limit = _LIMIT.search(received["params"])
                limited = answer is None and length is None and limit is not None
                yield Row(
                    line=number,
                    at_s=at,
                    prompt=prompt,
                    token_ids=ids,
                    answer=answer,
                    output_length=int(limit[1]) if limited and limit is not None else length,
                    output_is_limit=limited,
                )


def _asked(
    received: re.Match[str], details: re.Match[str] | None
) -> tuple[str | None, tuple[int, ...] | None]:
    """The prompt and its tokens, as far as they were logged."""
    if details is not None:
        return _literal(details["prompt"]), _ids(details["ids"])
    found = _PARAMS_IDS.match(received["params"])
    return _literal(received["prompt"]), _ids(found["ids"] if found else None)


def _answers(path: Path) -> dict[str, int]:
    """Where in the file each finished request's answer stands. Places, not answers: memory stays small."""
    places: dict[str, int] = {}
    with opened(path) as file:
        place = 0
        while raw := file.readline(MAX_LINE_BYTES):
            if b"Generated response " in raw:
                found = _GENERATED.search(raw.decode("utf-8", errors="replace"))
                if found is not None and "delta" not in (found["stream"] or ""):
                    places[found["id"]] = place
            place += len(raw)
    return places


def _answered(line: str) -> tuple[str | None, int | None]:
    """An answer's text and its length in tokens, the latter where the tokens were logged."""
    found = _GENERATED.search(line)
    if found is None:
        return None, None
    ids = _ids(found["ids"])
    return _literal(found["text"]), None if ids is None else len(ids)


def _literal(written: str | None) -> str | None:
    """Text from how Python writes it."""
    try:
        value = ast.literal_eval(written) if written else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str) and value else None


def _ids(written: str | None) -> tuple[int, ...] | None:
    inside = written.strip("[]") if written and written != "None" else ""
    try:
        return tuple(int(item) for item in inside.split(",")) if inside else None
    except ValueError:  # `[,]`, or a number with thousands of digits
        return None


class _Clock:
    """Seconds from the log's times, which have no year: one that jumps back by half a year begins another.

    Days are counted in a leap year; a log that goes from the 28th of February to March was of no such year.
    """

    def __init__(self) -> None:
        self._shift = timedelta()
        self._last = datetime(_LEAP_YEAR, 1, 1, tzinfo=UTC)

    def seconds(self, line: str) -> float | None:
        """The line's time; None where it has none, or one that is none."""
        found = _TIME.search(line)
        if found is None:
            return None
        month, day, hour, minute, second = map(int, found.groups())
        try:
            at = datetime(_LEAP_YEAR, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:
            return None
        if self._last - at > _YEAR / 2:
            self._shift += _YEAR
        elif (self._last.month, self._last.day, at.month) == (2, 28, 3):
            self._shift -= timedelta(days=1)
        self._last = at
        return (at + self._shift).timestamp()
