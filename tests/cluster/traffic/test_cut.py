import json
from collections import Counter

import pytest

from cluster.traffic.cut import cap, sample, scale, window
from cluster.traffic.groups import groups
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.show import figures
from cluster.traffic.trace import Request, Trace, TraceError, assemble, read_trace
from tests.cluster.traffic.encoding import public


def talks(**more: object) -> Trace:
    base = {
        "requests": 2000,
        "rate": 10,
        "input_mean": 1500,
        "output_mean": 60,
        "turns": 3,
        "block_tokens": 64,
    }
    return make_trace(recipe_from({**base, "shared_prefix": 0.3, "prefixes": 50, **more}))


def asked(at: float, length: int = 10, output: int = 5, **more: object) -> Request:
    return Request(arrival_s=at, input_length=length, output_length=output, **more)  # type: ignore[arg-type]


def test_a_window_has_its_beginning_and_not_its_end() -> None:
    trace = assemble([asked(t, length=int(10 + t)) for t in (0, 1, 2, 3, 4)])
    seen = window(trace, start_s=1, end_s=3)
    assert [(r.arrival_s, r.input_length) for r in seen.requests] == [(0.0, 11), (1.0, 12)]
    assert seen.notes == ("window from 1 s to 3 s: 2 of 5 requests",)
    with pytest.raises(TraceError, match="nothing is left"):
        window(trace, start_s=9)


def test_a_window_says_how_many_sessions_it_cut() -> None:
    turns = [asked(t, session_id=s) for t, s in ((0, "a"), (1, "b"), (2, "b"), (3, "a"))]
    assert window(assemble(turns), start_s=1, end_s=3).notes[1:] == ()
    assert "1 of 2 sessions lie partly outside" in window(assemble(turns), start_s=1).notes[1]


def test_a_window_of_the_public_trace_holds_what_its_lines_say() -> None:
    path = public("mooncake_conversation.jsonl")
    with path.open() as file:
        rows = [json.loads(line) for line in file]
    inside = [row for row in rows if 600_000 <= row["timestamp"] < 900_000]
    seen = window(read_trace(path), start_s=600, end_s=900)
    assert [r.hash_ids for r in seen.requests] == [tuple(row["hash_ids"]) for row in inside]


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_a_sample_is_of_the_share_and_keeps_groups_whole(share: float) -> None:
    trace = talks()
    seen = sample(trace, share, seed=1)
    assert len(seen.requests) == pytest.approx(share * 2000, abs=10)
    whole = Counter(r.session_id for r in trace.requests)
    assert all(
        count == whole[session] for session, count in Counter(r.session_id for r in seen.requests).items()
    )
    # Each prefix group that the sample has any of, it has all of.
    kept = Counter((r.session_id, r.input_length, r.hash_ids) for r in seen.requests)
    for group in groups(trace.requests, most=max(1, round(0.1 * share * 2000))).members:
        there = sum(
            kept[(r.session_id, r.input_length, r.hash_ids)] > 0 for r in (trace.requests[i] for i in group)
        )
        assert there in (0, len(group))


def test_a_sample_keeps_the_sharing_that_picking_requests_would_lose() -> None:
    trace = talks(turns=1, prefixes=100, shared_prefix=0.5)
    whole, seen = figures(trace).prefix_share, figures(sample(trace, 0.1)).prefix_share
    picked = assemble(trace.requests[::10], block_tokens=64)
    assert abs(seen - whole) < abs(figures(picked).prefix_share - whole)


def test_a_sample_of_a_trace_with_one_system_prompt_splits_it_and_says_so() -> None:
    trace = read_trace(public("mooncake_conversation.jsonl"))
    seen = sample(trace, 0.1)
    assert len(seen.requests) == pytest.approx(1203, abs=3)
    assert any("split as they go on" in note for note in seen.notes)
    assert figures(seen).prefix_share == pytest.approx(figures(trace).prefix_share, abs=0.06)


def test_another_seed_draws_another_sample_and_the_same_the_same() -> None:
    trace = talks()
    assert sample(trace, 0.2, seed=1).digest == sample(trace, 0.2, seed=1).digest
    assert sample(trace, 0.2, seed=1).digest != sample(trace, 0.2, seed=2).digest


def test_a_rate_is_met_exactly_and_nothing_but_times_changes() -> None:
    trace = talks()
    seen = scale(trace, rate=25.0)
    assert figures(seen).rate == pytest.approx(25.0, rel=1e-5)
    assert figures(seen).gap_cv == pytest.approx(figures(trace).gap_cv, rel=1e-3)
    assert [r.hash_ids for r in seen.requests] == [r.hash_ids for r in trace.requests]
    assert scale(trace, speed=2).requests[-1].arrival_s == pytest.approx(trace.requests[-1].arrival_s / 2)
    # Thinking, from an answer's end to the next turn, goes with the rest.
    turns = assemble([asked(0, session_id="s", duration_s=4.0), asked(10, session_id="s")])
    assert [(r.arrival_s, r.duration_s) for r in scale(turns, speed=2).requests] == [(0.0, 2.0), (5.0, None)]
    with pytest.raises(TraceError, match="arrive at once"):
        scale(assemble([asked(0), asked(0)]), rate=1)


def test_a_cap_worked_by_hand() -> None:
    trace = assemble(
        [
            asked(0, 60, 40),  # 100: fits
            asked(1, 90, 30, hash_ids=(1, 2, 3)),  # prompt cut to 70
            asked(2, 10, 500),  # output cut to 90
            asked(3, 400, 80),  # output to 50, prompt to 50
            asked(4, 99, 2, prompt="text"),  # can't be cut
        ],
        block_tokens=32,
    )
    seen = cap(trace, 100)
    assert [(r.input_length, r.output_length) for r in seen.requests] == [
        (60, 40),
        (70, 30),
        (10, 90),
        (50, 50),
    ]
    assert seen.requests[1].hash_ids == (1, 2, 3)
    assert cap(trace, 94).requests[1].hash_ids == (1, 2)
    # Gone are 20 and 350 of 659 prompt tokens.
    assert seen.notes == (
        "context of 100 tokens: 2 of 5 prompts cut at their end (56.1% of all prompt tokens gone), 2 outputs "
        "shortened, 1 requests with literal text left out",
    )


@pytest.mark.parametrize("context", [2, 500, 4096, 32768])
def test_a_capped_public_trace_fits_and_shares_on(context: int) -> None:
    trace = read_trace(public("mooncake_synthetic.jsonl"))
    seen = cap(trace, context)
    assert max(r.input_length + r.output_length for r in seen.requests) <= context
    assert len(seen.requests) == len(trace.requests)
    long = sum(r.input_length + r.output_length > context for r in trace.requests)
    assert f"context of {context} tokens" in seen.notes[0]
    assert sum(a != b for a, b in zip(seen.requests, trace.requests, strict=True)) == long


def test_what_fits_is_said_to_fit() -> None:
    assert cap(assemble([asked(0)]), 15).notes == ("context of 15 tokens: all 1 requests fit as they are",)
    with pytest.raises(TraceError, match="a token of prompt and one of output"):
        cap(assemble([asked(0)]), 1)
