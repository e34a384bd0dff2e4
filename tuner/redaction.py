"""What is blanked before anything is written down or logged: secrets by name, and passwords in URLs.

`cluster.node.secrecy` says which names carry a secret; this adds URLs, and whole trees of settings.
"""

import re
from collections.abc import Iterable, Mapping

from cluster.node.secrecy import HIDDEN, hide, is_secret
from search_spaces.values import Json

_URL_LOGIN = re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]*://)(?P<user>[^\s/:@]*):(?P<password>[^\s/@]+)@")


def without_passwords(text: str) -> str:
    """The text with the password of every URL in it blanked: `postgresql://me:***@host/db`."""
    return _URL_LOGIN.sub(rf"\g<scheme>\g<user>:{HIDDEN}@", text)


def redacted(value: Json, name: str = "") -> Json:
    """The value as it may be written down, `name` being the setting that holds it.

    Only text is blanked: a number or a flag is no secret (`eos_token_id`, `enable_token`).
    """
    match value:
        case str():
            return HIDDEN if value and is_secret(name) else without_passwords(value)
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
        name: HIDDEN if value and is_secret(name) else without_passwords(value)
        for name, value in environment.items()
    }


def redacted_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text as it may be written down: passwords in URLs blanked, and these values wherever they stand."""
    return without_passwords(hide(text, secrets))
