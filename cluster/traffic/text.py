"""Prompts for requests whose text is not known: real language, of exact lengths in tokens.

Speculation lives off what text is like, so random tokens would starve it and a repeated phrase would
flatter it. The text here is Python's own documentation of its topics, which ships with every
interpreter. It differs between Python versions, so its digest is part of a workload's identity.

A block's tokens depend on the seed, the trace's block size and the block's id alone: equal ids give
equal tokens wherever they stand, in any slice of a trace. Different ids must not begin alike, or the
engine's prefix cache would find sharing that the trace does not have. So every passage opens with a code
of its id, in words of the corpus: the codes are prefix-free, hence two different ids differ within the
code of either. It is one token for the first some thousand ids of a trace and at most three for the
first several million, so what two passages share by accident is far below any engine's cache block.
"""

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pydoc_data.topics import topics

Encode = Callable[[str], Sequence[int]]
"""Text to token ids, without special tokens."""

_CODED = 2**66
"""Codes exist for numbers below this: 63-bit ids, in each of three realms."""

_RUN = 64
"""Blocks with neighbouring ids that are cut from one stretch of the corpus. Recorders and `make` number
the new blocks of a prompt one after the other, so a prompt's own part is one text, not a quilt."""

_FEWEST_WORDS = 64
"""A tokenizer that makes fewer different tokens of the whole corpus is not one of language."""


class Realm(enum.IntEnum):
    """Whom a passage is for. No passage of one realm begins like a passage of another."""

    BLOCK = 0
    """A block of a trace, by its hash id."""
    PRIVATE = 1
    """A prompt that shares nothing, by its request's place in the trace."""
    WARM_UP = 2
    """A request that is not of the trace, by its number."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documentation's text in the tokens of one tokenizer."""

    tokens: tuple[int, ...]
    words: tuple[int, ...]
    """The different tokens of it, in order of first appearance."""
    long_codes: int
    """How many of `words`, the last ones, announce a code of more than one token."""

    def passage(self, realm: Realm, key: int, *, seed: int, length: int, block: int = 0) -> tuple[int, ...]:
        """`length` tokens of running text that no other realm's or key's passage begins like.

        A shorter passage of the same realm, key, seed and block is a prefix of a longer one.

        Args:
            block: stride in tokens at which the passages of neighbouring keys follow each other in the
                corpus, so that prompts cut into small blocks still read on; 0: each from anywhere.
        """
        code = self._code(key * len(Realm) + realm)
        run, place = divmod(key, _RUN if block else 1)
        digest = hashlib.blake2b(f"{seed}/{realm.value}/{run}".encode(), digest_size=8).digest()
        # The code stands in place of the words it covers.
        start = (int.from_bytes(digest) + place * block + len(code)) % len(self.tokens)
        wanted = max(length - len(code), 0)
        text = self.tokens[start : start + wanted]
        while len(text) < wanted:  # past the corpus's end it goes on from the beginning
            text += self.tokens[: wanted - len(text)]
        return (code + text)[:length]

    def _code(self, number: int) -> tuple[int, ...]:
        """A number's code: one word, or a word that announces k digits and k words as digits."""
        base = len(self.words)
        singles = base - self.long_codes
        if number < singles:
            return (self.words[number],)
        number -= singles
        digits = 1
        while number >= base**digits:
            number -= base**digits
            digits += 1
        written = (self.words[number // base**place % base] for place in reversed(range(digits)))
        return (self.words[singles + digits - 1], *written)


@lru_cache(maxsize=2)
def corpus(encode: Encode) -> Corpus:
    """The corpus in a tokenizer's tokens; the last two are kept, since encoding takes a second.

    Raises:
        ValueError: where the tokenizer makes too few different tokens of it.
    """
    tokens = tuple(token for topic in _texts() for token in encode(topic))
    words = tuple(dict.fromkeys(tokens))
    if len(words) < _FEWEST_WORDS:
        raise ValueError(
            f"this tokenizer makes only {len(words)} different tokens of Python's documentation: "
            f"at least {_FEWEST_WORDS} are needed to tell blocks apart"
        )
    long_codes = 1
    while len(words) - long_codes + sum(len(words) ** k for k in range(1, long_codes + 1)) < _CODED:
        long_codes += 1
    return Corpus(tokens, words, long_codes)


def block_tokens(of: Corpus, seed: int, hash_id: int, length: int, *, block: int) -> tuple[int, ...]:
    """The first `length` tokens of a trace's block; `block` is the trace's block size."""
    return of.passage(Realm.BLOCK, hash_id, seed=seed, length=length, block=block)


@lru_cache(maxsize=1)
def corpus_digest() -> str:
    """SHA-256 of the text that prompts are made of, hex: equal on machines that make equal prompts."""
    digest = hashlib.sha256()
    for text in _texts():
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _texts() -> tuple[str, ...]:
    return tuple(topics[name] for name in sorted(topics))
