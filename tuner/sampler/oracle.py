"""Configs with all that can be said of them before they are tried: rows of numbers, and predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.front import non_dominated
from objectives.goal import Goal
from search_spaces.space import Config
from tuner.sampler.encoding import Encoding
from tuner.sampler.guidance import Predict

Array = NDArray[np.float64]

_FITS = "fits"
_VIOLATION = "violation "


@dataclass(frozen=True, slots=True)
class Slate:
    """Some configs, (n,) of everything."""

    configs: tuple[Config, ...]
    points: Array
    """(n, columns) their rows."""
    foreseen: Mapping[str, Array]
    """By an objective's metric, or "violation NAME"; NaN where it is not predicted. Empty: nothing is."""
    fits: NDArray[np.bool_]
    """Whether each is expected to start; all are where nothing is predicted."""

    def __len__(self) -> int:
        return len(self.configs)

    def where(self, kept: Callable[[Config], bool]) -> "Slate":
        """Those that the test lets through."""
        at = np.array([kept(config) for config in self.configs], dtype=np.bool_)
        return self if at.all() else self.take(np.flatnonzero(at))

    def take(self, places: NDArray[np.intp]) -> "Slate":
        """Those at these places, in their order."""
        return Slate(
            tuple(self.configs[int(place)] for place in places),
            self.points[places],
            {name: values[places] for name, values in self.foreseen.items()},
            self.fits[places],
        )

    def violation(self, name: str) -> Array | None:
        """(n,) a constraint's; None where it is not predicted."""
        return self.foreseen.get(_VIOLATION + name)

    @property
    def violated(self) -> NDArray[np.bool_]:
        """(n,) whether any constraint is predicted to be missed."""
        missed = np.zeros(len(self), dtype=np.bool_)
        for name, values in self.foreseen.items():
            if name.startswith(_VIOLATION):
                missed |= values > 0
        return missed


class Oracle:
    """Makes slates. Asks the prediction of each config once."""

    def __init__(self, goal: Goal, encoding: Encoding, predict: Predict | None) -> None:
        self._goal, self._encoding, self._predict = goal, encoding, predict
        self._rows: dict[Config, Array] = {}
        self._names: tuple[str, ...] = ()

    def slate(self, configs: Sequence[Config]) -> Slate:
        """These configs, in this order."""
        configs = tuple(configs)
        points = self._encoding.rows(configs)
        if self._predict is None:
            return Slate(configs, points, {}, np.ones(len(configs), dtype=np.bool_))
        self._ask(configs)
        table = np.array([self._rows[config] for config in configs]).reshape(len(configs), len(self._names))
        columns = dict(zip(self._names, table.T, strict=True))
        return Slate(configs, points, columns, columns.pop(_FITS, np.ones(len(configs))) > 0)

    def front(self, slate: Slate, most: int) -> Slate:
        """Those predicted to be on the front of all that fit and meet the constraints, at most so many,
        spread over it; none where an objective is not predicted."""
        if not len(slate) or any(o.metric not in slate.foreseen for o in self._goal.objectives):
            return slate.take(np.zeros(0, dtype=np.intp))
        losses = np.stack([_losses(o.direction, slate.foreseen[o.metric]) for o in self._goal.objectives], 1)
        losses[~slate.fits] = np.nan
        held = np.where(slate.violated[:, None], np.nan, losses)
        # Where nothing meets the constraints, what comes nearest is as good a place to begin as any.
        mask = non_dominated(held if np.isfinite(held).all(axis=1).any() else losses)
        places = np.flatnonzero(mask)
        places = places[np.argsort(losses[places, 0], kind="stable")]
        spread = np.linspace(0, len(places) - 1, min(most, len(places))).round().astype(np.intp)
        return slate.take(places[np.unique(spread)])

    def _ask(self, configs: Sequence[Config]) -> None:
        new = [] if self._predict is None else [c for c in dict.fromkeys(configs) if c not in self._rows]
        if not new or self._predict is None:
            return
        seen = self._predict(new)
        columns = {
            o.metric: seen.metrics[o.metric] for o in self._goal.objectives if o.metric in seen.metrics
        }
        columns |= {_VIOLATION + name: values for name, values in seen.violations.items()}
        columns[_FITS] = seen.fits.astype(np.float64)
        # A prediction that knows none of these configs may leave columns out.
        self._names = self._names or tuple(columns)
        missing = np.full(len(new), np.nan)
        table = np.stack([columns.get(name, missing) for name in self._names], axis=1)
        self._rows.update(zip(new, table, strict=True))


def _losses(direction: str, values: Array) -> Array:
    return -values if direction == "maximise" else values
