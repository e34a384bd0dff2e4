"""A server that somebody else started: found at a URL, played with care, left as it was.

It is not ours, so nothing of it is reset, read back or stopped. Its counters are left alone, since other
people's requests are in them. What a replay sends is new to it, so that its prefix cache holds nothing of it
but what the traffic itself repeats.
"""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from cluster.node.engine import LOG_NAME, EngineFailure, Replay
from cluster.node.phases import Phases
from cluster.node.replay import closed_loop, replay, run_loop
from cluster.node.watch import Stopped
from cluster.order import Cause, Limits, Order
from cluster.traffic.sessions import remarks
from cluster.traffic.workload import Prompt, Workload, load_encode, materialise, warm_up_prompts
from objectives.allowance import Allowance
from search_spaces.values import Json

_ASK_S = 20.0
_WARM_UP = 2
"""Requests before the first replay, one after the other: they open what a first request opens."""
_WARM_UP_TOKENS = 8


class NoServer(Exception):
    """There is no such server, or not with this model; the message is one line, without the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """An Engine that starts nothing."""

    url: str
    """Its root, without `/v1`."""
    key: str | None = field(default=None, repr=False)
    """Bearer token; None: it asks for none."""
    model: str | None = None
    """The name that it serves under; None: the only one there is."""

    name: ClassVar[str] = "vllm"

    def check(self) -> str:
        """The model's name there. Raises NoServer."""
        status, said = self._ask("/v1/models")
        match said:
            case {"data": list(models)} if status == 200:
                names = [str(one["id"]) for one in models if isinstance(one, dict) and "id" in one]
            case _:
                hint = "; it asks for a key (--key-variable)" if status in (401, 403) else ""
                raise NoServer(f"{self.url}/v1/models answered HTTP {status}, no list of models{hint}")
        if self.model is not None and self.model not in names:
            raise NoServer(f"{self.url} does not serve {self.model!r}; it serves {', '.join(names)}")
        if self.model is None and len(names) != 1:
            raise NoServer(f"{self.url} serves {', '.join(names) or 'nothing'}; name one with --model")
        return self.model or names[0]

    def version(self) -> str | None:
        """vLLM's, as the server says; None where it does not."""
        try:
            match self._ask("/version")[1]:
                case {"version": str(version)}:
                    return version
                case _:
                    return None
        except NoServer:
            return None

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> Iterator["RunningEndpoint"]:
        """The server, if it is there. Raises EngineFailure."""
        (folder / LOG_NAME).write_text(f"{self.url} was running; its log is not ours to read.\n")
        try:
            served = self.check()
        except NoServer as error:
            # That somebody else's server is away says nothing about the config.
            raise EngineFailure(Cause.LOST_NODE, str(error)) from None
        yield RunningEndpoint(self, served)

    def _ask(self, path: str) -> tuple[int, Json]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None  # whoever made this has checked the URL
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_ASK_S, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_ASK_S)
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            return response.status, _json(response.read(1 << 20))
        except (OSError, http.client.HTTPException) as error:
            raise NoServer(f"{self.url} does not answer ({type(error).__name__}: {error})") from None
        finally:
            connection.close()


class RunningEndpoint:
    """The server as an Endpoint."""

    hardware: str | None = None
    command: tuple[str, ...] = ()

    def __init__(self, server: RunningServer, served: str) -> None:
        self._server = server
        self._served = served
        self.version = server.version()

    @property
    def effective(self) -> Mapping[str, Json]:
        """Not known: what it says of itself is for whoever runs it."""
        return {}

    @property
    def launch(self) -> str:
        """Nothing was started."""
        return ""

    @property
    def stages_s(self) -> Mapping[str, float]:
        return {}

    def warm_up(self, workload: Workload) -> None:
        """A few short requests, one after the other. Raises EngineFailure where none succeeds."""
        prompts = warm_up_prompts(
            workload,
            load_encode(workload.tokenizer),
            count=_WARM_UP,
            lengths=[_WARM_UP_TOKENS],
            max_tokens=_WARM_UP_TOKENS,
        )
        replayed = self._closed(prompts, 1, workload, Limits())
        failed = [record.error for record in replayed.records if record.error is not None]
        if len(failed) == len(replayed.records):
            raise EngineFailure(Cause.DIED_UNDER_LOAD, f"no request succeeded: {failed[0]}")

    def reset_caches(self) -> None:
        """Nothing: its cache is other people's too."""

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        """Replay open loop."""
        result = run_loop(
            replay(
                materialise(workload, load_encode(workload.tokenizer)),
                base_url=self._server.url,
                model=self._served,
                stuck_s=limits.stuck_s,
                alive=lambda: None,
                temperature=workload.temperature,
                seed=workload.seed,
                allowance=allowance,
                key=self._server.key,
            )
        )
        if result.stopped is Stopped.STUCK:
            reason = result.reason or "no token for any request"
            raise EngineFailure(Cause.STUCK, reason, records=result.records)
        said = remarks(workload.trace, workload.sessions, result.records)
        return Replay(
            records=result.records,
            samples=(),
            invalid=result.invalid,
            warnings=(*result.warnings, *said),
            cut_s=result.cut_s,
        )

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        """Replay with so many requests in flight."""
        prompts = materialise(workload, load_encode(workload.tokenizer))
        return self._closed(prompts, concurrency, workload, limits)

    def _closed(
        self, prompts: tuple[Prompt, ...], concurrency: int, workload: Workload, limits: Limits
    ) -> Replay:
        result = run_loop(
            closed_loop(
                prompts,
                concurrency,
                base_url=self._server.url,
                model=self._served,
                stuck_s=limits.stuck_s,
                alive=lambda: None,
                temperature=workload.temperature,
                seed=workload.seed,
                key=self._server.key,
            )
        )
        return Replay(records=result.records, samples=(), invalid=result.invalid, warnings=result.warnings)


def _json(body: bytes) -> Json:
    try:
        found: Json = json.loads(body)
    except ValueError:
        return None
    return found
