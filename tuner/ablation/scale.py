"""A logarithmic axis of ratios: equal distances are equal factors, so effects that multiply add up. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.ablation.report import EffectReport

_MARGIN = 0.06
"""Of the axis, left free at either end."""
_LEAST_SPAN = math.log(1.1)
"""So that noise of a percent does not fill the picture."""
_TICKS = 5
"""About as many as there are to be."""
_DIGITS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
"""Of ticks on axes of decades, of one decade or two, and of less."""
_SHORT = 3.0
"""High over low up to which even steps, which then divide 1, may do as well."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`, both positive."""

    low: float
    high: float

    def at(self, ratio: float) -> float:
        """Where a ratio lies, 0 at the low end and 1 at the high one; what lies beyond is put at the end."""
        if not ratio > self.low:
            return 0.0
        if ratio >= self.high:
            return 1.0
        return math.log(ratio / self.low) / math.log(self.high / self.low)

    def holds(self, ratio: float) -> bool:
        return self.low <= ratio <= self.high

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round ratios to write at the axis, 1 among them where it lies on it."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        rounds = [[digit * 10.0**power for power in powers for digit in digits] for digits in _DIGITS]
        if self.high / self.low < _SHORT:
            rounds.append(_even(self.low, self.high))
        kept = [tuple(filter(self.holds, ratios)) for ratios in rounds]
        return min(kept, key=lambda ratios: abs(len(ratios) - _TICKS))


def scale(effects: Iterable[EffectReport | None]) -> Scale:
    """An axis that holds 1, every ratio, and intervals as far as they leave the ratios room.

    An interval made of few runs may span decades; on no side does it get more than the ratios' own span.
    """
    found = [effect for effect in effects if effect is not None]
    logs = [0.0, *(math.log(effect.ratio) for effect in found if 0 < effect.ratio < math.inf)]
    least, most = min(logs), max(logs)
    span = max(most - least, _LEAST_SPAN)
    ends = [end for effect in found for end in (effect.low, effect.high) if end is not None]
    clipped = [min(max(_log(end), least - span), most + span) for end in ends]
    least, most = min([least, *clipped]), max([most, *clipped])
    lacking = max(_LEAST_SPAN - (most - least), 0.0) / 2
    margin = _MARGIN * max(most - least, _LEAST_SPAN)
    return Scale(math.exp(least - lacking - margin), math.exp(most + lacking + margin))


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _even(low: float, high: float) -> list[float]:
    """Multiples of a round step: on so short an axis they are about evenly apart."""
    wanted = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= wanted)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
