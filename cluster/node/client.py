"""One request of a replay: its body, its stream, and the Record it becomes.

Everything a server or a network can do to a request ends in that request's record, never in an exception.
`cluster.node.replay` decides when requests leave and when a replay ends.
"""

import asyncio
import errno
import io
import math
import resource
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import orjson
from yarl import URL

from cluster.node.alarm import Alarm
from cluster.node.stream import Answer, EventReader, StreamFault, error_message, shown
from cluster.traffic.workload import Prompt
from objectives.measurement import Record

_COMPLETIONS = "/v1/completions"
_CHAT = "/v1/chat/completions"

_KEEP_ALIVE_S = 2.0
"""Idle connections older than this are not used again. vLLM's server closes them after 5 s, and a request
that leaves at that moment would fail through no fault of the engine."""

_CLOSING_S = 0.5
"""How long to wait after the last event for the connection to be free again."""

_LARGE_BODY = 1 << 20
"""From this size on aiohttp wants a body in pieces, so that one write does not hold up every stream."""

_OUT_OF_HANDLES = {
    errno.EMFILE: "out of file descriptors (raise `ulimit -n`)",
    errno.ENFILE: "out of file descriptors (the machine's limit)",
    errno.EADDRNOTAVAIL: "out of local ports",
}
"""Errors that are the client's own, so that the replay is void rather than the request failed."""


class Call:
    """One request on its way: filled in by `Client.send`, read off by `record`."""

    __slots__ = (
        "_answer",
        "_arrivals",
        "_asked",
        "_counts",
        "_prompt",
        "after",
        "body",
        "broken_s",
        "client_fault",
        "due_s",
        "error",
        "finished_s",
        "on_end",
        "path",
        "request",
        "sent_s",
        "think_s",
    )

    def __init__(self, prompt: Prompt, *, model: str, temperature: float, seed: int) -> None:
        self._prompt = prompt
        self._asked = prompt.max_tokens
        self._answer = Answer()
        self._arrivals = array("d")
        self._counts = array("q")
        self.request = prompt.request
        self.after = prompt.after
        self.think_s = prompt.think_s
        self.due_s = prompt.due_s if prompt.after is None else math.inf
        """Infinite while the call that it waits for has not ended."""
        self.path = _COMPLETIONS if prompt.messages is None else _CHAT
        self.body = request_body(prompt, model=model, temperature=temperature, seed=seed)
        self.sent_s: float | None = None
        self.finished_s: float | None = None
        self.error: str | None = None
        self.broken_s: float | None = None
        """When the connection failed, which is how a dying engine is first seen."""
        self.client_fault: str | None = None
        self.on_end: Callable[[float], None] | None = None
        """Called once, with the time, when its answer is complete or will not come. Not where it is
        cancelled."""

    def arrive(self, events: list[bytes], at_s: float) -> bool:
        """Take what one network read brought; whether tokens were among it. Raises StreamFault.

        Chunks that came in one read arrived together: they are one arrival with their tokens summed.
        """
        answer = self._answer
        before = answer.progress
        try:
            for data in events:
                answer.take(data)
        finally:
            if came := answer.progress > before:
                self._arrivals.append(at_s)
                self._counts.append(answer.progress)
        if answer.tokens_out > self._asked:
            raise StreamFault(f"served {answer.tokens_out} of {self._asked} tokens")
        if answer.done and self.finished_s is None:
            self.finished_s = at_s
        return came

    @property
    def over(self) -> bool:
        """Whether it failed, or was answered to its end."""
        return self.error is not None or self.finished_s is not None

    @property
    def first_s(self) -> float | None:
        """When the first tokens came."""
        return self._arrivals[0] if self._arrivals else None

    @property
    def first_tokens(self) -> int:
        """How many those were; one where the server does not count them as they come."""
        return self._counts[0] if self._counts and self._answer.counted else 1

    @property
    def asked(self) -> int:
        """Output tokens asked for."""
        return self._prompt.max_tokens

    def end(self, at_s: float) -> None:
        """Whoever waits for this call need wait no longer."""
        if (follow := self.on_end) is not None:
            self.on_end = None
            follow(at_s)

    def close(self) -> None:
        """The stream has ended. Raises StreamFault where it ended early or served other than asked."""
        served, asked = self._answer.tokens_out, self._prompt.max_tokens
        if not self._answer.done:
            raise StreamFault(f"stream ended early, after {served} of {asked} tokens")
        if served == asked and self._arrivals:
            return
        if served == asked:
            raise StreamFault(f"no chunk says when its tokens came, of {served} counted at the end")
        if not served and self._answer.texts:
            raise StreamFault("the server sent no usage, so its tokens cannot be counted")
        raise StreamFault(f"served {served} of {asked} tokens (finish_reason {self._answer.finish_reason})")

    @property
    def inferred(self) -> bool:
        """Whether arrivals between the first and the last are left out, their tokens being unknown."""
        answer = self._answer
        return not answer.counted and answer.texts not in (0, answer.tokens_out)

    def record(self, unfinished: str) -> Record:
        """What is known of this request; `unfinished` is its error if nothing else ended it."""
        answer = self._answer
        chunk_s, chunk_tokens = tuple(self._arrivals), tuple(self._counts)
        if self.inferred:
            chunk_s, chunk_tokens = _ends(chunk_s, answer.tokens_out)
        error = self.error
        if error is None and self.finished_s is None:
            error = unfinished
        return Record(
            request=self._prompt.request,
            due_s=self.due_s,
            sent_s=self.sent_s,
            chunk_s=chunk_s,
            chunk_tokens=chunk_tokens,
            finished_s=self.finished_s,
            tokens_in=self._prompt.input_length if answer.tokens_in is None else answer.tokens_in,
            tokens_out=answer.tokens_out,
            tokens_asked=self._prompt.max_tokens,
            cached_tokens=answer.cached_tokens,
            error=error,
            server_queue_s=answer.server_queue_s,
            server_ttft_s=answer.server_ttft_s,
            server_generation_s=answer.server_generation_s,
            server_itl_mean_s=answer.server_itl_mean_s,
            drafts=answer.drafts,
            draft_tokens=answer.draft_tokens,
            accepted_tokens=answer.accepted_tokens,
        )


