"""Configs and trials in few words, for run names, tables and plots: `ngram · depth 3 · int8`."""

from collections.abc import Mapping

from search_spaces.values import Scalar
from tuner.records import StoredTrial

_SAY_LITTLE = frozenset({"on", "off", "auto", "none", "default", "true", "false", "yes", "no"})
"""Choices that mean nothing without their parameter's name beside them."""


def config_title(config: Mapping[str, Scalar]) -> str:
    """The config's values in its own order: a telling choice alone, anything else after its name."""
    return " · ".join(_value_title(path, value) for path, value in config.items()) or "no parameters"


def trial_title(trial: StoredTrial) -> str:
    """`trial 7 · ngram · depth 3`; the control says that it is one."""
    if trial.is_control:
        return f"trial {trial.number} · control (engine defaults)"
    return f"trial {trial.number} · {config_title(trial.config or {})}"


def _value_title(path: str, value: Scalar) -> str:
    name = path.rsplit(".", 1)[-1]
    match value:
        case bool():
            return f"{name} {'on' if value else 'off'}"
        case None:
            return f"{name} none"
        case float():
            return f"{name} {value:g}"
        case str() if value.lower() not in _SAY_LITTLE and not value[:1].isdigit():
            return value.rsplit("/", 1)[-1]
        case _:
            return f"{name} {value}"
