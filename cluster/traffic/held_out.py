"""Prompts by which a model's answers are judged: the traffic's own as far as it has text, then a shipped set.

The shipped passages were written for this project. Each breaks off in mid-sentence, so that there is
something to go on with.
"""

import importlib.resources
from functools import lru_cache

import numpy as np

from cluster.traffic.request import Request
from cluster.traffic.text import Encode
from cluster.traffic.trace import Trace

LONGEST = 256
"""Tokens of a prompt at the most; of a longer one the end is kept, which is what is to be gone on with."""

_SHARED = 3
"""Passages that every second shipped prompt begins with: some 190 tokens, more than any engine's cache block,
so that a prefix cache has something to keep."""


def held_out_prompts(
    trace: Trace, encode: Encode, *, count: int, seed: int, longest: int = LONGEST
) -> tuple[tuple[int, ...], ...]:
    """Up to `count` different prompts as token ids, the same for the same arguments.

    Chat messages are written one below the other, each behind its role: no template is applied.

    Args:
        trace: where prompts are drawn from if any of its requests has text.
        encode: the tokenizer's, without special tokens.
        longest: tokens of one prompt at the most.
    """
    own = list(dict.fromkeys(text for request in trace.requests if (text := _text(request))))
    drawn = np.random.default_rng(seed).permutation(len(own))[:count]
    texts = [*(own[place] for place in sorted(drawn.tolist())), *_shipped()]
    prompts = dict.fromkeys(tuple(encode(text))[-longest:] for text in texts[:count])
    return tuple(prompt for prompt in prompts if prompt)


def shipped_count() -> int:
    """How many prompts the shipped set has."""
    return len(_shipped())


def _text(request: Request) -> str | None:
    if request.prompt is not None:
        return request.prompt
    if request.messages is not None:
        return "\n".join(f"{message.role}: {message.content}" for message in request.messages)
    return None


@lru_cache(maxsize=1)
def _shipped() -> tuple[str, ...]:
    """Passages, every second one behind the same few others."""
    text = (importlib.resources.files("cluster.traffic") / "held_out.txt").read_text(encoding="utf-8")
    passages = text.strip().split("\n\n")
    shared = "\n\n".join(passages[:_SHARED])
    return tuple(
        f"{shared}\n\n{passage}" if number % 2 else passage for number, passage in enumerate(passages)
    )
