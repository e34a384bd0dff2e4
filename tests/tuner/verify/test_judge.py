"""What becomes of each promise, given runs."""

from dataclasses import replace

import pytest

from objectives.measurement import Estimate, Record
from objectives.slo import Slo
from tests.tuner.verify.promises import PROMISED, pairs, side, without_control
from tuner.verify.judge import RATE, Pair, judged, limit_shares
from tuner.verify.promised import Promised
from tuner.verify.verification import Kept


def by_name(promised: Promised, runs: list[Pair]) -> dict[str, Kept]:
    return {kept.name: kept for kept in judged(promised, runs)[0]}


def test_runs_as_promised_hold_every_promise() -> None:
    kept = by_name(PROMISED, pairs(8.0, 0.02))
    assert list(kept) == ["goodput", "tpot_p95", "ttft_p95_ms", "tpot_p95_ms", "slo_attainment"]
    assert all(one.held for one in kept.values())
    assert kept["tpot_p95"].promised == Estimate(value=20.0)  # in ms, as people read it
    assert kept["tpot_p95"].unit == "ms"
    assert kept["goodput"].ratio is not None
    assert kept["goodput"].ratio.value == pytest.approx(1.0)


def test_heavier_traffic_that_slows_the_control_alike_breaks_no_objective() -> None:
    kept = by_name(PROMISED, pairs(8.0, 0.02, heavy=2.0))
    assert kept["goodput"].held
    assert kept["tpot_p95"].held
    assert kept["goodput"].verified is not None
    assert kept["goodput"].verified.value == pytest.approx(4.0)


def test_the_same_numbers_without_a_control_break_it() -> None:
    kept = by_name(replace(PROMISED, control=None), without_control(pairs(8.0, 0.02, heavy=2.0)))
    assert not kept["goodput"].held
    assert not kept["goodput"].against_control
    assert not kept["tpot_p95"].held


@pytest.mark.parametrize(("goodput", "tpot_s", "broken"), [(6.0, 0.02, "goodput"), (8.0, 0.03, "tpot_p95")])
def test_what_is_told_to_be_worse_is_not_held_and_nothing_else_is_blamed(
    goodput: float, tpot_s: float, broken: str
) -> None:
    kept = by_name(PROMISED, pairs(goodput, tpot_s))
    assert [name for name, one in kept.items() if not one.held] == [broken]


def test_better_than_promised_is_held() -> None:
    assert all(one.held for one in by_name(PROMISED, pairs(12.0, 0.01)).values())


def test_a_limit_is_held_for_itself_whatever_the_control_does() -> None:
    kept = by_name(PROMISED, pairs(8.0, 0.02, met=0.85))
    assert not kept["ttft_p95_ms"].held
    assert not kept["slo_attainment"].held
    assert kept["tpot_p95_ms"].held
    assert kept["ttft_p95_ms"].verified is not None
    assert kept["ttft_p95_ms"].verified.value == pytest.approx(0.85)


def test_the_rate_of_false_alarms_is_shared_by_all_promises() -> None:
    """With fewer promises each is tested at a higher level, so it would be noticed sooner."""
    many = by_name(PROMISED, pairs(8.0, 0.02))["goodput"]
    one = by_name(replace(PROMISED, objectives=("goodput",), slo=Slo()), pairs(8.0, 0.02))["goodput"]
    assert many.noticed is not None
    assert one.noticed is not None
    assert one.noticed > many.noticed
    assert RATE == 0.05


def test_an_slo_that_did_not_hold_in_the_study_is_not_promised() -> None:
    kept, unjudged = judged(replace(PROMISED, slo_held=False), pairs(8.0, 0.02, met=0.5))
    assert [one.name for one in kept] == ["goodput", "tpot_p95"]
    assert unjudged == ("the SLO: it did not hold at this load in the study either, so it is not promised",)


def test_a_run_without_the_number_breaks_the_promise() -> None:
    runs = pairs(8.0, 0.02)
    runs[1] = replace(runs[1], config=side({"goodput_rps": 8.0}))
    kept = by_name(PROMISED, runs)["tpot_p95"]
    assert not kept.held
    assert kept.why == "1 of 4 runs had no tpot_p95 to speak of"


def test_without_any_run_nothing_is_held() -> None:
    kept = by_name(PROMISED, [Pair(config=None, control=None)])
    assert kept
    assert not any(one.held for one in kept.values())


def test_one_run_without_an_interval_is_no_proof() -> None:
    kept = by_name(PROMISED, pairs(8.0, 0.02, many=1))
    assert not kept["tpot_p95"].held
    assert "verify with more --pairs" in kept["tpot_p95"].why


def test_shares_of_limits_are_counted_one_by_one_and_together() -> None:
    def record(number: int, ttft_s: float, tpot_s: float) -> Record:
        return Record(
            request=number,
            due_s=0.0,
            sent_s=0.0,
            chunk_s=(ttft_s, ttft_s + tpot_s),
            chunk_tokens=(1, 2),
            finished_s=ttft_s + tpot_s,
            tokens_out=2,
            tokens_asked=2,
        )

    # Both limits, only TTFT, only TPOT, neither: half meet each, a quarter both.
    records = [record(0, 0.1, 0.01), record(1, 0.1, 0.1), record(2, 1.0, 0.01), record(3, 1.0, 0.1)]
    found = limit_shares(records, Slo(ttft_s=0.5, tpot_s=0.04, attainment=0.9))
    assert found == {"ttft_p90_ms": 0.5, "tpot_p90_ms": 0.5, "slo_attainment": 0.25}
    assert limit_shares(records, Slo(ttft_s=0.5)) == {"ttft_p95_ms": 0.5}
