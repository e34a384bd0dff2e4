"""Reports on made-up cells whose truth is known: effects, sentences, verdicts, and what cannot be told."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cluster.order import Cause, Outcome
from objectives.factorial import Cell
from tests.tuner import loads
from tests.tuner.ablation.desks import FIVE, Answer, Desk, P, Q, S, measured, refused
from tuner.ablation.plan import PlannedRun
from tuner.ablation.report import DropReport, OutcomeReport, Report, report_json
from tuner.ablation.terminal import report_lines

Truth = Mapping[Cell, float]
"""Logarithms that add up where all of a cell's factors are on."""


def noisy(truths: Mapping[str, tuple[float, Truth]], noise: float = 0.004, **same: float) -> Answer:
    """Answers with these metrics: a value of the control, and what sets of factors make of it."""

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        rng = np.random.default_rng([7, run.number])
        found = {
            name: value * math.exp(sum(log for on, log in truth.items() if on <= cell) + rng.normal(0, noise))
            for name, (value, truth) in truths.items()
        }
        return measured(**found, **same)

    return answer


def of(*names: str) -> Cell:
    return frozenset(names)


def outcome(seen: Report, metric: str) -> OutcomeReport:
    return next(one for one in seen.outcomes if one.metric == metric)


def verdict(seen: Report, factor: str) -> DropReport:
    return next(one for one in seen.drops if one.factor == factor)


CONTENDING: Truth = {of(Q): math.log(1.5), of(S): math.log(2.0), of(Q, S): math.log(0.6)}
"""Throughput ×1.5 and ×2 alone, ×1.8 and not ×3 together; the prefix cache does nothing."""


@pytest.fixture(scope="module")
def contending(tmp_path_factory: pytest.TempPathFactory) -> Report:
    truths = {
        "goodput_rps": (4.0, CONTENDING),
        "tpot_mean_s": (0.02, {of(Q): -0.3, of(S): -0.4, of(Q, S): 0.35}),
        "ttft_mean_s": (0.5, {of(P): -0.7, of(S): 0.2}),
        "e2e_mean_s": (2.0, {of(Q): -0.3, of(P): -0.1}),
    }
    return Desk(tmp_path_factory.mktemp("desk")).run(
        noisy(truths, offered_rps=20.0, batch_occupancy=0.95, kv_occupancy_max=0.5), replicates=3
    )


def test_effects_are_those_that_were_put_in(contending: Report) -> None:
    seen = outcome(contending, "goodput_rps")
    factors = {factor.factor: factor for factor in seen.factors}
    for effect, truth in (
        (factors[Q].isolated, 1.5),
        (factors[Q].in_company, 0.9),
        (factors[Q].average, math.sqrt(1.5 * 0.9)),
        (factors[S].isolated, 2.0),
        (factors[P].isolated, 1.0),
        (seen.product, 3.0),
        (seen.combination, 1.8),
        (seen.shortfall, 0.6),
        (next(pair.effect for pair in seen.interactions if pair.pair == (Q, S)), 0.6),
    ):
        assert effect is not None
        assert effect.ratio == pytest.approx(truth, rel=0.02)
        assert effect.low is not None
        assert effect.high is not None
        assert effect.low < effect.ratio < effect.high
    assert seen.better == "more"
    assert outcome(contending, "tpot_mean_ms").better == "less"


def test_who_contends_is_told_for_rates_and_latencies_alike(contending: Report) -> None:
    for metric in ("goodput_rps", "tpot_mean_ms"):
        seen = outcome(contending, metric)
        assert {pair.pair: pair.contend for pair in seen.interactions} == {
            (Q, P): None,
            (Q, S): True,
            (P, S): None,
        }
        assert "quantisation and speculation contend" in seen.sentence
        assert "worse than promised" in seen.sentence
    assert "40% less than that product" in outcome(contending, "goodput_rps").sentence
    assert "42% more than that product" in outcome(contending, "tpot_mean_ms").sentence


def test_where_nothing_contends_the_sentence_says_so(contending: Report) -> None:
    seen = outcome(contending, "ttft_mean_ms")
    assert "they do not differ by anything told" in seen.sentence
    assert "contend" not in seen.sentence


def test_what_is_full_where_factors_contend_is_told_as_a_perhaps(contending: Report) -> None:
    (told,) = (text for text in contending.summary if text.startswith("Full"))
    assert told == (
        "Full with both quantisation and speculation on, and so perhaps what they contend for: "
        "batch slots (95% in use)."
    )