def _ends(chunk_s: tuple[float, ...], tokens: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """First and last arrival, where only the total is known: prefill emits one token, the rest follow."""
    if not tokens:
        return (), ()
    if len(chunk_s) == 1 or tokens == 1:
        return chunk_s[:1], (tokens,)
    return (chunk_s[0], chunk_s[-1]), (1, tokens)


def request_body(prompt: Prompt, *, model: str, temperature: float, seed: int) -> bytes:
    """The JSON of one request, with its output length fixed: exactly `max_tokens` tokens, whatever they say.

    Each request has a seed of its own, the same in every replay.
    """
    fields: dict[str, object] = {
        "model": model,
        "max_tokens": prompt.max_tokens,
        "ignore_eos": True,
        "temperature": temperature,
        "seed": (seed + prompt.request) % (1 << 63),
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if prompt.messages is not None:
        fields["messages"] = [{"role": said.role, "content": said.content} for said in prompt.messages]
    else:
        fields["prompt"] = prompt.text if prompt.token_ids is None else list(prompt.token_ids)
    return orjson.dumps(fields)


class Client:
    """Sends calls over one pool of connections, on one clock."""

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, request_timeout_s: float | None, alarm: Alarm
    ) -> None:
        self._session = session
        self._alarm = alarm
        root = base_url.rstrip("/")
        self._urls = {path: URL(root + path) for path in (_COMPLETIONS, _CHAT)}
        self._timeout_s = request_timeout_s
        self.zero_s = time.perf_counter()
        """Where `time.perf_counter` stood at the clock's zero."""
        self.in_flight = 0
        self.progress_s = 0.0
        """Last token of any request, or the last time a request left while no other was in flight."""

    def now(self) -> float:
        """Seconds on the replay's clock."""
        return time.perf_counter() - self.zero_s

    async def until(self, due_s: float) -> None:
        """Sleep to a time on this clock, never less."""
        await self._alarm.until(self.zero_s + due_s)

    async def send(self, call: Call) -> None:
        """Play one call to its end. Raises nothing but cancellation."""
        if not self.in_flight:
            self.progress_s = self.now()
        self.in_flight += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream(call)
            if call.error is None:
                call.close()
        except StreamFault as fault:
            call.error = str(fault)
        except TimeoutError:
            call.error = f"timed out {self.now() - call.due_s:.1f} s after it was due"
        except (aiohttp.ClientError, OSError) as error:
            call.error = f"connection failed: {shown(str(error)) or type(error).__name__}"
            call.broken_s = self.now()
            if isinstance(error, OSError) and error.errno is not None:
                call.client_fault = _OUT_OF_HANDLES.get(error.errno)
        finally:
            self.in_flight -= 1
        call.end(self.now())

    async def _stream(self, call: Call) -> None:
        body = call.body if len(call.body) < _LARGE_BODY else io.BytesIO(call.body)
        call.body = b""  # a long trace's bodies are the bulk of its memory
        call.sent_s = self.now()
        async with self._session.post(self._urls[call.path], data=body, allow_redirects=False) as response:
            if response.status != 200:
                call.error = f"HTTP {response.status}: {await _said(response.content)}"
                return
            read, clock, zero_s = response.content.readany, time.perf_counter, self.zero_s
            events = EventReader()
            while piece := await read():
                at_s = clock() - zero_s
                if call.arrive(events.feed(piece), at_s):
                    self.progress_s = at_s
                if call.finished_s is not None:
                    call.end(at_s)
                    await _drain(response.content)
                    return


async def _said(content: aiohttp.StreamReader) -> str:
    """What an error answer says, as far as it comes at once."""
    try:
        async with asyncio.timeout(_CLOSING_S):
            return error_message(await content.read(4096))
    except (TimeoutError, aiohttp.ClientError, OSError):
        return "(no text)"


async def _drain(content: aiohttp.StreamReader) -> None:
    """Read to the end of a finished answer, so that its connection can serve another request.

    Given up after a moment: the answer is complete, and a server that goes on sending only loses the
    connection.
    """
    if content.at_eof():
        return
    try:
        async with asyncio.timeout(_CLOSING_S):
            while not content.at_eof():
                await content.readany()
    except (TimeoutError, aiohttp.ClientError, OSError):
        return


@asynccontextmanager
async def connected(
    base_url: str, *, connections: int, request_timeout_s: float | None = None, key: str | None = None
) -> AsyncIterator[Client]:
    """A client with room for this many requests at once, and no limit of its own on anything else.

    Args:
        key: a bearer token that the server asks for; None: it asks for none.
    """
    _allow_files(connections)
    authorised = {} if key is None else {"Authorization": f"Bearer {key}"}
    with Alarm() as alarm:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            headers={"Content-Type": "application/json", "Accept": "text/event-stream", **authorised},
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=1 << 18,
        ) as session:
            yield Client(session, base_url, request_timeout_s, alarm)


def _allow_files(connections: int) -> None:
    """Raise this process's soft limit on open files as far as it may and needs to go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, granted), hard))
