"""The three questions, on made-up cells whose answer is known, and on cells that hold none."""

from pathlib import Path

import numpy as np
import pytest

from cluster.order import Outcome
from objectives.factorial import Cell
from tests.tuner.ablation.desks import TRACE, Answer, Desk, P, Q, S, measured, refused
from tuner.ablation.answers import BATCH, DECODE, KV
from tuner.ablation.plan import PlannedRun
from tuner.ablation.report import AnswerReport, Report


def answer_to(question: str, seen: Report) -> AnswerReport:
    return next(answer for answer in seen.answers if answer.question == question)


def shaken(run: PlannedRun, noise: float) -> float:
    return float(np.exp(np.random.default_rng([3, run.number]).normal(0, noise)))


def batches(control: float, quantised: float, *, decoding: float = 1.0) -> Answer:
    """With so much of the batch decoding: 10 requests a second, each that long between its tokens."""

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        batch = quantised if Q in cell else control
        return measured(
            batch_mean=batch, throughput_rps=10.0, ttft_mean_s=0.5, e2e_mean_s=0.5 + decoding * batch / 10
        )

    return answer


# Llama 3.1 8B: 16.06 GB in bf16, 9.08 GB with fp8 linear layers; 131,072 bytes of KV a token; the trace's
# mean context is 110 tokens, so a sequence's KV is 14.4 MB. Even at a batch of 630 (9.08 GB) and of 1,114.


def test_quantisation_makes_the_kv_cache_the_larger_cost_between_the_two_even_batches(tmp_path: Path) -> None:
    told = answer_to(KV, Desk(tmp_path).run(batches(850, 850)))
    assert told.known
    assert told.answer.startswith("Yes: a decode step reads 16.1 GB of weights and 12.3 GB of KV")
    assert "9.08 GB of weights and 12.3 GB of KV" in told.answer


@pytest.mark.parametrize(
    ("control", "quantised", "begins"),
    [
        (8, 8, "No, the weights are the larger cost"),
        (2000, 2000, "No, it was the larger cost before"),
        # Quantised it is faster, so the batch is smaller: the KV cache is not what grew.
        (2000, 100, "No, the weights are the larger cost"),
        (8, 650, "Cannot tell from these runs: the two are about equal"),
        (0, 8, "Cannot tell from these runs: how many sequences decode in cell control is not known"),
    ],
)
def test_otherwise_it_does_not_or_cannot_be_told(
    tmp_path: Path, control: float, quantised: float, begins: str
) -> None:
    told = answer_to(KV, Desk(tmp_path).run(batches(control, quantised)))
    assert told.answer.startswith(begins)
    assert told.known is not begins.startswith("Cannot")


def test_a_batch_that_is_half_prefill_is_no_evidence_of_a_large_kv_cache(tmp_path: Path) -> None:
    """850 in the batch read more KV than quantised weights if all of them decode, 425 do not."""
    told = answer_to(KV, Desk(tmp_path).run(batches(850, 850, decoding=0.5)))
    assert not told.known
    assert "hangs on how much of the batch decodes" in told.answer
    assert "9.08 GB of weights and 6.13 GB to 12.3 GB of KV (425 to 850 sequences) with it" in told.answer


def test_an_engine_that_idles_decodes_at_least_one_sequence_at_a_time(tmp_path: Path) -> None:
    told = answer_to(KV, Desk(tmp_path).run(batches(0.01, 0.01)))
    assert "14.5 MB of KV (1.01 sequences)" in told.answer  # 14.4 MB of one


def test_without_quantisation_among_the_factors_its_question_has_no_answer(tmp_path: Path) -> None:
    told = answer_to(KV, Desk(tmp_path).run(batches(8, 8), factors=(P, S)))
    assert not told.known
    assert "quantisation is not among the factors" in told.answer


def prefixes(*, ttft: float, tpot: float, noise: float = 0.004, hits: float = 0.5) -> Answer:
    """What the prefix cache multiplies TTFT and TPOT by."""

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        on = P in cell
        return measured(
            ttft_mean_s=0.5 * (ttft if on else 1) * shaken(run, noise),
            tpot_mean_s=0.02 * (tpot if on else 1) * shaken(run, noise),
            accepted_tokens_per_target_step=1.5 if S in cell else 1.0,
            prefix_hit_rate=hits if on else 0.0,
        )

    return answer


def test_a_cache_that_only_shortens_ttft_changed_prefill_and_admission_only(tmp_path: Path) -> None:
    told = answer_to(DECODE, Desk(tmp_path).run(prefixes(ttft=0.5, tpot=1.0)))
    assert told.known
    assert told.answer.startswith("Only prefill and admission: TTFT ×0.50")
    assert "step time ×1.00" in told.answer