def test_a_factor_that_harms_and_helps_is_the_readers_choice(contending: Report) -> None:
    """Quantisation in company: goodput ×0.9, TPOT ×1.05, but E2E ×0.74."""
    told = verdict(contending, Q)
    assert told.verdict == "trade"
    assert "helps (E2E mean ×0.7" in told.why
    assert "harms (goodput ×0.9" in told.why
    assert verdict(contending, P).verdict == "keep"


def test_factors_to_drop_leave_a_config_that_was_measured(tmp_path: Path) -> None:
    truth: Truth = {of(Q): math.log(1.5), of(P): 0.0, of(S): math.log(0.8)}
    desk = Desk(tmp_path)
    seen = desk.run(noisy({"goodput_rps": (4.0, truth)}, offered_rps=20.0))
    assert {drop.factor: drop.verdict for drop in seen.drops} == {Q: "keep", P: "drop", S: "drop"}
    assert "no effect of 1 % or more is told" in verdict(seen, P).why
    assert "harms: goodput ×0.8" in verdict(seen, S).why
    rest = seen.without
    assert rest is not None
    assert rest.dropped == (P, S)
    assert rest.cell == Q
    gained = rest.against_all["goodput_rps"]
    assert gained.ratio == pytest.approx(1 / 0.8, rel=0.02)
    assert gained.told
    assert "--quantization fp8" in rest.command
    assert "speculative" not in rest.command
    assert rest.config is None  # the control is at no place of the space
    assert rest.next == (f"cat {desk.folder}/ablations/trial-0004/trials/{_last(seen, Q):04d}/command.txt",)
    assert "Not worth their place with the others on: prefix-cache and speculation." in seen.summary


def _last(seen: Report, name: str) -> int:
    return next(cell.runs[-1].number for cell in seen.cells if cell.name == name)


