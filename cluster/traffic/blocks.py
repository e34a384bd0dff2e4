"""Block ids of text: which prompts share a prefix, without saying what it is.

A block's digest is keyed and chained: it depends on every token before it, so one id means one whole
prefix, and without the key nobody can try texts against it. The key is random, lives in this object only,
and the digests leave it only as numbers in order of appearance.
"""

import hashlib
import secrets
from collections.abc import Sequence

KEY_BYTES = 32
DIGEST_BYTES = 16
"""Two of 2^40 blocks collide with a chance of 2^-49."""

MOST_KNOWN = 2**21
"""Blocks remembered, some 400 MB: 33 million tokens in blocks of 16, more than an engine's cache holds."""


class BlockIds:
    """Numbers blocks of tokens: equal whole prefixes get equal numbers, everything else new ones.

    Memory is bounded: the block that was not met for longest is forgotten, and gets a new number should
    it come again, when an engine's cache would have forgotten it as well.
    """

    def __init__(self, block_tokens: int, *, most: int = MOST_KNOWN) -> None:
        self.block_tokens = block_tokens
        self._most = most
        self._key = secrets.token_bytes(KEY_BYTES)
        self._numbers: dict[bytes, int] = {}
        """By digest, the one met last at the end."""
        self._next = 0

    def of(self, tokens: Sequence[int], *, length: int | None = None) -> tuple[int, ...]:
        """The ids of a prompt's blocks, the last one partial.

        Args:
            tokens: the prompt.
            length: tokens that the prompt had where it was served, if that is known and not
                `len(tokens)`: a chat template adds some. What is over is cut off, and blocks that are
                missing, or that the difference makes partial, count as shared with nobody.
        """
        served = len(tokens) if length is None else length
        size = self.block_tokens
        # Where the two differ only whole blocks are sure to be alike.
        known = served if served == len(tokens) else min(len(tokens), served) // size * size
        ids: list[int] = []
        before = b""
        for start in range(0, known, size):
            block = b"".join(token.to_bytes(8) for token in tokens[start : min(start + size, known)])
            before = hashlib.blake2b(before + block, key=self._key, digest_size=DIGEST_BYTES).digest()
            ids.append(self._number(before))
        ids += (self._fresh() for _ in range(-(-(served - known) // size)))
        return tuple(ids)

    def _number(self, digest: bytes) -> int:
        known = self._numbers.pop(digest, None)
        number = self._fresh() if known is None else known
        self._numbers[digest] = number
        if len(self._numbers) > self._most:
            del self._numbers[next(iter(self._numbers))]
        return number

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1
