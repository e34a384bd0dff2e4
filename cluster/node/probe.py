"""Asks a served engine for what its quality is judged by: greedy continuations, and how it reads given ones.

Prompts go in and tokens come out as ids, through /v1/completions. All prompts are sent at once, so that the
engine batches them as it would under load; where a batch's order alone changes answers, a reference shows how
often. Every request asks for plain greedy decoding, whatever the model's own generation settings say.

docs/quality.md says what is made of the answers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import aiohttp

from cluster.node.engine import EngineFailure
from cluster.node.replay import run_loop
from cluster.order import Probe
from objectives.answers import Answer, Answers, Scored, Tokens, Unanswered
from search_spaces.values import Json

TOP = 20
"""Likeliest tokens asked for at each position of a given text: vLLM's own limit (max_logprobs)."""
_TOP_OWN = 5
"""The same while generating, where only near ties are looked for."""
_AT_ONCE = 16
_REQUEST_S = 300.0
"""Longest that one request may take; all of them wait for each other in an engine with few slots."""

_GREEDY: Mapping[str, Json] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_token_ids": True,
    "stream": False,
}


class ProbeError(Exception):
    """The engine did not answer as asked; one line."""


@runtime_checkable
class Speaking(Protocol):
    """An endpoint that answers in words. The simulated engine has none."""

    @property
    def base_url(self) -> str: ...
    @property
    def served_name(self) -> str: ...
    def reset_caches(self) -> None: ...


def ask(endpoint: object, probe: Probe) -> Answers | Unanswered:
    """The engine's answers, or why there are none. Never raises for anything that an engine can do."""
    if not isinstance(endpoint, Speaking):
        return Unanswered(reason="this engine answers no words")
    try:
        return _asked(endpoint, probe)
    except (ProbeError, EngineFailure) as error:
        return Unanswered(reason=str(error))


def _asked(endpoint: Speaking, probe: Probe) -> Answers:
    prompts, backwards = probe.prompts, tuple(reversed(probe.prompts))
    asking = _Asking(endpoint, probe.tokens)
    apart: tuple[Tokens, ...] | None = None
    if probe.continuations is None:
        endpoint.reset_caches()
        apart = tuple(tokens for tokens, _ in reversed(asking.greedy(backwards, top=None)))
    endpoint.reset_caches()
    greedy = asking.greedy(prompts, top=_TOP_OWN)
    # Last first, so that prompts meet another batch than before, and blocks that others left.
    again = tuple(tokens for tokens, _ in reversed(asking.greedy(backwards, top=None)))
    given = probe.continuations or tuple(tokens for tokens, _ in greedy)
    forced = asking.forced(prompts, given)
    return Answers(
        answers=tuple(
            Answer(
                greedy=greedy[place][0],
                own=greedy[place][1],
                again=again[place],
                apart=None if apart is None else apart[place],
                forced=forced[place],
            )
            for place in range(len(prompts))
        )
    )


class _Asking:
    """The requests of one probe."""

    def __init__(self, endpoint: Speaking, tokens: int) -> None:
        self._url = f"{endpoint.base_url}/v1/completions"
        self._model = endpoint.served_name
        self._tokens = tokens

    def greedy(
        self, prompts: Sequence[Tokens], *, top: int | None
    ) -> tuple[tuple[Tokens, tuple[Scored, ...]], ...]:
        """Continuations, with their likeliest tokens where `top` says how many."""
        more: Mapping[str, Json] = (
            {} if top is None else {"logprobs": top, "return_tokens_as_token_ids": True}
        )
        choices = self._choices([self._body(prompt, self._tokens, more) for prompt in prompts])
        return tuple((_token_ids(choice), () if top is None else _generated(choice)) for choice in choices)

    def forced(
        self, prompts: Sequence[Tokens], continuations: Sequence[Tokens]
    ) -> tuple[tuple[Scored, ...], ...]:
        """What the engine makes of each continuation behind its prompt."""
        pairs = list(zip(prompts, continuations, strict=True))
        bodies = [self._body(prompt + given, 1, {"prompt_logprobs": TOP}) for prompt, given in pairs]
        return tuple(
            _read(choice, prompt, given)
            for choice, (prompt, given) in zip(self._choices(bodies), pairs, strict=True)
        )

    def _body(self, prompt: Tokens, tokens: int, more: Mapping[str, Json]) -> dict[str, Json]:
        return {"model": self._model, "prompt": list(prompt), "max_tokens": tokens, **_GREEDY, **more}

    def _choices(self, bodies: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
        return run_loop(_all(self._url, bodies))


async def _all(url: str, bodies: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """The first choice of every answer, in the order of the requests. Raises ProbeError."""
    timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
    connector = aiohttp.TCPConnector(limit=_AT_ONCE)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_one(session, url, body)) for body in bodies]
        except ExceptionGroup as failed:
            raise _first(failed) from None
    return [task.result() for task in tasks]


