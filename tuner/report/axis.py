"""An axis of a picture: from numbers to places, and round numbers to write beside it. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_FEW = 5
"""Ticks aimed for; more would not fit a phone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From values to 0 (the low end) … 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies; beyond an end it lies at that end."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            place = (math.log(value) if value > 0 else low) - low
        else:
            low, high, place = self.low, self.high, value - self.low
        return min(max(place / (high - low), 0.0), 1.0)


def axis(values: Iterable[float], *, zero: bool = False, log: bool = False, room: float = 0.06) -> Axis:
    """An axis on which all of these have a place.

    Args:
        values: infinities and NaN are left out of account, and on a logarithmic axis what is not above 0.
        zero: whether it begins at 0.
        log: whether equal ratios are equally wide.
        room: share of its length that is left free at each end.
    """
    found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(found), max(found)) if found else (1.0 if log else 0.0, 1.0)
    if log:
        low, high = (low / 1.1, high * 1.1) if low == high else (low, high)
        margin = (high / low) ** room
        low, high = low / margin, high * margin
        return Axis(low=low, high=high, ticks=_log_ticks(low, high), log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        low, high = low - (abs(low) / 10 or 1.0), high + (abs(high) / 10 or 1.0)
    margin = room * (high - low)
    low, high = low if zero and low == 0 else low - margin, high + margin
    return Axis(low=low, high=high, ticks=_ticks(low, high))


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    wanted = (high - low) / _FEW
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Rounded, or 3 · 0.1 would be written with all its digits.
    places = max(0, -math.floor(math.log10(step)))
    return tuple(round(place * step, places) for place in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = tuple(f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high)
        if 2 <= len(found) <= _FEW + 2:
            return found
    return _ticks(low, high)
