"""A cut never changes a verdict, comes no sooner than it may, and no later than it must."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from objectives.allowance import CUT, Allowance, cut_at_s, cut_records, deadline_s, misses_known
from objectives.measurement import Record
from objectives.slo import Slo
from tests.objectives.replays import answered, failed

SLOS = st.builds(
    Slo,
    ttft_s=st.none() | st.sampled_from([0.05, 0.2, 1.0]),
    tpot_s=st.none() | st.sampled_from([0.01, 0.03, 0.1]),
    e2e_s=st.none() | st.sampled_from([0.3, 1.0]),
    attainment=st.sampled_from([0.5, 0.9, 0.95]),
)


@st.composite
def replays(draw: st.DrawFn) -> list[Record]:
    records = []
    for index in range(draw(st.integers(1, 25))):
        due_s = draw(st.floats(0, 5))
        if draw(st.integers(0, 9)) == 0:
            records.append(failed(index, due_s=due_s))
            continue
        records.append(
            answered(
                index,
                due_s=due_s,
                ttft_s=draw(st.floats(0.01, 1.5)),
                gap_s=draw(st.floats(0.001, 0.12)),
                tokens=draw(st.integers(1, 12)),
            )
        )
    return records


def test_the_allowance_is_the_share_that_may_miss() -> None:
    assert Allowance.of(Slo(attainment=0.95), 60).misses == 3
    assert Allowance.of(Slo(attainment=0.95), 59).misses == 2
    assert Allowance.of(Slo(attainment=0.99), 100).misses == 1
    assert Allowance.of(Slo(attainment=0.9), 5).misses == 0


@given(replays(), SLOS)
def test_a_replay_is_cut_exactly_where_its_slo_does_not_hold(records: list[Record], slo: Slo) -> None:
    allowance = Allowance.of(slo, len(records))
    misses = sum(not slo.met_by(record) for record in records)
    holds = (len(records) - misses) / len(records) >= slo.attainment - 1e-9
    cut_s = cut_at_s(records, allowance)
    assert (cut_s is None) == holds
    if cut_s is not None:
        known = misses_known(cut_records(records, cut_s), slo, cut_s)
        assert allowance.misses < known <= misses


@given(replays(), SLOS, st.floats(0, 8))
def test_what_is_counted_before_the_end_is_missed_in_the_end(
    records: list[Record], slo: Slo, at_s: float
) -> None:
    for record in records:
        (seen,) = cut_records([record], at_s)
        if misses_known([seen], slo, at_s):
            assert not slo.met_by(record)


@given(replays(), SLOS, st.floats(0, 8))
def test_a_cut_record_holds_what_had_come_and_no_more(records: list[Record], slo: Slo, at_s: float) -> None:
    for record, seen in zip(records, cut_records(records, at_s), strict=True):
        if seen.error != CUT:
            assert seen == record
            continue
        assert seen.chunk_s == tuple(chunk_s for chunk_s in record.chunk_s if chunk_s <= at_s)
        assert len(seen.chunk_tokens) == len(seen.chunk_s)
        assert seen.finished_s is None


@given(
    SLOS,
    st.floats(0, 2),
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0.001, 0.5), st.integers(1, 3)), max_size=6),
)
def test_a_request_that_ends_by_its_deadline_meets_the_slo_and_a_later_one_does_not(
    slo: Slo, ttft_s: float, first: int, gaps: list[tuple[float, int]]
) -> None:
    chunk_s, tokens = [1.0 + ttft_s], [first]
    for gap_s, count in gaps:
        chunk_s.append(chunk_s[-1] + gap_s)
        tokens.append(tokens[-1] + count)
    record = replace(
        answered(0, due_s=1.0),
        chunk_s=tuple(chunk_s),
        chunk_tokens=tuple(tokens),
        tokens_out=tokens[-1],
        tokens_asked=tokens[-1],
        finished_s=chunk_s[-1],
    )
    deadline = deadline_s(slo, due_s=1.0, first_s=chunk_s[0], first_tokens=first, asked=tokens[-1])
    if math.isclose(deadline, chunk_s[-1], abs_tol=1e-9):
        return
    late_start = slo.ttft_s is not None and ttft_s > slo.ttft_s
    assert slo.met_by(record) == (chunk_s[-1] < deadline and not late_start)
