"""Effects of factorial designs by hand, by statsmodels, and against truths that were put in."""

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from objectives.effects import Effect, Observation, effects
from objectives.factorial import (
    _GENERATORS,
    Cell,
    Design,
    DesignError,
    Fraction,
    _fraction,
    aliases,
    design,
    estimable,
    matrix,
    terms,
)

NONE = frozenset[str]()


def cell(names: str) -> Cell:
    return frozenset(names)


def observed(means: Mapping[str, float], replicates: int = 1) -> list[Observation]:
    """Cells by the letters that are on."""
    return [
        Observation(cell=cell(names), block=block, value=value)
        for block in range(replicates)
        for names, value in means.items()
    ]


def ratio(effect: Effect | None) -> float:
    assert effect is not None
    return effect.ratio


def test_two_factors_by_hand() -> None:
    """Throughputs 100, 200, 150 and 210: alone ×2 and ×1.5, together 2.1 where 3 was promised."""
    seen = effects(design("AB"), observed({"": 100, "A": 200, "B": 150, "AB": 210}))
    a, b = seen.factors["A"], seen.factors["B"]
    assert ratio(a.isolated) == pytest.approx(2.0)
    assert ratio(b.isolated) == pytest.approx(1.5)
    assert ratio(a.in_company) == pytest.approx(1.4)  # 210 / 150
    assert ratio(b.in_company) == pytest.approx(1.05)  # 210 / 200
    assert ratio(a.average) == pytest.approx(math.sqrt(2.0 * 1.4))
    (together,) = seen.interactions
    assert ratio(together.effect) == pytest.approx(0.7)  # 210 · 100 / (200 · 150)
    assert ratio(seen.product) == pytest.approx(3.0)
    assert ratio(seen.combination) == pytest.approx(2.1)
    assert ratio(seen.shortfall) == pytest.approx(0.7)
    assert seen.noise is None
    assert a.isolated is not None
    assert a.isolated.low is None


def test_blocks_that_drift_do_not_touch_the_effects_nor_the_noise() -> None:
    means = {"": 100.0, "A": 200.0, "B": 150.0, "AB": 210.0}
    drifted = [
        Observation(cell=seen.cell, block=seen.block, value=seen.value * (1 + 0.3 * seen.block))
        for seen in observed(means, replicates=3)
    ]
    seen = effects(design("AB"), drifted)
    assert ratio(seen.shortfall) == pytest.approx(0.7)
    assert seen.noise == pytest.approx(0, abs=1e-12)
    assert seen.degrees_of_freedom == 12 - 4 - 2


def test_statsmodels_fits_the_same_effects_with_the_same_intervals() -> None:
    rng = np.random.default_rng(5)
    plan = design("ABC")
    observations = [
        Observation(cell=on, block=block, value=float(np.exp(rng.normal(len(on) * 0.2 + 0.1 * block, 0.05))))
        for block in range(3)
        for on in (*plan.cells, NONE)  # the control twice in each block
    ]
    seen = effects(plan, observations)
    x = matrix([o.cell for o in observations], plan.terms)
    blocks = np.array([[o.block == 1, o.block == 2] for o in observations], dtype=float)
    fitted = sm.OLS(np.log([o.value for o in observations]), np.hstack([x, blocks])).fit()
    low, high = np.asarray(fitted.conf_int()).T
    for at, term in enumerate(plan.terms):
        if len(term) == 1:
            mine = seen.factors[next(iter(term))].average
        elif len(term) == 2:
            mine = next(i.effect for i in seen.interactions if frozenset(i.pair) == term)
        else:
            continue
        assert mine is not None
        assert mine.ratio == pytest.approx(math.exp(fitted.params[at]))
        assert mine.low == pytest.approx(math.exp(low[at]))
        assert mine.high == pytest.approx(math.exp(high[at]))
    assert seen.noise == pytest.approx(math.sqrt(fitted.mse_resid))
    assert seen.degrees_of_freedom == int(fitted.df_resid)
    # A contrast of two cells, by way of the fit's own prediction.
    difference = x[plan.cells.index(cell("A"))] - x[0]
    tested = fitted.t_test(np.concatenate([difference, [0, 0]]))
    isolated = seen.factors["A"].isolated
    assert isolated is not None
    assert [isolated.low, isolated.high] == pytest.approx(np.exp(tested.conf_int()[0]).tolist())


def test_intervals_cover_known_effects_and_interactions_as_often_as_they_say() -> None:
    """A 2×2×2 with two replicates, 5 % noise, a drifting block and one strong interaction."""
    rng = np.random.default_rng(11)
    plan = design("ABC")
    truth = {"A": 0.3, "B": 0.1, "C": -0.05}
    clash = -0.2  # of A and B, whenever both are on

    def mean(on: Cell) -> float:
        return sum(truth[name] for name in on) + (clash if {"A", "B"} <= on else 0.0)

    known = {
        "A alone": 0.3,
        "A on average": 0.3 + clash / 2,
        "A and B": clash,
        "shortfall": clash,
        "combination": 0.15,
    }
    draws = 500
    covered = dict.fromkeys(known, 0)
    for _ in range(draws):
        seen = effects(
            plan,
            [
                Observation(
                    cell=on, block=block, value=float(np.exp(mean(on) + 0.1 * block + rng.normal(0, 0.05)))
                )
                for block in range(2)
                for on in (*plan.cells, NONE)
            ],
        )
        found = {
            "A alone": seen.factors["A"].isolated,
            "A on average": seen.factors["A"].average,
            "A and B": seen.interactions[0].effect,
            "shortfall": seen.shortfall,
            "combination": seen.combination,
        }
        for name, effect in found.items():
            assert effect is not None
            assert effect.low is not None
            assert effect.high is not None
            covered[name] += effect.low <= math.exp(known[name]) <= effect.high
    fewest, most = (int(binom.ppf(q, draws, 0.95)) for q in (0.0005, 0.9995))
    assert all(fewest <= count <= most for count in covered.values()), covered