def test_nothing_to_drop_leaves_the_trial(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(
        noisy({"goodput_rps": (4.0, {of(Q): 0.3, of(P): 0.2, of(S): 0.1})}, offered_rps=20.0)
    )
    assert "Every factor earns its place with all others on." in seen.summary
    assert seen.without is not None
    assert (seen.without.dropped, seen.without.trial) == ((), 4)


def test_where_nothing_was_measured_twice_nothing_is_called_worth_keeping_or_dropping(tmp_path: Path) -> None:
    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return refused(Cause.CANCELLED) if run.block or run.number == 8 else measured(e2e_mean_s=1.0)

    seen = Desk(tmp_path).run(answer)
    assert {drop.verdict for drop in seen.drops} == {"cannot tell"}
    assert seen.without is None
    assert not any("earns its place" in text or "Not worth" in text for text in seen.summary)


def test_told_but_slight_is_nothing(tmp_path: Path) -> None:
    """Half a percent, measured to a millionth."""
    truth: Truth = {of(Q): 0.005, of(P): 0.3, of(Q, P): -0.005}
    seen = Desk(tmp_path).run(noisy({"goodput_rps": (4.0, truth)}, 1e-6, offered_rps=20.0))
    effect = next(f.isolated for f in outcome(seen, "goodput_rps").factors if f.factor == Q)
    assert effect is not None
    assert effect.told
    assert verdict(seen, Q).verdict == "drop"
    assert all(pair.contend is None for pair in outcome(seen, "goodput_rps").interactions)


def test_a_rate_that_the_load_pins_says_nothing(tmp_path: Path) -> None:
    truths: Mapping[str, tuple[float, Truth]] = {
        "goodput_rps": (19.9, {of(Q): 0.001}),
        "e2e_mean_s": (1.0, {of(Q): -0.2}),
    }
    seen = Desk(tmp_path).run(noisy(truths, 1e-5, offered_rps=20.0))
    assert not outcome(seen, "goodput_rps").informative
    assert any("kept up with the offered load" in note for note in seen.notes)
    assert all("goodput" not in text for text in seen.summary)
    assert "goodput" not in verdict(seen, Q).why


def test_a_goodput_of_nothing_makes_way_for_throughput(tmp_path: Path) -> None:
    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return measured(
            goodput_rps=0.0 if not cell else 3.0,
            throughput_tokens_per_s=100.0 + run.number,
            offered_rps=20.0,
        )

    seen = Desk(tmp_path).run(answer)
    assert seen.outcomes[0].metric == "throughput_tokens_per_s"


def test_a_refused_cell_leaves_what_can_be_told_and_says_what_cannot(tmp_path: Path) -> None:
    truth: Truth = {of(Q): 0.3, of(P): 0.2, of(S): 0.1}
    made = noisy({"goodput_rps": (4.0, truth)}, offered_rps=20.0)

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return refused() if cell == {Q, S} else made(cell, run)

    seen = Desk(tmp_path).run(answer)
    (cell,) = (cell for cell in seen.cells if cell.state != "measured")
    assert (cell.name, cell.state, cell.why) == (f"{Q} + {S}", "failed", "unsupported: not on this chip")
    factors = {factor.factor: factor for factor in outcome(seen, "goodput_rps").factors}
    assert factors[P].in_company is None
    assert factors[Q].in_company is not None
    assert factors[Q].average is not None
    assert [alias.factors for alias in factors[Q].aliases] == [(P, Q, S)]
    told = " ".join(seen.cannot)
    assert "quantisation + speculation has no measurement: failed (unsupported: not on this chip)" in told
    assert "the effect in company of prefix-cache" in told
    assert verdict(seen, P).verdict == "cannot tell"
    assert any("three factors do nothing together" in note for note in seen.notes)


def test_what_the_cells_cannot_tell_apart_is_mixed_and_has_no_number(tmp_path: Path) -> None:
    """Of two factors one is never measured without the other: which does it, nobody can say."""
    made = noisy({"goodput_rps": (4.0, {of(Q): 0.3})}, offered_rps=20.0)

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return refused() if cell == {S} else made(cell, run)

    seen = Desk(tmp_path).run(answer, factors=(Q, S))
    factors = {factor.factor: factor for factor in outcome(seen, "goodput_rps").factors}
    assert factors[Q].average is None
    assert (S,) in factors[Q].mixed_with
    (pair,) = outcome(seen, "goodput_rps").interactions
    assert (pair.effect, pair.contend) == (None, None)
    assert factors[Q].isolated is not None
    assert factors[S].isolated is None
    assert any("cannot tell apart, so not estimated: quantisation" in text for text in seen.cannot)
    assert "mixed with" in "\n".join(report_lines(seen))


def test_without_the_combination_there_is_no_product_to_hold_against(tmp_path: Path) -> None:
    made = noisy({"goodput_rps": (4.0, {of(Q): 0.3})}, offered_rps=20.0)

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return refused() if len(cell) == 3 else made(cell, run)

    seen = Desk(tmp_path).run(answer)
    assert seen.without is None
    assert "all together was not measured" in outcome(seen, "goodput_rps").sentence


def test_a_fraction_prints_aliases_as_aliases(tmp_path: Path) -> None:
    truth: Truth = {of(Q): 0.3, of(P): 0.2, of(S): 0.1, of("kv-dtype"): -0.05}
    seen = Desk(tmp_path, FIVE).run(noisy({"goodput_rps": (4.0, truth)}, offered_rps=20.0))
    assert seen.fraction == "V"
    factors = {factor.factor: factor for factor in outcome(seen, "goodput_rps").factors}
    for name, log in (("quantisation", 0.3), ("kv-dtype", -0.05), ("batch-limits", 0.0)):
        effect = factors[name].average
        assert effect is not None
        assert effect.ratio == pytest.approx(math.exp(log), rel=0.02)
        assert factors[name].aliases
        assert all(len(alias.factors) > 2 for alias in factors[name].aliases)
    text = "\n".join(report_lines(seen))
    assert "aliased: " in text
    assert "A fraction of resolution V was measured" in text


def test_a_capacity_that_is_only_a_bound_is_in_no_effect(tmp_path: Path) -> None:
    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        return loads.measured(loads.ABOVE if cell == {Q} else loads.BETWEEN)

    seen = Desk(tmp_path, measure={"kind": "capacity"}).run(answer)
    assert seen.outcomes[0].metric == "goodput_rps"  # every cell has it as a number
    assert any("is only a bound" in note for note in seen.notes)


def test_the_same_runs_make_the_same_report(tmp_path: Path, contending: Report) -> None:
    desk = Desk(tmp_path)
    first = desk.run(noisy({"goodput_rps": (4.0, CONTENDING)}, offered_rps=20.0))
    assert desk.report(desk.plan()) == first


def test_json_has_no_number_that_json_has_not(contending: Report) -> None:
    raw = report_json(contending)
    again = json.loads(json.dumps(raw, allow_nan=False))
    assert again["outcomes"][0]["metric"] == "goodput_rps"
    assert again["cells"][0]["name"] == "control"
    assert again["version"] == contending.version


def test_simulated_numbers_are_marked(contending: Report) -> None:
    lines = report_lines(contending)
    assert "SIMULATED" in lines[0]
    assert contending.simulated