def test_a_cache_that_shortens_tpot_is_told_with_what_else_that_may_be(tmp_path: Path) -> None:
    told = answer_to(DECODE, Desk(tmp_path).run(prefixes(ttft=0.5, tpot=0.8)))
    assert told.known
    assert told.answer.startswith("It changed the time per output token too")
    assert "shared with prefill" in told.answer


def test_an_effect_on_decode_that_hangs_on_another_factor_is_not_averaged_away(tmp_path: Path) -> None:
    """Faster by a fifth without speculation, slower by as much with it."""

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        tpot = 1.0 if P not in cell else 1.25 if S in cell else 0.8
        return measured(
            ttft_mean_s=(0.2 if P in cell else 0.5) * shaken(run, 0.004),
            tpot_mean_s=0.02 * tpot * shaken(run, 0.004),
            prefix_hit_rate=0.5 if P in cell else 0.0,
        )

    told = answer_to(DECODE, Desk(tmp_path).run(answer))
    assert not told.known
    assert "on average TPOT is as it was, but what it does hangs on speculation" in told.answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (prefixes(ttft=0.5, tpot=1.0, noise=0.3), "leaves room for more than 5 % either way"),
        (prefixes(ttft=1.0, tpot=1.0), "no effect on TTFT is told from none either"),
        (prefixes(ttft=0.9, tpot=1.0, hits=0.001), "next to no prefix hits (0.1%)"),
    ],
)
def test_decode_has_no_answer_where_intervals_or_hits_do_not_give_one(
    tmp_path: Path, answer: Answer, why: str
) -> None:
    told = answer_to(DECODE, Desk(tmp_path).run(answer))
    assert not told.known
    assert told.answer.startswith("Cannot tell from these runs: ")
    assert why in told.answer


def test_a_cache_that_is_on_in_the_control_is_no_factor_to_ask_of(tmp_path: Path) -> None:
    told = answer_to(DECODE, Desk(tmp_path).run(prefixes(ttft=0.5, tpot=1.0), factors=(Q, S)))
    assert "switching the prefix cache is not among the factors" in told.answer


def speculating(**tpot_at: float) -> Answer:
    """TPOT with speculation over without, by what is on beside it; the batch grows with the prefix cache."""
    batch = {"": 4.0, "q": 10.0, "p": 20.0, "qp": 40.0}

    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        beside = ("q" if Q in cell else "") + ("p" if P in cell else "")
        ratio = tpot_at.get(beside or "none", 1.0) if S in cell else 1.0
        return measured(tpot_mean_s=0.02 * ratio * shaken(run, 0.004), batch_mean=batch[beside])

    return answer


def test_speculation_that_pays_in_small_batches_and_costs_in_large_ones_stops_between(tmp_path: Path) -> None:
    told = answer_to(BATCH, Desk(tmp_path).run(speculating(none=0.6, q=0.8, p=1.0, qp=1.3)))
    assert told.known
    assert told.answer.startswith("Between 10 and 40 in the batch, as far as these cells tell: TPOT ×0.80")
    assert "other factors too" in told.answer


def test_speculation_that_pays_everywhere_stops_nowhere_that_was_seen(tmp_path: Path) -> None:
    told = answer_to(BATCH, Desk(tmp_path).run(speculating(none=0.6, q=0.6, p=0.7, qp=0.7)))
    assert not told.known
    assert "it paid in every pair, at batches of 4 to 40" in told.answer
    assert "replays at higher speeds would tell" in told.answer


def test_speculation_that_never_pays_stopped_below_all_that_was_seen(tmp_path: Path) -> None:
    told = answer_to(BATCH, Desk(tmp_path).run(speculating(none=1.2, q=1.2, p=1.4, qp=1.4)))
    assert told.known
    assert told.answer.startswith("Below the smallest batch seen, if anywhere")


@pytest.mark.parametrize(
    "answer",
    [
        speculating(none=1.3, q=0.8, p=1.3, qp=0.8),  # in no order of the batch
        speculating(),  # nothing told
        speculating(none=0.7, q=1.0, p=1.0, qp=1.0),  # pays once, costs nowhere
    ],
)
def test_otherwise_the_batch_cannot_be_told(tmp_path: Path, answer: Answer) -> None:
    told = answer_to(BATCH, Desk(tmp_path).run(answer))
    assert not told.known
    assert "in no order of the batch that is told" in told.answer


def test_nothing_is_answered_without_measurements(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(lambda cell, run: refused())
    assert not any(answer.known for answer in seen.answers)
    assert all(answer.answer.startswith("Cannot tell from these runs: ") for answer in seen.answers)


def test_the_traces_mean_context_is_as_reckoned_above() -> None:
    assert {(r.input_length, r.output_length) for r in TRACE.requests} == {(100, 20)}  # 100 + 20 / 2
