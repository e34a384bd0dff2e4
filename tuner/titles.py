"""Studies, configs and numbers in few words, for run names, tables and plots: `int8 · kv fp8 · depth 3`.

A choice that tells by itself stands alone. One that occurs under two parameters of the space, or that
means nothing alone, comes after a short form of its parameter's name; what the space cannot vary is left
out. The whole config, by path, is always beside the title: in MLflow as parameters, on disk in outcome.json.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from objectives.measurement import Estimate
from search_spaces.faults import SpaceError
from search_spaces.load import parse_space
from search_spaces.parameters import Parameter, every
from search_spaces.space import Space
from search_spaces.values import Scalar
from tuner.loads import marks, mode
from tuner.records import StoredTrial, StudyFile

_SAY_LITTLE = frozenset(
    {"on", "off", "auto", "none", "default", "true", "false", "yes", "no"}
    | {"full", "low", "medium", "high", "small", "large"}
)
"""Choices that mean nothing without their parameter's name beside them."""

_FILLERS = frozenset(
    {"cache", "dtype", "max", "min", "num", "size", "bytes", "enable", "enabled", "utilization"}
)
"""Words of a name that its value makes plain: `kv_cache_dtype` fp8 is `kv fp8`."""


@dataclass(frozen=True, slots=True)
class Titles:
    """How the configs of one space are told apart in few words."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Short names by path, no two alike. A path that is not there is told by its last part."""
    shared: frozenset[str] = frozenset()
    """Choices that occur under more than one path, as `_words` has them."""
    forced: frozenset[tuple[str, str]] = frozenset()
    """Paths and values that are the only choice of their branch, so that they tell nothing beside it."""

    @classmethod
    def of(cls, parameters: Iterable[Parameter]) -> "Titles":
        """The titles of a space's parameters, all of its tree."""
        found = list(parameters)
        paths = tuple(dict.fromkeys(parameter.path for parameter in found))
        labels = {path: _label(path) for path in paths}
        taken = Counter(labels.values())
        under: defaultdict[str, set[str]] = defaultdict(set)
        open_, forced = set[tuple[str, str]](), set[tuple[str, str]]()
        for parameter in found:
            pairs = [(parameter.path, _words(parameter.path, value)) for value in parameter.corners]
            (forced if len(pairs) == 1 else open_).update(pairs)
            for value, (path, words) in zip(parameter.corners, pairs, strict=True):
                if isinstance(value, str):
                    under[words].add(path)
        return cls(
            labels={
                path: label if taken[label] == 1 else _spaced(path.replace(".", " "))
                for path, label in labels.items()
            },
            shared=frozenset(words for words, where in under.items() if len(where) > 1),
            forced=frozenset(forced - open_),
        )

    def config(self, config: Mapping[str, Scalar]) -> str:
        """The config's values in its own order."""
        told = [self._value(path, value) for path, value in config.items() if not self._forced(path, value)]
        return " · ".join(told) or "the only config"

    def _forced(self, path: str, value: Scalar) -> bool:
        return (path, _words(path, value)) in self.forced

    def _value(self, path: str, value: Scalar) -> str:
        words = _words(path, value)
        if isinstance(value, str) and words not in self.shared and _tells(words):
            return words
        return f"{self.labels.get(path) or _label(path)} {words}"


def config_title(config: Mapping[str, Scalar], study: StudyFile) -> str:
    """A config of the study's space in few words."""
    return _titles(study.space_text).config(config)


def trial_title(trial: StoredTrial, study: StudyFile) -> str:
    """`trial 7 · ngram · depth 3`, and `trial 9 · 7 again · ngram · depth 3` where it was measured again.

    A control, a simulated trial and a closed loop say that they are one.
    """
    told = marks(
        None if trial.measurement is None else trial.measurement.mode,
        simulated=(trial.ran.engine or study.engine) == "simulated",
    )
    marked = f" ({', '.join(told)})" if told else ""
    what = "control (engine defaults)" if trial.is_control else config_title(trial.config or {}, study)
    again = "" if trial.repeats is None else f" · {trial.repeats} again"
    return f"trial {trial.number}{marked}{again} · {what}"


def doubt_mark(trial: StoredTrial) -> str:
    """` !`, to stand after a trial's number, where the engine contradicts the client's numbers."""
    return " !" if trial.measurement is not None and trial.measurement.disagreements else ""


def study_title(study: StudyFile) -> str:
    """The study's name. Simulated and closed loop are said first: lists cut names short."""
    told = marks(mode(study), simulated=study.engine == "simulated")
    return f"{', '.join(told)} · {study.name}" if told else study.name


def number(value: float) -> str:
    """Three digits, all of those before the point, and no exponent where one can be done without."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


def interval(estimate: Estimate) -> str:
    """`8.55 (3.28 to 14.8)`; `?` for an end that is not known, the value alone where neither is."""
    if estimate.low is None and estimate.high is None:
        return number(estimate.value)
    low, high = ("?" if end is None else number(end) for end in (estimate.low, estimate.high))
    return f"{number(estimate.value)} ({low} to {high})"


def varied(study: StudyFile) -> tuple[str, ...]:
    """Paths of the parameters that a study varies, in the order of its space."""
    space = space_of(study)
    if space is None:
        return ()
    return tuple(dict.fromkeys(p.path for p in every(space.parameters) if len(p.corners) > 1))


def space_of(study: StudyFile) -> Space | None:
    """The space that a study searches; None where this version of the tuner cannot read it."""
    return _space(study.space_text)


@lru_cache(maxsize=16)
def _titles(space_text: str) -> Titles:
    space = _space(space_text)
    return Titles() if space is None else Titles.of(every(space.parameters))


@lru_cache(maxsize=16)
def _space(space_text: str) -> Space | None:
    try:
        return parse_space(space_text, "space.yaml")
    except SpaceError:
        return None


def _tells(words: str) -> bool:
    return words.lower() not in _SAY_LITTLE and not words[:1].isdigit()


def _label(path: str) -> str:
    """The last part of a path without its fillers, unless it is made of nothing else."""
    name = path.rpartition(".")[2]
    telling = "_".join(word for word in name.split("_") if word not in _FILLERS)
    return _spaced(telling or name)


def _spaced(name: str) -> str:
    return name.replace("_", " ").strip()


def _words(path: str, value: Scalar) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case None:
            return "none"
        case float():
            return f"{value:g}"
        case int() if path.endswith("_bytes"):
            return _binary(value)
        case str():
            return value.rstrip("/").rpartition("/")[2] or value
        case _:
            return str(value)


def _binary(size: int) -> str:
    """Bytes in the largest unit that divides them, as they were written: 67108864 is 64 MiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return f"{size} bytes"