async def _one(session: aiohttp.ClientSession, url: str, body: Mapping[str, Json]) -> Mapping[str, Json]:
    try:
        async with session.post(url, json=dict(body)) as response:
            if response.status != 200:
                said = " ".join((await response.text(errors="replace")).split())[:300]
                raise ProbeError(f"HTTP {response.status}: {said}")
            match await response.json(content_type=None):
                case {"choices": [dict(choice), *_]}:
                    return choice
                case _:
                    raise ProbeError("an answer without choices")
    except TimeoutError:
        raise ProbeError(f"no answer within {_REQUEST_S:g} s") from None
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise ProbeError(f"{type(error).__name__}: {error}") from None


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    inner = failed.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner


def _token_ids(choice: Mapping[str, Json]) -> Tokens:
    match choice.get("token_ids"):
        case list(ids) if ids and all(isinstance(token, int) for token in ids):
            return tuple(token for token in ids if isinstance(token, int))
        case _:
            raise ProbeError("an answer without token ids: this engine does not know return_token_ids")


def _generated(choice: Mapping[str, Json]) -> tuple[Scored, ...]:
    """The tokens of a continuation with the likeliest ones beside them; names are `token_id:17`."""
    match choice.get("logprobs"):
        case {"tokens": list(names), "token_logprobs": list(values), "top_logprobs": list(tops)}:
            pass
        case _:
            raise ProbeError("an answer without logprobs")
    if not len(names) == len(values) == len(tops):
        raise ProbeError("an answer whose logprobs do not go together")
    return tuple(
        Scored(token=_id(name), logprob=_finite(value), top=_ordered({_id(n): v for n, v in top.items()}))
        for name, value, top in zip(names, values, tops, strict=True)
        if isinstance(top, dict)
    )


def _read(choice: Mapping[str, Json], prompt: Tokens, given: Tokens) -> tuple[Scored, ...]:
    """What was made of the given tokens, of an answer that has all of the prompt's."""
    positions = choice.get("prompt_logprobs")
    if not isinstance(positions, list) or len(positions) != len(prompt) + len(given):
        raise ProbeError("an answer without the prompt's logprobs")
    read = []
    for token, position in zip(given, positions[len(prompt) :], strict=True):
        if not isinstance(position, dict) or str(token) not in position:
            raise ProbeError(f"logprobs of a prompt without those of its token {token}")
        found = {_id(name): _logprob(entry) for name, entry in position.items()}
        ranked = {
            _id(name): found[_id(name)] for name, entry in position.items() if _rank(entry) <= TOP
        } or found
        read.append(Scored(token=token, logprob=found[token], top=_ordered(ranked)))
    return tuple(read)


def _ordered(logprobs: Mapping[int, Json]) -> tuple[tuple[int, float], ...]:
    """The likeliest first; of equally likely ones the lower id, whatever order the answer has."""
    known = {token: _finite(value) for token, value in logprobs.items()}
    return tuple(sorted(known.items(), key=lambda item: (-item[1], item[0])))


def _id(name: str | Json) -> int:
    digits = str(name).removeprefix("token_id:")
    if not digits.isdecimal():
        raise ProbeError(f"a token that is no id: {str(name)[:40]!r}")
    return int(digits)


def _logprob(entry: Json) -> float:
    return _finite(entry.get("logprob") if isinstance(entry, dict) else None)


def _rank(entry: Json) -> int:
    rank = entry.get("rank") if isinstance(entry, dict) else None
    return rank if isinstance(rank, int) else 1


def _finite(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProbeError(f"a logprob that is no number: {value!r}")
    # vLLM writes -inf as -9999.0, JSON having no infinity.
    return max(float(value), -9999.0)
