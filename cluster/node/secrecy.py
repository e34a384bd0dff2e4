"""Secrets taken out of what a node writes down: its commands and its logs.

Which names carry one is `search_spaces.secrets`' rule. Standard library only: the guard imports it.
"""

from collections.abc import Iterable, Mapping, Sequence

from search_spaces.secrets import HIDDEN, is_secret

__all__ = ["HIDDEN", "hide", "is_secret", "secret_values", "without_secrets"]

_SHORTEST = 8
"""A value shorter than this is not blanked out of texts: it would hit words that are no secret."""


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
