"""What an ablation's pictures are made of: places and sizes from 0 to 1, to be drawn by the page. Pure.

No number is worked out here that the report does not have, but for where marks stand: in the waterfall each
isolated effect starts where the one before it ended, and the dotted line of an interaction plot ends at the
product of its two effects.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal

from tuner.ablation.report import CellReport, EffectReport, InteractionReport, OutcomeReport
from tuner.ablation.scale import Scale, scale
from tuner.ablation.words import matters

Way = Literal["better", "worse", "slight", "not told"]
"""Which way an effect goes. Slight: told, but nobody would act on it. Not told: its interval holds 1, or
there is none."""


def way(effect: EffectReport, outcome: OutcomeReport) -> Way:
    """What an effect is for who is served."""
    if not matters(effect):
        return "slight" if effect.told else "not told"
    return "better" if (effect.ratio > 1) is (outcome.better == "more") else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A round ratio at an axis."""

    at: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An effect on an axis."""

    at: float
    low: float | None
    """Ends of its interval; None where it has none."""
    high: float | None
    beyond_low: bool
    """Whether the interval goes on past the axis' end."""
    beyond_high: bool
    way: Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What effects are drawn on."""

    scale: Scale
    one: float
    """Where no effect lies."""
    ticks: tuple[Tick, ...]

    @classmethod
    def of(cls, effects: Sequence[EffectReport | None]) -> "Axis":
        made = scale(effects)
        ticks = tuple(Tick(at=made.at(ratio), ratio=ratio) for ratio in made.ticks)
        return cls(scale=made, one=made.at(1.0), ticks=ticks)

    def mark(self, effect: EffectReport, outcome: OutcomeReport, *, start: float = 1.0) -> Mark:
        """The effect on top of what is at `start` already."""
        ends = effect.low, effect.high
        low, high = (None if end is None else start * end for end in ends)
        return Mark(
            at=self.scale.at(start * effect.ratio),
            low=None if low is None else self.scale.at(low),
            high=None if high is None else self.scale.at(high),
            beyond_low=low is not None and low < self.scale.low,
            beyond_high=high is not None and high > self.scale.high,
            way=way(effect, outcome),
        )


Kind = Literal["base", "alone", "product", "difference", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row of the waterfall."""

    kind: Kind
    factor: str | None
    """Of an isolated effect; None for the other rows."""
    effect: EffectReport | None
    """None: of the base, which is 1 itself, and where it was not measured."""
    left: float
    """Ends of the bar."""
    right: float
    mark: Mark | None
    """Where the effect ends, with its interval; None where there is no effect."""
    enters: float | None
    """Where the row before ended, and where this one leads on to; None where there is no such row."""
    leaves: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """From none on to all on, against the product of the isolated effects."""

    axis: Axis
    steps: tuple[Step, ...]


def waterfall(outcome: OutcomeReport) -> Waterfall:
    """Each isolated effect from where the last one ended, then product, difference and what was measured.

    Of one factor there is no product, so only what was measured is there.
    """
    alone = (
        [(factor.factor, factor.isolated) for factor in outcome.factors] if len(outcome.factors) > 1 else []
    )
    starts = list(itertools.accumulate((1.0 if e is None else e.ratio for _, e in alone), mul, initial=1.0))
    product = outcome.product
    axis = Axis.of(
        [
            *(_moved(effect, start) for (_, effect), start in zip(alone, starts, strict=False)),
            product,
            None if product is None else _moved(outcome.shortfall, product.ratio),
            outcome.combination,
        ]
    )

    def step(kind: Kind, effect: EffectReport | None, start: float, factor: str | None = None) -> Step:
        mark = None if effect is None else axis.mark(effect, outcome, start=start)
        begin = axis.scale.at(start)
        end = begin if mark is None else mark.at
        summed = kind in ("product", "measured") and bool(alone)
        lost = mark is None and kind in ("product", "difference", "measured")
        return Step(
            kind=kind,
            factor=factor,
            effect=effect,
            left=min(begin, end),
            right=max(begin, end),
            mark=mark,
            enters=None if lost or kind == "base" else end if summed else begin,
            leaves=None if lost or kind == "measured" else end,
        )

    steps = [step("base", None, 1.0)]
    steps += [
        step("alone", effect, start, name) for (name, effect), start in zip(alone, starts, strict=False)
    ]
    if alone:
        steps.append(step("product", product, 1.0))
        steps.append(step("difference", outcome.shortfall, 1.0 if product is None else product.ratio))
    steps.append(step("measured", outcome.combination, 1.0))
    return Waterfall(axis=axis, steps=tuple(steps))


