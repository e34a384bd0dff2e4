"""Block ids of text: which prompts share a prefix, without saying what it is.

A block's digest is keyed and chained: it depends on every token before it, so one id means one whole
prefix, and without the key nobody can try texts against it. The key is random, lives in this object only,
and the digests leave it only as numbers in order of appearance.
"""

import hashlib
import secrets
from collections.abc import Sequence

_KEY_BYTES = 32
_DIGEST_BYTES = 16  # two of 2^40 blocks collide with a chance of 2^-49


class BlockIds:
    """Numbers blocks of tokens: equal whole prefixes get equal numbers, everything else new ones."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._numbers: dict[bytes, int] = {}
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
        known = (
            len(tokens)
            if served == len(tokens)
            else min(len(tokens), served) // self.block_tokens * (self.block_tokens)
        )
        ids: list[int] = []
        before = b""
        for start in range(0, known, self.block_tokens):
            block = b"".join(t.to_bytes(8) for t in tokens[start : min(start + self.block_tokens, known)])
            before = hashlib.blake2b(before + block, key=self._key, digest_size=_DIGEST_BYTES).digest()
            if before not in self._numbers:
                self._numbers[before] = self._fresh()
            ids.append(self._numbers[before])
        while len(ids) * self.block_tokens < served:
            ids.append(self._fresh())
        return tuple(ids)

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1
