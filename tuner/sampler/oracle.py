"""Configs with all that can be said of them before they are tried: rows of numbers, predictions, and what the
predictions claim that each parameter does: the same config's with the parameter at its first choice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.front import non_dominated
from objectives.goal import Goal
from search_spaces.parameters import Parameter, active
from search_spaces.points import walked
from search_spaces.space import Config, Space
from search_spaces.values import Scalar
from tuner.sampler.encoding import Encoding
from tuner.sampler.guidance import Predict

Array = NDArray[np.float64]

_FITS = "fits"
_VIOLATION = "violation "

_CLAIMS = 6
"""Parameters whose claims are looked at, those that claim most: each costs a prediction of every config."""
_NOTICEABLE = 0.1
"""Claims smaller than this, in the root mean square of logarithms, are not looked at."""
_WEIGHED = 200
"""Configs that tell how much a parameter claims."""
_NEAR_ZERO = 0.03
"""A prediction counts as at least this share of the largest, where claims are weighed."""
_KEPT = 50_000
"""Configs whose predictions are kept at most: a proposal looks at one or two thousand, most of them once."""


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
    others: Mapping[str, Array]
    """By the same names, (n, claims): with each of some parameters at its first choice."""
    claims: int
    """How many parameters those are."""

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
            {name: values[places] for name, values in self.others.items()},
            self.claims,
        )

    def violation(self, name: str) -> Array | None:
        """(n,) a constraint's; None where it is not predicted."""
        return self.foreseen.get(_VIOLATION + name)

    def without(self, metric: str) -> Array:
        """(n, claims) what is predicted of an objective's metric without each parameter's choice."""
        return self.others.get(metric, np.full((len(self), self.claims), np.nan))

    def without_violation(self, name: str) -> Array:
        """(n, claims) the same of a constraint."""
        return self.without(_VIOLATION + name)

    @property
    def violated(self) -> NDArray[np.bool_]:
        """(n,) whether any constraint is predicted to be missed."""
        missed = np.zeros(len(self), dtype=np.bool_)
        for name, values in self.foreseen.items():
            if name.startswith(_VIOLATION):
                missed |= values > 0
        return missed


class Oracle:
    """Makes slates. Asks the prediction of a config once, but for those not asked for in a long while."""

    def __init__(self, goal: Goal, space: Space, encoding: Encoding, predict: Predict | None) -> None:
        self._goal, self._space, self._encoding, self._predict = goal, space, encoding, predict
        self._rows: dict[Config, Array] = {}
        self._names: tuple[str, ...] = ()
        self._best: Mapping[str, float] = {}
        self._claiming: tuple[Parameter, ...] = ()
        self._without: dict[Config, tuple[Config, ...]] = {}

    def slate(self, configs: Sequence[Config]) -> Slate:
        """These configs, in this order."""
        configs = tuple(configs)
        points = self._encoding.rows(configs)
        if self._predict is None:
            return Slate(configs, points, {}, np.ones(len(configs), dtype=np.bool_), {}, 0)
        others = self._reset(configs)
        # All at once: few predictions cost as much as a thousand.
        self._ask([*configs, *(other for some in others for other in some)])
        columns = dict(zip(self._names, self._table(configs).T, strict=True))
        fits = columns.pop(_FITS, np.ones(len(configs))) > 0
        tables = np.stack([self._table(some) for some in others]) if others else None
        without = {} if tables is None else {n: tables[:, :, self._names.index(n)].T for n in columns}
        return Slate(configs, points, columns, fits, without, len(self._claiming))

    def weigh(self, configs: Sequence[Config]) -> None:
        """Find the parameters whose claims are looked at from here on, by these configs: those that are said
        to change an objective most. Without it none are."""
        places = np.linspace(0, len(configs) - 1, min(_WEIGHED, len(configs))).round().astype(np.intp)
        some = [configs[place] for place in np.unique(places)]
        self._claim(())
        plain = self.slate(some)
        if not any(objective.metric in plain.foreseen for objective in self._goal.objectives):
            return
        self._claim(self._space.parameters)
        slate = self.slate(some)
        sizes = np.zeros(len(self._claiming))
        for objective in self._goal.objectives:
            if objective.metric in slate.foreseen:
                values = slate.foreseen[objective.metric]
                least = _NEAR_ZERO * np.nanmax(values) if np.isfinite(values).any() else 1.0
                logs = [
                    np.log(np.maximum(v, least)) for v in (values[:, None], slate.without(objective.metric))
                ]
                sizes = np.maximum(sizes, np.sqrt(np.mean(np.nan_to_num(logs[0] - logs[1]) ** 2, axis=0)))
        kept = sorted(np.argsort(-sizes, kind="stable")[:_CLAIMS])
        self._claim(tuple(self._space.parameters[i] for i in kept if sizes[i] >= _NOTICEABLE))

    def best(self) -> Array:
        """(m,) the least loss that each objective can have, as far as was said: minus infinity where not."""
        metrics = [(objective.metric, objective.direction) for objective in self._goal.objectives]
        bounds = [_losses(way, np.array(self._best.get(name, np.nan))) for name, way in metrics]
        return np.nan_to_num(np.array(bounds, dtype=np.float64), nan=-np.inf)

    def _claim(self, parameters: tuple[Parameter, ...]) -> None:
        self._claiming = parameters
        self._without.clear()

    def _reset(self, configs: Sequence[Config]) -> list[tuple[Config, ...]]:
        """For each parameter that claims something, these configs with it at its first choice."""
        _shorten(self._without)
        for config in configs:
            if config not in self._without:
                held = {p.key: value for p, value in active(self._space.parameters, config.values)}
                self._without[config] = tuple(self._first(held, parameter) for parameter in self._claiming)
        return list(zip(*(self._without[config] for config in configs), strict=True))

    def _first(self, held: Mapping[str, Scalar], reset: Parameter) -> Config:
        """The config of these values with this parameter, and what hangs below it, at the first choice or the
        lowest number. Whether a constraint forbids it does not matter: it is only looked at."""

        def held_or_first(asked: Parameter) -> Scalar:
            return asked.corners[0] if asked.key == reset.key else held.get(asked.key, asked.corners[0])

        return Config(walked(self._space.parameters, held_or_first))

    def _table(self, configs: Sequence[Config]) -> Array:
        """(n, names) what was predicted of each."""
        return np.array([self._rows[config] for config in configs]).reshape(len(configs), len(self._names))

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
        _shorten(self._rows)
        new = [] if self._predict is None else [c for c in dict.fromkeys(configs) if c not in self._rows]
        if not new or self._predict is None:
            return
        seen = self._predict(new)
        self._best = seen.best
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


def _shorten(kept: dict[Config, Any]) -> None:
    """Forget the older half where there are too many; what was forgotten can be worked out again."""
    if len(kept) > _KEPT:
        for config in list(islice(kept, len(kept) // 2)):
            del kept[config]
