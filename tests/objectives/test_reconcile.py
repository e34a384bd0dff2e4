"""Client and engine of one replay agree; of two, or of a wrong one, they don't."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.allowance import CUT
from objectives.measurement import Record, Sample
from objectives.reconcile import disagreements
from tests.objectives.truth import Happened, broken, counted, observed, seen


def allowed_s(client_s: float) -> float:
    """The rule: 10 ms or 5 %, whichever is more."""
    return max(0.010, 0.05 * client_s)


def _on_its_way(one: Happened, way: float, part: float, late: float) -> Happened:
    """With a way that takes some share of what it may, some part of it before the arrival."""
    first, last = way * allowed_s(one.ttft_s), allowed_s(one.e2e_s)
    way_in = part * first
    return replace(one, way_in_s=way_in, first_late_s=first - way_in, last_late_s=late * (last - way_in))


shares = st.floats(0, 0.999)
requests = st.lists(
    st.builds(
        _on_its_way,
        st.builds(
            Happened,
            arrived_s=st.floats(1, 100),
            queued_s=st.just(0.0) | st.floats(0, 5),
            prefill_s=st.floats(0.001, 3),
            step_s=st.floats(0.001, 0.3),
            tokens=st.integers(1, 60),
            prompt=st.integers(1, 5000),
        ),
        shares,
        shares,
        shares,
    ),
    min_size=1,
    max_size=40,
)


@given(requests)
def test_two_views_of_one_truth_never_disagree(happened: list[Happened]) -> None:
    assert disagreements(seen(happened), counted(happened)) == ()


@given(requests)
def test_nor_before_the_engine_counted_time_per_token(happened: list[Happened]) -> None:
    samples = [replace(sample, tpot_histogram=None) for sample in counted(happened)]
    assert disagreements(seen(happened), samples) == ()


@given(requests, st.data())
def test_failed_requests_leave_room_for_whatever_became_of_them_in_the_engine(
    happened: list[Happened], data: st.DataObject
) -> None:
    records = seen(happened)
    finished, begun, tokens, prompt = [], [], 0, 0
    for at, one in enumerate(happened):
        fate = data.draw(st.sampled_from(["answered", "refused", "never sent", "dropped", "lost at the end"]))
        made = one.tokens
        if fate != "answered":
            received = 0 if fate in ("refused", "never sent") else data.draw(st.integers(0, one.tokens - 1))
            records[at] = broken(records[at], received=received)
            if fate == "never sent":
                records[at] = replace(records[at], sent_s=None)
            if fate == "dropped":  # the engine went on for a while, and dropped it too
                made = data.draw(st.integers(received, one.tokens))
            elif fate != "lost at the end":
                made = 0
        tokens += made
        prompt += one.prompt if made else 0
        begun += [one] if made else []
        finished += [one] if fate in ("answered", "lost at the end") else []
    samples = counted(finished, tokens=tokens, prompt=prompt, begun=begun)
    assert disagreements(records, samples) == ()
    assert disagreements(records, [replace(sample, tpot_histogram=None) for sample in samples]) == ()


@pytest.mark.parametrize(
    ("engine_s", "client_s", "agrees"),
    [
        (0.0300, 0.0399, True),  # 10 ms
        (0.0300, 0.0401, False),
        (0.0399, 0.0300, True),
        (0.0401, 0.0300, False),
        (1.9001, 2.0000, True),  # 5 % of the client's
        (1.8999, 2.0000, False),
    ],
)
def test_ten_milliseconds_or_a_twentieth_may_be_lost_on_the_way(
    engine_s: float, client_s: float, agrees: bool
) -> None:
    happened = [Happened(arrived_s=3.0 + at, prefill_s=client_s, tokens=1) for at in range(3)]
    before, after = counted(happened)
    after = replace(after, ttft_histogram=observed([engine_s] * 3))
    assert (disagreements(quiet(seen(happened)), (before, after)) == ()) is agrees


def quiet(records: list[Record]) -> list[Record]:
    """Without what the engine says of each."""
    return [replace(record, server_queue_s=None) for record in records]


def changed(sample: Sample, **fields: Any) -> Sample:  # whatever a Sample's field holds
    return replace(sample, **fields)


@given(
    requests,
    st.sampled_from([("generation_tokens_total", "output tokens"), ("prompt_tokens_total", "prompt tokens")])
    | st.just(("finished_total", "finished requests")),
    st.sampled_from([-1, 1]),
)
def test_one_too_many_or_too_few_is_told_with_both_numbers(
    happened: list[Happened], counter: tuple[str, str], more: int
) -> None:
    field, words = counter
    before, after = counted(happened)
    right = getattr(after, field) - getattr(before, field)
    other = changed(after, **{field: getattr(after, field) + more})
    assert disagreements(seen(happened), (before, other)) == (
        f"{words}: {right + more} by the engine's counters, {right} by the client",
    )


def test_what_failed_requests_explain_is_no_disagreement_and_what_they_do_not_is() -> None:
    happened = [Happened(arrived_s=1.0 + at, tokens=10) for at in range(3)]
    records = seen(happened)
    records[1] = broken(records[1], received=4)  # up to 6 more were made
    told = [disagreements(records, counted(happened, tokens=count)) for count in (23, 24, 30, 31)]
    assert [len(said) for said in told] == [1, 0, 0, 1]
    assert told[3] == (
        "output tokens: 31 by the engine's counters, 24 by the client, "
        "and failed requests explain at most 6 more",
    )


@given(requests, st.sampled_from(["ttft", "e2e", "tpot"]), st.sampled_from([-1, 1]), st.floats(1.001, 50))
def test_a_mean_that_is_off_by_more_than_is_allowed_is_always_told(
    happened: list[Happened], latency: str, sign: int, times: float
) -> None:
    records = seen(happened)
    e2e = [record.chunk_s[-1] - sent(record) for record in records]
    ttft = [record.chunk_s[0] - sent(record) for record in records]
    tokens = [max(one.tokens - 1, 1) for one in happened]
    client, allowed = {
        "ttft": (ttft, [allowed_s(c) for c in ttft]),
        "e2e": (e2e, [allowed_s(c) for c in e2e]),
        "tpot": (
            [(c - first) / n for c, first, n in zip(e2e, ttft, tokens, strict=True)],
            [allowed_s(c) / n for c, n in zip(e2e, tokens, strict=True)],
        ),
    }[latency]
    off = sign * times * sum(allowed) / len(allowed)
    before, after = counted(happened)
    other = changed(after, **{f"{latency}_histogram": observed(one + off for one in client)})
    (said,) = disagreements(records, (before, other))
    assert said.startswith(f"mean {latency.upper()}")
    assert f"{sum(client) / len(client) * 1e3:.1f} ms by the client" in said


def sent(record: Record) -> float:
    assert record.sent_s is not None
    return record.sent_s


@pytest.mark.parametrize(
    ("engine_s", "words"),
    [
        # Each has a mean of 200 ms; the client saw 160, 180, 220 and 240 ms.
        ([0.02, 0.02, 0.02, 0.74], "p50 of TTFT from sending: 10.0 ms to 50.0 ms by the engine, 220.0 ms"),
        ([0.004, 0.004, 0.004, 0.788], "p50 of TTFT from sending: at most 10.0 ms by the engine, 220.0 ms"),
        (
            [0.004, 0.02, 0.2, 0.576],
            "p90 of TTFT from sending: 500.0 ms to 1000.0 ms by the engine, 240.0 ms",
        ),
    ],
)
def test_ranks_that_lie_in_other_buckets_are_told_though_the_means_agree(
    engine_s: list[float], words: str
) -> None:
    client_s = (0.16, 0.18, 0.22, 0.24)
    happened = [Happened(arrived_s=1.0 + at, prefill_s=one) for at, one in enumerate(client_s)]
    before, after = counted(happened)
    samples = (before, replace(after, ttft_histogram=observed(engine_s)))
    assert disagreements(seen(happened), samples) == (f"{words} by the client",)


def test_a_rank_is_compared_as_the_bucket_that_it_is_known_by() -> None:
    # 20 ms beyond a bound at 250 ms is more than the 13.5 ms that are allowed; 10 ms beyond it is not.
    for beyond, agrees in ((0.010, True), (0.020, False)):
        happened = [Happened(arrived_s=1.0 + at, prefill_s=0.25 + beyond, tokens=1) for at in range(4)]
        before, after = counted(happened)
        below = observed([0.249, 0.249, 0.249, 4 * (0.25 + beyond) - 3 * 0.249])
        said = disagreements(seen(happened), (before, changed(after, ttft_histogram=below)))
        assert (said == ()) is agrees, beyond


def test_without_time_per_token_the_gaps_are_summed() -> None:
    happened = [Happened(arrived_s=1.0 + at, tokens=11, step_s=0.05) for at in range(4)]
    before, after = counted(happened)
    slower = observed([0.06] * 40)
    samples = [
        replace(before, tpot_histogram=None),
        replace(after, tpot_histogram=None, itl_histogram=slower),
    ]
    # 600 ms against 500, where 5 % of the E2E of 600 ms are allowed.
    assert disagreements(seen(happened), samples) == (
        "mean time from first token to last: 600.0 ms by the engine, 500.0 ms by the client, "
        "where 30.0 ms of difference are allowed",
    )


def test_a_request_that_took_longer_in_the_engine_than_its_client_saw_is_told() -> None:
    records = seen([Happened(arrived_s=1.0 + at, queued_s=0.05) for at in range(3)])
    records[2] = replace(records[2], server_queue_s=0.07, server_generation_s=0.06)
    assert disagreements(records, []) == (
        "1 of 3 requests had a longer TTFT in the engine than the client saw; "
        "request 2: 170.0 ms by the engine, 150.0 ms by the client",
    )
    records[2] = replace(records[2], server_queue_s=0.05, server_generation_s=0.09)
    (said,) = disagreements(records, [])
    assert "longer E2E" in said
    assert "240.0 ms by the engine, 230.0 ms by the client" in said


def test_a_request_that_waited_for_a_step_to_end_before_the_engine_took_it_up_is_none() -> None:
    records = seen([Happened(arrived_s=1.0, queued_s=0.5)])
    assert disagreements([replace(records[0], server_queue_s=0.0)], []) == ()


WRONG = [Happened(arrived_s=1.0, tokens=9, prompt=7, prefill_s=9.0)]
"""What the counters of these tests hold, of a replay that was another."""


def test_of_a_cut_replay_nothing_is_said() -> None:
    records = seen([Happened(arrived_s=1.0 + at) for at in range(3)])
    assert len(disagreements(records, counted(WRONG))) > 2
    records[2] = replace(broken(records[2], received=2), error=CUT)
    assert disagreements(records, counted(WRONG)) == ()


@pytest.mark.parametrize(
    ("first_s", "last_s", "compared"),
    [(0.9, 2.2, True), (1.1, 2.2, False), (0.9, 2.1, False)],
    ids=["around", "read after the first had left", "read before the last had ended"],
)
def test_counters_that_were_not_read_around_the_replay_are_not_compared(
    first_s: float, last_s: float, compared: bool
) -> None:
    records = seen([Happened(arrived_s=1.0), Happened(arrived_s=2.0)])
    before, after = counted(WRONG)
    samples = [replace(before, at_s=first_s), replace(after, at_s=last_s)]
    assert bool(disagreements(records, samples)) is compared


@pytest.mark.parametrize("samples", [[], [counted(WRONG)[1]], [Sample(at_s=-1.0), Sample(at_s=9.0)]])
def test_an_engine_that_says_nothing_does_not_disagree(samples: list[Sample]) -> None:
    assert disagreements(seen([Happened(arrived_s=1.0)]), samples) == ()


def test_a_restarted_engine_does_not_disagree() -> None:
    before, after = counted(WRONG)
    samples = [replace(after, at_s=-1.0), replace(before, at_s=9.0)]
    assert disagreements(seen([Happened(arrived_s=1.0)]), samples) == ()


def test_where_every_request_failed_only_counts_are_compared() -> None:
    happened = [Happened(arrived_s=1.0)]
    records = [broken(record, received=0) for record in seen(happened)]
    assert disagreements(records, counted([])) == ()
    assert disagreements(records, counted([], tokens=6)) == (
        "output tokens: 6 by the engine's counters, 0 by the client, "
        "and failed requests explain at most 5 more",
    )
