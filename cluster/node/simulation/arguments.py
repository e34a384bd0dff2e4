"""Engine arguments read one by one, with their types checked, and which of them nobody read."""

import re
from collections.abc import Mapping

from cluster.node.engine import EngineFailure
from cluster.order import Cause
from search_spaces.values import Json

NEUTRAL = frozenset(
    {
        "seed",
        "served_model_name",
        "host",
        "port",
        "disable_log_stats",
        "enable_log_requests",
        "enable_per_request_metrics",
        "per_request_spec_decode_metrics",
        "trust_remote_code",
        "tokenizer",
        "generation_config",
    }
)
"""Arguments that rightly change nothing in a simulation."""

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Arguments:
    """A mapping of arguments. None counts as not given. Readers raise EngineFailure for a wrong type."""

    def __init__(self, given: Mapping[str, Json]) -> None:
        self._given = given
        self._read: set[str] = set()

    def value(self, name: str) -> Json:
        self._read.add(name)
        return self._given.get(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def optional_whole(self, name: str) -> int | None:
        """A count of at least 1; vLLM also takes text such as `8k` and `8K`."""
        value = self.value(name)
        if isinstance(value, str) and (text := _COUNT.fullmatch(value)):
            value = int(float(text[1]) * _SUFFIX.get(text[2], 1))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _wrong(name, value, "a whole number of at least 1")
        return value

    def whole(self, name: str, default: int) -> int:
        value = self.optional_whole(name)
        return default if value is None else value

    def number(self, name: str, default: float) -> float:
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(name, value, "a number")
        return float(value)

    def optional_word(self, name: str) -> str | None:
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "text")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.optional_word(name)
        return default if value is None else value

    def mapping(self, name: str) -> Mapping[str, Json] | None:
        """None where it is absent or empty."""
        value = self.value(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise _wrong(name, value, "a mapping")
        return value

    def unread(self) -> tuple[str, ...]:
        """Names given that nobody read and that are not neutral."""
        given = {name for name, value in self._given.items() if value is not None}
        return tuple(sorted(given - self._read - NEUTRAL))


def _wrong(name: str, value: Json, wanted: str) -> EngineFailure:
    return EngineFailure(Cause.INVALID_ARGUMENT, f"{name}={value!r} must be {wanted}")
