"""Who is asking: bearer tokens, each a user's. Only their hashes are kept, and every one is compared.

# tokens.yaml: a user, and the SHA-256 of a token of theirs in hex; several while one replaces another
ana: 4bf5…
build: [0a1b…, 77c2…]
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tuner.mistakes import Mistake

TOKENS_VARIABLE = "TUNER_TOKENS"
"""`name=token name=token`, where there is no file."""

LOCAL_USER = "local"
"""Who asks a service that has no tokens: whoever can reach it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_NAMES = "letters, digits, dots, dashes, underscores, @"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHORTEST = 16
"""Characters of a token: below that it could be guessed."""


class Tokens:
    """The hashes of all tokens, by user."""

    def __init__(self, hashes: Sequence[tuple[str, str]]) -> None:
        """Args:
        hashes: user and SHA-256 of a token, in hex.
        """
        self._hashes = tuple(hashes)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def user_of(self, token: str) -> str | None:
        """Whose token it is; None where it is nobody's. Takes the same time whichever it is."""
        asked = digest(token)
        found = None
        for user, known in self._hashes:
            if hmac.compare_digest(asked, known):
                found = user
        return found

    @classmethod
    def read(cls, path: Path | None, environment: Mapping[str, str] = os.environ) -> "Tokens":
        """From the operator's file, or from the environment where there is none; none at all: no tokens.

        Raises Mistake, which repeats no token.
        """
        if path is not None:
            return cls(_from_file(path))
        return cls(_from_words(environment.get(TOKENS_VARIABLE, "")))


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_token(name: str) -> str:
    """A token nobody can guess: 256 bits. Raises Mistake where the name can be no user's."""
    if not _NAME.fullmatch(name):
        raise Mistake(f"{name!r} is no user's name: {_NAMES}")
    return secrets.token_urlsafe(32)


def _from_file(path: Path) -> list[tuple[str, str]]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Mistake(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError):
        raise Mistake(f"{path}: is no YAML; write `name: sha256-of-the-token` on each line") from None
    if not isinstance(raw, dict) or not raw:
        raise Mistake(f"{path}: must give at least one `name: sha256-of-the-token`")
    found: list[tuple[str, str]] = []
    for name, given in raw.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Mistake(f"{path}: {name!r} is no user's name: {_NAMES}")
        for known in given if isinstance(given, list) else [given]:
            if not isinstance(known, str) or not _DIGEST.fullmatch(known):
                raise Mistake(
                    f"{path}: what {name} has is no SHA-256 in 64 lower-case hex digits; "
                    "tuner token makes a token with its line"
                )
            found.append((name, known))
    return _distinct(found, str(path))


def _from_words(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for number, word in enumerate(text.split(), 1):
        name, _, token = word.partition("=")
        if not _NAME.fullmatch(name) or len(token) < _SHORTEST:
            raise Mistake(
                f"{TOKENS_VARIABLE}: word {number} must be name=token, the token of {_SHORTEST} characters "
                "or more"
            )
        found.append((name, digest(token)))
    return _distinct(found, TOKENS_VARIABLE)


def _distinct(found: list[tuple[str, str]], where: str) -> list[tuple[str, str]]:
    owners: dict[str, str] = {}
    for name, known in found:
        if owners.setdefault(known, name) != name:
            raise Mistake(f"{where}: {owners[known]} and {name} have the same token; give each their own")
    return found
