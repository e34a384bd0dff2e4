"""Factorial designs of two levels: which combinations of factors to measure, and what they can tell apart.

A cell is the set of factors that are on. Designs are full up to four factors. Beyond, a regular fraction of
resolution V (no pair's interaction is mixed up with another pair's) or IV (main effects stay clear of pairs)
is measured, and to it are added the cells that an ablation is read from: none on, all on, each alone, each
left out of all. Pure.

Source of fractions, generators and resolution: G. Box, J. Hunter, W. Hunter, "Statistics for Experimenters",
2nd ed., 2005, chapter 6, table 6.22.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Cell = frozenset[str]
Term = frozenset[str]
"""A main effect (one factor), an interaction (two or more), or the mean (none)."""

Fraction = Literal["full", "V", "IV"]

FULL_UP_TO = 4
"""Factors of which every combination is measured: 16 cells."""

_GENERATORS: dict[tuple[int, Fraction], tuple[str, ...]] = {
    # Factors by position: "4=0123" says that factor 4 is the product of 0 to 3.
    (5, "V"): ("4=0123",),
    (6, "V"): ("5=01234",),
    (7, "V"): ("6=012345",),
    (8, "V"): ("6=0123", "7=0145"),
    (6, "IV"): ("4=012", "5=123"),
    (7, "IV"): ("4=012", "5=123", "6=023"),
    (8, "IV"): ("4=123", "5=023", "6=012", "7=013"),
}
"""Minimum-aberration fractions. Five factors have none of resolution IV that is smaller than V's and better
than III."""


class DesignError(ValueError):
    """No such design. The message is one line that a person can act on."""


@dataclass(frozen=True, slots=True)
class Design:
    """Which combinations are measured."""

    factors: tuple[str, ...]
    cells: tuple[Cell, ...]
    """The control (none on) first, the combination (all on) second."""
    fraction: Fraction

    @property
    def terms(self) -> tuple[Term, ...]:
        """What a fit to the cells is made of: every term of a full design, else mean, mains and pairs."""
        return tuple(terms(self.factors, len(self.factors) if self.fraction == "full" else 2))


def design(factors: Sequence[str], fraction: Fraction | None = None) -> Design:
    """The design for these factors.

    Args:
        factors: names, in the order in which they are to be read; at least one.
        fraction: None: full up to four factors, else of resolution V.

    Raises:
        DesignError: a factor named twice, none, more than eight in a fraction, or no such fraction.
    """
    names = tuple(factors)
    if not names or len(set(names)) < len(names):
        raise DesignError(f"a design needs factors, each named once; got {', '.join(names) or 'none'}")
    chosen: Fraction = fraction or ("full" if len(names) <= FULL_UP_TO else "V")
    if chosen == "full":
        return Design(names, _ordered(names, set(_every(names))), "full")
    generators = _GENERATORS.get((len(names), chosen))
    if generators is None:
        known = sorted(f"{count} factors {kind}" for count, kind in _GENERATORS)
        raise DesignError(
            f"{len(names)} factors have no fraction of resolution {chosen} here (there are: "
            f"{', '.join(known)}); measure them in full, or fewer of them with --factors"
        )
    read_from = {frozenset[str](), frozenset(names)}
    read_from |= {frozenset({name}) for name in names} | {frozenset(names) - {name} for name in names}
    return Design(names, _ordered(names, set(_fraction(names, generators)) | read_from), chosen)


def terms(factors: Sequence[str], order: int) -> Iterator[Term]:
    """The mean, then all terms of up to so many factors, smaller ones first."""
    for size in range(order + 1):
        yield from map(frozenset, combinations(factors, size))


def matrix(cells: Sequence[Cell], of: Sequence[Term]) -> NDArray[np.float64]:
    """(cells, terms): the product of ±1 over each term's factors, +1 where it is on; mean 1.

    Times 2^(1 - size), so that a coefficient is an effect: for one factor on minus off, for a pair what one
    does with the other on minus what it does with it off, each averaged over the rest.
    """
    return np.array(
        [
            [np.prod([1.0 if name in cell else -1.0 for name in term]) * 0.5 ** len(term) for term in of]
            for cell in cells
        ]
    ).reshape(len(cells), len(of))


@dataclass(frozen=True, slots=True)
class Alias:
    """Another term that an estimate holds a share of."""

    term: Term
    share: float
    """1: the two cannot be told apart at all; -1: nor these, of opposite sign."""


def aliases(
    cells: Sequence[Cell], fitted: Sequence[Term], factors: Sequence[str]
) -> dict[Term, tuple[Alias, ...]]:
    """What each fitted term's estimate holds of the terms left out of the fit, where not nothing.

    The alias matrix pinv(X) · X', of the terms fitted and of all others (Box, Hunter, Hunter, appendix 6A).
    A term that the cells cannot tell from other *fitted* ones is not in it: `estimable` says which.
    """
    others = [term for term in terms(factors, len(factors)) if term not in set(fitted)]
    if not others:
        return {}
    mixed = np.linalg.pinv(matrix(cells, fitted)) @ matrix(cells, others)
    # Coefficients of interactions count half as much a level: in units of effects as they are read.
    return {
        term: tuple(
            Alias(other, float(share)) for other, share in zip(others, row, strict=True) if abs(share) > 1e-9
        )
        for term, row in zip(fitted, mixed, strict=True)
    }


def estimable(cells: Sequence[Cell], fitted: Sequence[Term]) -> dict[Term, tuple[Term, ...]]:
    """For each fitted term, the other fitted terms that these cells cannot tell it from."""
    x = matrix(cells, fitted)
    # The projection on what the cells span: a row other than a unit vector mixes terms.
    span = np.linalg.pinv(x) @ x
    return {
        term: tuple(
            other
            for other, share in zip(fitted, span[at], strict=True)
            if other != term and abs(share) > 1e-9
        )
        for at, term in enumerate(fitted)
    }


def _every(factors: Sequence[str]) -> Iterator[Cell]:
    yield from terms(factors, len(factors))


def _fraction(factors: Sequence[str], generators: Sequence[str]) -> Iterator[Cell]:
    base = len(factors) - len(generators)
    for on in _every(factors[:base]):
        signs = {name: name in on for name in factors[:base]}
        for generator in generators:
            made, _, of = generator.partition("=")
            off = sum(not signs[factors[int(digit)]] for digit in of)
            signs[factors[int(made)]] = off % 2 == 0
        yield frozenset(name for name, is_on in signs.items() if is_on)


def _ordered(factors: Sequence[str], cells: set[Cell]) -> tuple[Cell, ...]:
    """Control, combination, then by size and the factors' order."""
    place = {name: at for at, name in enumerate(factors)}
    ends = (frozenset[str](), frozenset(factors))
    rest = sorted(cells - set(ends), key=lambda cell: (len(cell), sorted(place[name] for name in cell)))
    return (*ends, *rest)