def _moved(effect: EffectReport | None, start: float) -> EffectReport | None:
    if effect is None:
        return None
    low, high = (None if end is None else start * end for end in (effect.low, effect.high))
    return EffectReport(ratio=start * effect.ratio, low=low, high=high, told=effect.told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A cell in an interaction plot."""

    cell: str
    first_on: bool
    second_on: bool
    effect: EffectReport | None
    """Against none on; None for none on itself."""
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Two lines over the first factor's off and on: with the second factor and without it."""

    others_on: bool
    """Whether the factors beside these two are on, or off."""
    without: tuple[Point, ...]
    """The second factor off: the first off, then on, as far as measured."""
    beside: tuple[Point, ...]
    """The same with the second factor on."""
    apart: tuple[float, float] | None
    """Ends of the second line, if the two did nothing together; None where that cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of factors."""

    interaction: InteractionReport
    plots: tuple[Plot, ...]
    """With the others off, then with them on, where at least three of the four cells were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """The interaction plots of a number, on one axis."""

    axis: Axis
    panels: tuple[Panel, ...]


_Corners = Mapping[tuple[bool, bool], tuple[str, EffectReport]]
"""By whether the first and the second factor are on: the cell's name and what it is against none on."""

_ITSELF = EffectReport(ratio=1.0, low=None, high=None, told=False)
"""None on against itself."""


def panels(outcome: OutcomeReport, cells: Sequence[CellReport]) -> Panels:
    """One panel a pair."""
    names = {frozenset(cell.on): cell.name for cell in cells}
    every = frozenset(factor.factor for factor in outcome.factors)
    drawn = {
        pair.pair: [
            (bool(others), corners)
            for others in dict.fromkeys((frozenset[str](), every - set(pair.pair)))
            if len(corners := _corners(pair.pair, others, outcome, names)) >= 3
        ]
        for pair in outcome.interactions
    }
    products = [_product(corners) for plots in drawn.values() for _, corners in plots]
    axis = Axis.of([*outcome.cells.values(), *products])
    return Panels(
        axis=axis,
        panels=tuple(
            Panel(
                interaction=pair,
                plots=tuple(_plot(corners, outcome, axis, others_on=on) for on, corners in drawn[pair.pair]),
            )
            for pair in outcome.interactions
        ),
    )


def _corners(
    pair: tuple[str, str], others: frozenset[str], outcome: OutcomeReport, names: Mapping[frozenset[str], str]
) -> _Corners:
    """The measured ones of the four cells."""
    found = {}
    for first_on, second_on in itertools.product((False, True), repeat=2):
        on = others | set(itertools.compress(pair, (first_on, second_on)))
        effect = outcome.cells.get(names.get(on, "")) if on else _ITSELF
        if effect is not None:
            found[first_on, second_on] = names.get(on, ""), effect
    return found


def _product(corners: _Corners) -> EffectReport | None:
    """Both on, if the two did nothing together; without an interval."""
    if not corners.keys() >= {(False, False), (True, False), (False, True)}:
        return None
    neither, one, other = (corners[key][1].ratio for key in ((False, False), (True, False), (False, True)))
    return EffectReport(ratio=one * other / neither, low=None, high=None, told=False)


def _plot(corners: _Corners, outcome: OutcomeReport, axis: Axis, *, others_on: bool) -> Plot:
    points = [
        Point(
            cell=name,
            first_on=first_on,
            second_on=second_on,
            effect=None if effect is _ITSELF else effect,
            mark=axis.mark(effect, outcome),
        )
        for (first_on, second_on), (name, effect) in corners.items()
    ]
    product = _product(corners)
    return Plot(
        others_on=others_on,
        without=tuple(point for point in points if not point.second_on),
        beside=tuple(point for point in points if point.second_on),
        apart=None
        if product is None
        else (axis.scale.at(corners[False, True][1].ratio), axis.scale.at(product.ratio)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A mean of a cell as a length from 0."""

    mean: float
    least: float
    """Smallest and largest of its runs."""
    most: float


def bars(cells: Sequence[CellReport], metric: str, *, full: float | None = None) -> dict[str, Bar]:
    """By cell, on one axis from 0 to `full`, or to the largest run; without what is not finite.

    Empty where there is nothing above 0.
    """
    found = {
        cell.name: mean
        for cell in cells
        if (mean := cell.metrics.get(metric)) is not None and math.isfinite(mean.mean) and mean.least >= 0
    }
    end = max([full or 0.0, *(mean.most for mean in found.values())])
    if end <= 0:
        return {}
    return {
        name: Bar(mean=mean.mean / end, least=mean.least / end, most=mean.most / end)
        for name, mean in found.items()
    }