@settings(max_examples=40)
@given(
    st.integers(1, 4).flatmap(
        lambda k: st.lists(st.floats(0.5, 20), min_size=2**k, max_size=2**k).map(lambda v: (k, v))
    )
)
def test_a_full_design_gives_averages_over_all_other_factors(case: tuple[int, list[float]]) -> None:
    count, values = case
    plan = design("ABCD"[:count])
    means = dict(zip(plan.cells, values, strict=True))
    seen = effects(plan, [Observation(cell=on, block=0, value=value) for on, value in means.items()])
    for name in plan.factors:
        gains = [math.log(means[on | {name}] / value) for on, value in means.items() if name not in on]
        assert math.log(ratio(seen.factors[name].average)) == pytest.approx(np.mean(gains), abs=1e-9)
    for interaction in seen.interactions:
        a, b = interaction.pair
        both = [
            math.log(means[on | {a, b}] * means[on] / (means[on | {a}] * means[on | {b}]))
            for on in means
            if not {a, b} & on
        ]
        assert math.log(ratio(interaction.effect)) == pytest.approx(np.mean(both), abs=1e-9)


@pytest.mark.parametrize(("count", "fraction"), sorted(_GENERATORS))
def test_a_fraction_has_its_resolution(count: int, fraction: Fraction) -> None:
    factors = "ABCDEFGH"[:count]
    plan = design(factors, fraction)
    read_from = {NONE, cell(factors), *map(frozenset, factors)}
    read_from |= {cell(factors) - {name} for name in factors}
    regular = set(_fraction(factors, _GENERATORS[count, fraction]))
    assert len(regular) == 2 ** (count - len(_GENERATORS[count, fraction]))
    assert set(plan.cells) == regular | read_from
    # The shortest word whose column is constant over the fraction's cells is its resolution.
    words = [
        word for word in terms(factors, count) if word and len({len(word - on) % 2 for on in regular}) == 1
    ]
    assert min(map(len, words)) >= {"V": 5, "IV": 4}[fraction]
    mixed = estimable(plan.cells, plan.terms)
    assert not any(mixed[frozenset({name})] for name in factors)  # mains are clear of pairs
    if fraction == "V":
        assert not any(mixed.values())  # and pairs of each other


def test_what_a_fraction_cannot_tell_is_said() -> None:
    # The half of 2⁴ with D = ABC, where AB and CD are one column.
    factors = "ABCD"
    half = [on for on in design(factors).cells if len(on) % 2 == 0]
    mixed = estimable(half, [*terms(factors, 2)])
    assert mixed[cell("AB")] == (cell("CD"),)
    assert mixed[cell("A")] == ()
    # Of mains alone, A's estimate holds all of BCD.
    left_out = aliases(half, [*terms(factors, 1)], factors)
    (only,) = left_out[cell("A")]
    assert only.term == cell("BCD")
    # An eighth a corner of BCD's own, against a half of A's.
    assert abs(only.share) == pytest.approx(1 / 4)


def test_a_cell_that_failed_leaves_out_what_is_read_from_it_and_keeps_the_rest() -> None:
    plan = design("ABC")
    values = {on: 1.5 ** len(on) for on in plan.cells if on != cell("B")}
    seen = effects(plan, [Observation(cell=on, block=0, value=value) for on, value in values.items()])
    assert seen.factors["B"].isolated is None
    assert ratio(seen.factors["A"].isolated) == pytest.approx(1.5)
    assert ratio(seen.factors["B"].in_company) == pytest.approx(1.5)
    assert seen.product is None
    assert seen.shortfall is None
    assert ratio(seen.combination) == pytest.approx(1.5**3)
    # Seven cells cannot carry eight terms: what depends on the eighth says with what it is mixed.
    assert seen.factors["B"].average is None
    assert seen.factors["B"].mixed_with


@pytest.mark.parametrize("factors", ["", "AA"])
def test_a_design_needs_factors_each_named_once(factors: str) -> None:
    with pytest.raises(DesignError, match="each named once"):
        design(factors)


def test_a_fraction_that_there_is_not_is_named() -> None:
    with pytest.raises(DesignError, match="resolution IV"):
        design("ABCDE", "IV")


def test_effects_need_the_control_and_positive_numbers() -> None:
    with pytest.raises(ValueError, match="against the control"):
        effects(design("A"), observed({"A": 1.0}))
    with pytest.raises(ValueError, match="positive"):
        effects(design("A"), observed({"": 0.0, "A": 1.0}))


def test_pairs_of_a_design_come_in_the_factors_order() -> None:
    seen = effects(
        design("CAB"), observed({"": 1, "A": 1, "B": 1, "C": 1, "AB": 1, "AC": 1, "BC": 1, "ABC": 1})
    )
    assert [interaction.pair for interaction in seen.interactions] == list(combinations("CAB", 2))


def test_the_design_of_a_plan_holds_the_control_first() -> None:
    plan: Design = design("AB")
    assert plan.cells[:2] == (NONE, cell("AB"))
