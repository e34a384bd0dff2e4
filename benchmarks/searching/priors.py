"""Predictions made wrong on purpose, to see what a search is worth whose prior misleads it."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import active, every
from search_spaces.space import Config, Space
from tuner.sampler import Foresight, Predict

_FASTER, _SLOWER = ("goodput_rps",), ("tpot_p95_s",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """How the first-order prediction is told to the search. Without either fault it is told as it is."""

    off: float = 1.0
    """Each choice of `parameters` is thought faster or slower, by a coin of its own, so that a prediction is
    off by this factor in the root mean square of logs."""
    reversed: str | None = None
    """Path of a parameter whose effect is told the wrong way round."""
    reference: str | None = None
    """Its choice that the effect is counted from."""

    @property
    def name(self) -> str:
        if self.reversed is not None:
            return f"{self.reversed} reversed"
        return "good" if self.off == 1 else f"off by {self.off - 1:.0%}"

    def of(self, predict: Predict, space: Space, attainment: float, seed: int) -> Predict:
        """The prediction as this prior tells it.

        Args:
            attainment: share of requests that the SLO wants.
            seed: of the coins.
        """
        if self.reversed is not None:
            path, reference = self.reversed, self.reference
            return lambda configs: _reversed(predict, space, attainment, configs, path, reference)
        if self.off == 1:
            return predict
        return lambda configs: slowed(predict(configs), attainment, self._slower(space, configs, seed))

    def _slower(self, space: Space, configs: Sequence[Config], seed: int) -> NDArray[np.float64]:
        """(n,) log of the factor by which each config is thought slower than predicted."""
        misjudged = [p for p in every(space.parameters) if p.path in ("quantisation", "speculation")]
        size = math.log(self.off) / math.sqrt(len(misjudged))

        def coin(key: str, value: object) -> float:
            flips = np.random.default_rng([seed, zlib.crc32(f"{key}={value}".encode())])
            return size if flips.random() < 0.5 else -size

        return np.array([sum(coin(p.key, config.values[p.path]) for p in misjudged) for config in configs])


def slowed(told: Foresight, attainment: float, slower: NDArray[np.float64]) -> Foresight:
    """A prediction with each config's times longer by e^slower.

    Goodput and the share of requests that meet the SLO fall by the same factor, neither below 0 nor, for the
    share, above 1.
    """
    factor = np.exp(slower)
    metrics = dict(told.metrics)
    for name in told.metrics:  # of configs that do not fit nothing is predicted
        if name in _FASTER:
            metrics[name] = metrics[name] / factor
        elif name in _SLOWER:
            metrics[name] = metrics[name] * factor
    violations = {
        name: attainment - np.minimum((attainment - missed) / factor, 1.0)
        for name, missed in told.violations.items()
    }
    return replace(told, metrics=metrics, violations=violations)


def _reversed(
    predict: Predict,
    space: Space,
    attainment: float,
    configs: Sequence[Config],
    path: str,
    reference: str | None,
) -> Foresight:
    """Twice the way back to the reference choice: what was thought to help by a factor is said to cost it."""
    told, plain = predict(configs), predict([_with(space, config, path, reference) for config in configs])
    times = [seen.metrics.get(_SLOWER[0], np.full(len(configs), np.nan)) for seen in (told, plain)]
    effect = np.log(times[0] / times[1])
    return slowed(told, attainment, np.nan_to_num(-2 * effect))


def _with(space: Space, config: Config, path: str, value: str | None) -> Config:
    """The config with another choice of the parameter, whatever hangs below the one left dropped."""
    held: Mapping[str, object] = {p.key: v for p, v in active(space.parameters, config.values)}
    return space.walk(
        lambda asked: (
            value
            if asked.path == path
            else config.values[asked.path]
            if asked.key in held
            else asked.corners[0]
        )
    )
