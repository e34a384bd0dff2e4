"""What must not be written down: secrets, told by the name that carries them, and logins in URLs.

Standard library only: a node's guard imports it.
"""

import re

HIDDEN = "***"
"""What stands where a secret was."""

_SECRET_NAME = re.compile(
    r"(?:(?:^|[-_.])(?:token|keys?|pat|pwd|pass|credentials?)"
    r"|api[-_]?keys?|passwords?|passwd|passphrase|secrets?)(?:[-_]?\d+)?$",
    re.IGNORECASE,
)
"""The last word decides: `--hf-token` and `AWS_SECRET_ACCESS_KEY` are secret, `--max-num-batched-tokens` is
not. Words that say it beyond doubt need nothing before them (`PGPASSWORD`); a number may follow."""

_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""A shell's own variables, which hold folders; `MYSQL_PWD` holds a password."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_NO_SECRET = re.compile(r"|[01]|true|false|<[^<>\s]*>|\[[A-Z]+\]", re.IGNORECASE)
"""A switch (`HF_HUB_DISABLE_IMPLICIT_TOKEN=1`) or a token of a tokenizer (`pad_token: <pad>`)."""

_URL_LOGIN = re.compile(
    r"(?P<before>://[^\s/:@]*:)(?!\d{1,5}[/?#])"  # a port is no password
    r"(?:(?:(?!://)[^\s/\"<>])+"  # up to the last @ of the host's part: some write @ in a password bare,
    r"|(?:(?!://)[^\s\"<>])+)"  # or a slash
    r"@"
)
_URL_QUERY = re.compile(r"(?P<before>[?&;](?P<name>[\w.~%-]+)=)(?P<value>[^\s&;#\"'<>]+)")
_SIGNATURE = re.compile(r"(?:^|[-_.])(?:sig|signature|auth)$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether an option, a setting or an environment variable of this name carries a secret."""
    return name not in _FOLDERS and _SECRET_NAME.search(_HUMP.sub("_", name)) is not None


def holds_secret(name: str, value: str) -> bool:
    """Whether this text, under this name, is a secret: not where it is a switch or empty."""
    return is_secret(name) and _NO_SECRET.fullmatch(value) is None


def without_passwords(text: str) -> str:
    """The text with the secrets of every URL in it blanked: `postgresql://me:***@host/db?password=***`."""
    return _URL_QUERY.sub(_without_value, _URL_LOGIN.sub(rf"\g<before>{HIDDEN}@", text))


def _without_value(found: re.Match[str]) -> str:
    secret = is_secret(found["name"]) or _SIGNATURE.search(found["name"])
    return found["before"] + (HIDDEN if secret else found["value"])
