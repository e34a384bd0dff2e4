"""What must not be written down: tokens, keys and passwords, by the name that carries them.

Standard library only: the guard imports it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"

_SECRET_NAME = re.compile(r"(^|[-_])(token|key|api-?key|password|passwd|secret|credentials?)$", re.IGNORECASE)
"""The last word decides: `--hf-token` and `AWS_SECRET_ACCESS_KEY` are secret, `--max-num-batched-tokens`
is not."""

_SHORTEST = 8
"""A value shorter than this is not blanked out of texts: it would hit words that are no secret."""


def is_secret(name: str) -> bool:
    """Whether an option or an environment variable of this name carries a secret."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """The command with the values of secret options blanked."""
    shown: list[str] = []
    follows_secret = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_option = name.startswith("--")
        if follows_secret and not is_option:
            shown.append(HIDDEN)
        elif is_option and equals and is_secret(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(word)
        follows_secret = is_option and not equals and is_secret(name)
    return tuple(shown)


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Values of the variables whose names say that they are secret."""
    return frozenset(
        value for name, value in environment.items() if is_secret(name) and len(value) >= _SHORTEST
    )


def hide(text: str, values: Iterable[str]) -> str:
    """The text with each of these values blanked, longest first so that none leaves a tail."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text
