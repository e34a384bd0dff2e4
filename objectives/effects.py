"""What each factor of a factorial design does, alone, in company and on average, with intervals. Pure.

Observations are logarithms, so effects are ratios: 1.2 says a fifth more. Replicates of a cell are measured
in blocks, each of which holds every cell once in random order and the control more than once; what drifts
from block to block is taken out, and what is left within cells is the noise that intervals are made of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from objectives.factorial import Alias, Cell, Design, Term, aliases, estimable, matrix
from objectives.statistics import CONFIDENCE

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured cell."""

    cell: Cell
    block: int
    """Which replicate it belongs to."""
    value: float
    """Positive: a rate or a latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """By what a number is multiplied."""

    ratio: float
    low: float | None
    """Ends of the 95 % interval; None where there is no noise to make them of (one replicate a cell)."""
    high: float | None

    @property
    def told(self) -> bool:
        """Whether the interval leaves out 1: the effect is told from none."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorEffects:
    """One factor's. None where cells that it is read from have no observation."""

    isolated: Effect | None
    """It alone against the control."""
    in_company: Effect | None
    """All against all but it: what it adds last."""
    average: Effect | None
    """On against off, averaged over the other factors."""
    mixed_with: tuple[Term, ...] = ()
    """Terms that the average cannot be told from with these cells; then there is none."""
    aliases: tuple[Alias, ...] = ()
    """Terms left out of the fit that the average holds a share of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """What two factors do together beyond the product of what each does."""

    pair: tuple[str, str]
    effect: Effect | None
    """Below 1: they contend; above 1: they help each other; averaged over the other factors."""
    mixed_with: tuple[Term, ...] = ()
    aliases: tuple[Alias, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Of one number over a design."""

    cells: Mapping[Cell, Effect]
    """Each other measured cell against the control."""
    factors: Mapping[str, FactorEffects]
    interactions: tuple[Interaction, ...]
    product: Effect | None
    """Product of the isolated effects: what adding up claims would promise."""
    combination: Effect | None
    """What was measured with all factors on."""
    shortfall: Effect | None
    """The combination over the product: 0.8 says that a fifth of the promise is not there."""
    noise: float | None
    """Standard deviation of one observation's logarithm within a cell and block; None without replicates."""
    degrees_of_freedom: int


def effects(design: Design, observations: Sequence[Observation]) -> Effects:
    """Estimate what the design can tell from these observations; cells may be missing or uneven.

    Least squares of the logarithms on one mean a cell and one shift a block; all effects are contrasts of
    the cells' means with Student intervals of the residual degrees of freedom. Averages and interactions are
    the design's terms, fitted to the means.

    Raises:
        ValueError: without the control, or for a value that is not a positive number.
    """
    fit = _fit(design, observations)
    factors = design.factors
    none, every = frozenset[str](), frozenset(factors)

    def against(on: Cell, off: Cell) -> Effect | None:
        return fit.contrast({on: 1.0, off: -1.0})

    alone = [frozenset({name}) for name in factors]
    product = dict.fromkeys(alone, 1.0) | {none: -float(len(factors))}
    shortfall = {every: 1.0, none: len(factors) - 1.0} | dict.fromkeys(alone, -1.0)
    if len(factors) == 1:
        shortfall = {}  # one factor is its own product
    terms = fit.terms(design)
    return Effects(
        cells={
            cell: effect for cell in fit.cells if cell != none and (effect := against(cell, none)) is not None
        },
        factors={
            name: FactorEffects(
                isolated=against(frozenset({name}), none),
                in_company=against(every, every - {name}),
                average=terms.effects.get(frozenset({name})),
                mixed_with=terms.mixed.get(frozenset({name}), ()),
                aliases=terms.aliases.get(frozenset({name}), ()),
            )
            for name in factors
        },
        interactions=tuple(
            Interaction(
                pair=pair,
                effect=terms.effects.get(frozenset(pair)),
                mixed_with=terms.mixed.get(frozenset(pair), ()),
                aliases=terms.aliases.get(frozenset(pair), ()),
            )
            for pair in combinations(factors, 2)
        ),
        product=fit.contrast(product),
        combination=against(every, none),
        shortfall=fit.contrast(shortfall),
        noise=fit.noise,
        degrees_of_freedom=fit.freedom,
    )


@dataclass(frozen=True, slots=True)
class _Terms:
    effects: Mapping[Term, Effect]
    mixed: Mapping[Term, tuple[Term, ...]]
    aliases: Mapping[Term, tuple[Alias, ...]]


@dataclass(frozen=True, slots=True)
class _Fit:
    """Means of cells, up to one constant, with their covariance."""

    cells: tuple[Cell, ...]
    means: Array
    covariance: Array
    """(cells, cells), in units of the noise's variance."""
    noise: float | None
    freedom: int

    def contrast(self, weights: Mapping[Cell, float]) -> Effect | None:
        """exp of a weighted sum of means, the weights adding up to 0; None where a cell is missing."""
        if not weights or not set(weights) <= set(self.cells):
            return None
        return self._effect(np.array([weights.get(cell, 0.0) for cell in self.cells]))

    def _effect(self, weights: Array) -> Effect:
        value = float(weights @ self.means)
        if self.noise is None:
            return Effect(ratio=math.exp(value), low=None, high=None)
        error = self.noise * math.sqrt(max(float(weights @ self.covariance @ weights), 0.0))
        half = float(stdtrit(self.freedom, 1 - (1 - CONFIDENCE) / 2)) * error
        return Effect(ratio=math.exp(value), low=math.exp(value - half), high=math.exp(value + half))

    def terms(self, design: Design) -> _Terms:
        fitted = design.terms
        inverse = np.linalg.pinv(matrix(self.cells, fitted))
        mixed = estimable(self.cells, fitted)
        return _Terms(
            effects={
                term: self._effect(row)
                for term, row in zip(fitted, inverse, strict=True)
                if term and not mixed[term]
            },
            mixed={term: others for term, others in mixed.items() if others},
            aliases=aliases(self.cells, fitted, design.factors),
        )


def _fit(design: Design, observations: Sequence[Observation]) -> _Fit:
    values = np.array([observation.value for observation in observations], dtype=np.float64)
    if not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("effects need positive, finite observations")
    seen = {observation.cell for observation in observations}
    cells = tuple(cell for cell in design.cells if cell in seen)
    if frozenset() not in seen or len(cells) < len(seen):
        raise ValueError("effects are told against the control, and of cells of the design")
    blocks = sorted({observation.block for observation in observations})
    x = np.zeros((len(values), len(cells) + len(blocks) - 1))
    for row, observation in enumerate(observations):
        x[row, cells.index(observation.cell)] = 1
        if observation.block != blocks[0]:
            x[row, len(cells) + blocks.index(observation.block) - 1] = 1
    y = np.log(values)
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    freedom = len(y) - int(np.linalg.matrix_rank(x))
    residual = y - x @ solution
    covariance: Array = np.linalg.pinv(x.T @ x)[: len(cells), : len(cells)].astype(np.float64)
    return _Fit(
        cells=cells,
        means=solution[: len(cells)],
        covariance=covariance,
        noise=math.sqrt(float(residual @ residual) / freedom) if freedom > 0 else None,
        freedom=freedom,
    )
