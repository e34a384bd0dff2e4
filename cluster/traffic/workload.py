"""A workload: a trace made playable, with a speed, sampling settings and a seed; and its prompts.

Every config of a study is played the same prompts, token for token: they depend on the trace, the seed,
the tokenizer and the text they are made of, and on nothing of the config.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from cluster.traffic.request import Message, Request
from cluster.traffic.sessions import FIRST, Sessions, Turn, turns
from cluster.traffic.text import Corpus, Encode, Realm, block_tokens, corpus, corpus_digest
from cluster.traffic.tokenizer import TokenizerError, load_encode
from cluster.traffic.trace import Trace

__all__ = [
    "Encode",
    "Prompt",
    "Sessions",
    "TokenizerError",
    "Workload",
    "identity",
    "load_encode",
    "materialise",
    "prompts",
    "turns_of",
    "warm_up_prompts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every config of a study is played. Frozen, pickles."""

    trace: Trace
    speed: float = 1.0
    """Arrival times are divided by this: 2 plays the trace in half its recorded time. Think times are not."""
    sessions: Sessions = Sessions.RECORDED
    """When a session's later turns leave."""
    seed: int = 0
    tokenizer: str = ""
    """Model (hub id or local folder) whose tokenizer turns blocks into prompts: the space's own model,
    so that a config with another checkpoint still gets the same tokens."""
    temperature: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request as it is sent. Exactly one of `token_ids`, `text` and `messages` is there."""

    request: int
    """Index of the request in the trace; negative for one that is not of the trace."""
    due_s: float
    """When it leaves, in seconds after the replay's start; of a turn that waits, when it would have."""
    after: int | None = None
    """The request whose end it waits for; None: it waits for none."""
    think_s: float = 0.0
    """From that end to its leaving."""
    token_ids: tuple[int, ...] | None = None
    """Goes to the completions endpoint as it stands: `input_length` tokens, none added."""
    text: str | None = None
    """Literal text of the trace, for the completions endpoint."""
    messages: tuple[Message, ...] | None = None
    """Literal messages of the trace, for the chat endpoint."""
    max_tokens: int
    """Output tokens to be made, no fewer and no more."""
    input_length: int
    """Prompt tokens, as the trace says; for literal text the server's own count may differ."""
    session_id: str | None = None


def materialise(workload: Workload, encode: Encode) -> tuple[Prompt, ...]:
    """The workload's prompts, in the order of the trace."""
    return tuple(prompts(workload, encode))


def prompts(workload: Workload, encode: Encode) -> Iterator[Prompt]:
    """The workload's prompts one by one, for traces whose tokens would not all fit in memory.

    Requests with blocks get text that is shared exactly as their ids say; requests without get text of
    their own; literal text passes through.

    Raises:
        ValueError: where the speed is not a positive number.
    """
    if not (workload.speed > 0 and math.isfinite(workload.speed)):
        raise ValueError(f"speed must be a positive number, got {workload.speed}")
    trace = workload.trace
    made_of = corpus(encode)
    for index, (request, turn) in enumerate(zip(trace.requests, turns_of(workload), strict=True)):
        literal = request.prompt is not None or request.messages is not None
        yield Prompt(
            request=index,
            due_s=request.arrival_s / workload.speed,
            after=turn.after,
            think_s=turn.think_s,
            token_ids=None
            if literal
            else _tokens(made_of, request, index, trace.block_tokens, workload.seed),
            text=request.prompt,
            messages=request.messages,
            max_tokens=request.output_length,
            input_length=request.input_length,
            session_id=request.session_id,
        )


def turns_of(workload: Workload) -> tuple[Turn, ...]:
    """What each request waits for beside its own time, in the order of the trace."""
    if workload.sessions is Sessions.RECORDED:
        return (FIRST,) * len(workload.trace.requests)
    return turns(workload.trace)


def warm_up_prompts(
    workload: Workload, encode: Encode, *, count: int, lengths: Sequence[int], max_tokens: int = 16
) -> tuple[Prompt, ...]:
    """Prompts that are not of the trace and share no block with it or with each other, all due at 0.

    Args:
        workload: the workload to be played afterwards.
        encode: its tokenizer's encoding.
        count: how many.
        lengths: prompt lengths in tokens, taken in turn.
        max_tokens: output tokens of each.
    """
    made_of = corpus(encode)
    return tuple(
        Prompt(
            request=-1 - number,
            due_s=0.0,
            token_ids=made_of.passage(Realm.WARM_UP, number, seed=workload.seed, length=length),
            max_tokens=max_tokens,
            input_length=length,
        )
        for number, length in ((number, lengths[number % len(lengths)]) for number in range(count))
    )


def identity(workload: Workload) -> str:
    """SHA-256, hex, of everything that decides what is sent and when: equal means the same traffic.

    The text that prompts are made of counts, so two machines whose Python documents itself differently
    do not pass for the same.
    """
    parts = {
        "trace": workload.trace.digest,
        "speed": workload.speed,
        "sessions": workload.sessions,
        "seed": workload.seed,
        "tokenizer": workload.tokenizer,
        "temperature": workload.temperature,
        "corpus": corpus_digest(),
    }
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _tokens(made_of: Corpus, request: Request, index: int, block: int, seed: int) -> tuple[int, ...]:
    """Exactly `input_length` tokens: the blocks in a row, the last one cut to what is left."""
    length = request.input_length
    if not request.hash_ids:
        return made_of.passage(Realm.PRIVATE, index, seed=seed, length=length)
    tokens: list[int] = []
    for hash_id in request.hash_ids:
        tokens += block_tokens(made_of, seed, hash_id, min(block, length - len(tokens)), block=block)
    return tuple(tokens)
