"""Which prompts go on from an earlier prompt and its answer: sessions, where nobody recorded an id.

A chat client sends the whole conversation again with every turn. So a prompt that begins with an earlier
one, then its answer, is that conversation's next turn. Only keyed digests of texts are kept.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cluster.traffic.blocks import DIGEST_BYTES, KEY_BYTES
from cluster.traffic.request import Message

MOST_KNOWN = 2**18
"""Beginnings remembered, two a request with messages: the oldest is forgotten first."""

_STRIDE = 64
"""Bytes hashed at a time: beginnings are found by the hash up to the last whole stride, then by the rest."""

_ANSWERS = "assistant"


@dataclass(frozen=True, slots=True)
class _Beginning:
    """An exchange that a later prompt may begin with."""

    strides: bytes
    """Chained digest of its whole strides."""
    rest: int
    """Bytes after them."""
    digest: bytes
    """Of the rest."""


class Turns:
    """Sessions by number, recognised from texts that come in the order in which they were said."""

    def __init__(self, *, most: int = MOST_KNOWN) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)
        self._most = most
        self._sessions: dict[_Beginning, tuple[int, int]] = {}
        """Session, and the fewest tokens that a prompt going on from it has."""
        self._rests: dict[bytes, Counter[int]] = {}
        """By strides' digest: lengths of the rests there are, with how many."""
        self._next = 0

    def of_chat(self, messages: Iterable[Message], answer: str | None) -> int:
        """The session of a chat request. An answer not known is whatever the assistant says next."""
        asked = as_text(messages)
        session = self._find(asked, tokens=None)
        begun = f"{asked}{_ANSWERS}\n"
        # Both: clients trim answers or leave their reasoning out, and the longer match is found first.
        self._keep(begun, session, least=0)
        if answer is not None:
            self._keep(f"{begun}{answer}\n", session, least=0)
        return session

    def of_prompt(self, prompt: str, answer: str | None, *, tokens: int, output: int | None) -> int:
        """The session of a request with a plain prompt.

        Args:
            prompt: its text.
            answer: text of its answer; None where it is not known: then any prompt that goes on from this
                one by as many tokens as the answer had is of the session.
            tokens: length of the prompt.
            output: length of the answer; None where that is not known: at least one.
        """
        session = self._find(prompt, tokens=tokens)
        if answer is not None:
            self._keep(prompt + answer, session, least=0)
        elif len(prompt) >= _STRIDE:  # shorter ones are begun with by chance
            self._keep(prompt, session, least=tokens + (output or 1))
        return session

    def _find(self, text: str, *, tokens: int | None) -> int:
        """The session whose exchange the text begins with, the longest one; a new one where there is none."""
        content = text.encode("utf-8", "surrogatepass")
        for strides, at in reversed(list(self._strides(content))):
            for rest in sorted(self._rests.get(strides, ()), reverse=True):
                if at + rest > len(content):
                    continue
                beginning = _Beginning(strides, rest, self._hash(content[at : at + rest]))
                found = self._sessions.get(beginning)
                if found is not None and (tokens is None or tokens >= found[1]):
                    return found[0]
        self._next += 1
        return self._next - 1

    def _keep(self, text: str, session: int, *, least: int) -> None:
        content = text.encode("utf-8", "surrogatepass")
        *_, (strides, at) = self._strides(content)
        beginning = _Beginning(strides, len(content) - at, self._hash(content[at:]))
        if self._sessions.pop(beginning, None) is None:
            self._rests.setdefault(strides, Counter())[beginning.rest] += 1
        self._sessions[beginning] = session, least
        if len(self._sessions) > self._most:
            self._forget(next(iter(self._sessions)))

    def _forget(self, beginning: _Beginning) -> None:
        del self._sessions[beginning]
        rests = self._rests[beginning.strides]
        rests[beginning.rest] -= 1
        if not rests[beginning.rest]:
            del rests[beginning.rest]
        if not rests:
            del self._rests[beginning.strides]

    def _strides(self, content: bytes) -> Iterator[tuple[bytes, int]]:
        """Digest of the content up to each whole stride, the empty one first, and where it ends."""
        digest = b""
        yield digest, 0
        for end in range(_STRIDE, len(content) + 1, _STRIDE):
            digest = self._hash(digest + content[end - _STRIDE : end])
            yield digest, end

    def _hash(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key, digest_size=DIGEST_BYTES).digest()


def as_text(messages: Iterable[Message]) -> str:
    """Messages in a row. A model's own template would differ, but shares where this does."""
    return "".join(f"{message.role}\n{message.content}\n" for message in messages)
