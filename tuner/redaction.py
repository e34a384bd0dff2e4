"""What is blanked before anything is written down or logged: secrets by name, and passwords in URLs.

`search_spaces.secrets` says which names carry a secret; this adds whole trees of settings.
"""

from collections.abc import Iterable, Mapping

from cluster.node.secrecy import hide
from search_spaces.secrets import HIDDEN, holds_secret, without_passwords
from search_spaces.values import Json

__all__ = [
    "redacted",
    "redacted_environment",
    "redacted_settings",
    "redacted_text",
    "without_passwords",
]


def redacted(value: Json, name: str = "") -> Json:
    """The value as it may be written down, `name` being the setting that holds it.

    Only text is blanked: a number or a flag is no secret (`eos_token_id`, `enable_token`).
    """
    match value:
        case str():
            return HIDDEN if holds_secret(name, value) else without_passwords(value)
        case list():
            return [redacted(item, name) for item in value]
        case dict():
            return {key: redacted(item, key) for key, item in value.items()}
        case _:
            return value


def redacted_settings(settings: Mapping[str, Json]) -> dict[str, Json]:
    """Engine arguments as they may be written down."""
    return {name: redacted(value, name) for name, value in settings.items()}


def redacted_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables as they may be written down."""
    return {
        name: HIDDEN if holds_secret(name, value) else without_passwords(value)
        for name, value in environment.items()
    }


def redacted_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text as it may be written down: passwords in URLs blanked, and these values wherever they stand."""
    return without_passwords(hide(text, secrets))
