"""Effects in words. Every sentence says no more than its intervals do."""

from collections.abc import Sequence

from tuner.ablation.report import EffectReport, InteractionReport
from tuner.titles import number

SLIGHT = 1.01
"""A ratio nearer to 1 than this is named nowhere: told or not, nobody would act on it."""


def times(effect: EffectReport) -> str:
    """`×1.20 (1.10 to 1.31)`."""
    if effect.low is None or effect.high is None:
        return f"×{ratio(effect.ratio)}"
    return f"×{ratio(effect.ratio)} ({ratio(effect.low)} to {ratio(effect.high)})"


def ratio(value: float) -> str:
    """Two places after the point, three digits where that says more or less than enough."""
    return f"{value:.2f}" if 0.1 <= value < 10 else number(value)


def matters(effect: EffectReport) -> bool:
    """Told from none, and not slight."""
    return effect.told and max(effect.ratio, 1 / effect.ratio) >= SLIGHT


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def term(factors: Sequence[str]) -> str:
    """`a × b`; the mean of all cells where there is no factor."""
    return " × ".join(factors) or "the mean"


def promise(
    title: str,
    *,
    factors: int,
    more_is_better: bool,
    product: EffectReport | None,
    combination: EffectReport | None,
    shortfall: EffectReport | None,
    interactions: Sequence[InteractionReport],
) -> str:
    """What all together does against the product of what each does alone, and which factors contend."""
    if combination is None:
        return f"{title}: all together was not measured, so there is no combination to tell of"
    if factors == 1:
        return f"{title}: {times(combination)}; one factor, so there is nothing to add up"
    if product is None or shortfall is None:
        return (
            f"{title}: together {times(combination)}; a factor was not measured alone, so there is no "
            "product of isolated effects to hold that against"
        )
    head = f"{title}: together {times(combination)}, where the isolated effects multiply to {times(product)}"
    if shortfall.low is None:
        return f"{head}; without a second run of a cell the difference cannot be told from noise"
    if not matters(shortfall):
        return f"{head}; they do not differ by anything told ({times(shortfall)}){_pairs(interactions)}"
    share = abs(shortfall.ratio - 1)
    way = "less" if shortfall.ratio < 1 else "more"
    worse = (shortfall.ratio < 1) is more_is_better
    return (
        f"{head}: {share:.0%} {way} than that product, {'worse' if worse else 'better'} than promised "
        f"({times(shortfall)}){_pairs(interactions) or '; which factors are behind it is not told'}"
    )


def _pairs(interactions: Sequence[InteractionReport]) -> str:
    parts = []
    for contend, verb in ((True, "contend"), (False, "help each other")):
        told = [
            f"{pair.pair[0]} and {pair.pair[1]} {verb} ({times(pair.effect)}{_unless(pair)})"
            for pair in interactions
            if pair.contend is contend and pair.effect is not None
        ]
        parts += [f"; {listed(told)}"] if told else []
    return "".join(parts)


def _unless(pair: InteractionReport) -> str:
    """What else it may be: another interaction of two factors, which the fraction cannot tell it from."""
    full = [alias for alias in pair.aliases if abs(alias.share) > 0.999]
    return f", aliased with {listed([term(alias.factors) for alias in full])}" if full else ""
