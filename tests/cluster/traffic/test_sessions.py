"""Which turn waits for which, held against a slow reading of the definition and against public traces."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.traffic.formats.importing import import_trace
from cluster.traffic.sessions import ASSUMED_S_PER_TOKEN, FIRST, Sessions, Turn, remarks, turns
from cluster.traffic.trace import Request, Trace, assemble
from objectives.measurement import Record
from tests.cluster.traffic.encoding import public


def asked(at_s: float, session: str | None = "s", lasted_s: float | None = None, output: int = 10) -> Request:
    return Request(
        arrival_s=at_s, input_length=5, output_length=output, session_id=session, duration_s=lasted_s
    )


def test_a_turn_waits_for_the_one_before_it_and_the_gap_from_its_end_is_thought() -> None:
    trace = assemble([asked(0, lasted_s=4), asked(1, "other", 1), asked(10, lasted_s=2), asked(11, "other")])
    assert turns(trace) == (FIRST, FIRST, Turn(after=0, think_s=6.0), Turn(after=1, think_s=9.0))


def test_requests_without_a_session_wait_for_none() -> None:
    assert turns(assemble([asked(0, None, 1), asked(5, None, 1)])) == (FIRST, FIRST)


def test_calls_made_in_parallel_wait_for_what_they_all_go_on_from() -> None:
    # An agent: 0 asks, 1 and 2 go out at once when it is answered, 3 follows on the later of the two.
    trace = assemble(
        [asked(0, lasted_s=5), asked(6, lasted_s=4), asked(6, lasted_s=8), asked(14.5, lasted_s=1)]
    )
    assert turns(trace) == (
        FIRST,
        Turn(after=0, think_s=1.0),
        Turn(after=0, think_s=1.0),
        Turn(after=2, think_s=0.5),
    )
    assert turns(assemble([asked(0, lasted_s=50), asked(6, lasted_s=4)]))[1] == FIRST


def test_an_end_less_than_a_second_after_the_next_turn_came_is_the_recorders_rounding() -> None:
    assert turns(assemble([asked(0, lasted_s=5.9), asked(5)]))[1] == Turn(after=0, think_s=0.0)
    assert turns(assemble([asked(0, lasted_s=6.1), asked(5)]))[1] == FIRST


def test_where_no_end_is_recorded_it_is_estimated_and_thinking_is_never_negative() -> None:
    one, two, three = turns(assemble([asked(0, output=100), asked(10, output=100), asked(10.5)]))
    assert one == FIRST
    assert two == Turn(after=0, think_s=10 - 100 * ASSUMED_S_PER_TOKEN, estimated=True)
    assert three == Turn(after=1, think_s=0.0, estimated=True)


rows = st.lists(
    st.tuples(
        st.integers(0, 3_000_000),  # gap in microseconds, so that a trace rounds nothing
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(0, 6_000_000),
        st.integers(1, 200),
    ),
    max_size=12,
)


@given(rows)
def test_turns_are_what_the_definition_says_read_slowly(
    drawn: list[tuple[int, str | None, int | None, int]],
) -> None:
    at, requests = 0, []
    for gap, session, lasted, output in drawn:
        at += gap
        requests.append(asked(at / 1e6, session, None if lasted is None else lasted / 1e6, output))
    trace = assemble(requests)
    found = turns(trace)
    assert len(found) == len(trace.requests)
    for index, request in enumerate(trace.requests):
        ends = slow_ends(trace, index)
        if not ends:
            assert found[index] == FIRST
            continue
        end_s, before = max(ends)
        assert found[index].after == before < index
        assert found[index].think_s == max(0.0, request.arrival_s - end_s)
        assert found[index].estimated == (trace.requests[before].duration_s is None)


def slow_ends(trace: Trace, index: int) -> list[tuple[float, int]]:
    """(end, index) of the requests of its session that had ended when this one came."""
    session = [
        other
        for other, request in enumerate(trace.requests)
        if request.session_id is not None and request.session_id == trace.requests[index].session_id
    ]
    ends = []
    for before in session:
        request = trace.requests[before]
        if request.duration_s is not None:
            end_s = request.arrival_s + request.duration_s
        else:
            following = [trace.requests[other].arrival_s for other in session if other > before]
            end_s = min([request.arrival_s + 0.027 * request.output_length, *following[:1]])
        if before < index and end_s <= trace.requests[index].arrival_s + 1.0:
            ends.append((end_s, before))
    return ends


def test_think_times_of_burstgpts_sessions_are_those_worked_by_hand() -> None:
    trace, _ = import_trace(public("burstgpt_excerpt.csv"), keep_text=True)
    own = [
        turn.think_s
        for request, turn in zip(trace.requests, turns(trace), strict=True)
        if request.session_id == "8219e6e1-b261-4978-bf78-0e8703a5fcc1"
    ]
    # Asked at 537, 574 and 640 s (beside a round number), answered in 3, 2 and 3 s.
    assert own == [0.0, 574 - (537 + 3), 640 - (574 + 2)]


def test_think_times_of_wekas_agents_are_those_that_it_recorded() -> None:
    """`think_time` of each request that goes on from the one before it, whose `api_time` is there."""
    compared = 0
    for path in sorted(public("weka/trace_0019.json").parent.glob("*.json")):
        calls = json.loads(path.read_text())["requests"]
        requests = [asked(call["t"], path.stem, call.get("api_time"), call["out"]) for call in calls]
        trace = assemble(requests)
        for index, (call, turn) in enumerate(zip(calls, turns(trace), strict=True)):
            if index and turn.after == index - 1 and not turn.estimated:
                # Its `t` is in whole seconds.
                assert turn.think_s == pytest.approx(call["think_time"], abs=1.0)
                compared += 1
    assert compared == 88


def test_estimated_think_times_are_said_out_loud() -> None:
    trace = assemble([asked(0, output=100), asked(10, lasted_s=1), asked(20)])
    (said,) = remarks(trace, Sessions.CAUSAL, ())
    assert said.startswith("Think times of 1 of 2 turns are estimated")
    assert remarks(assemble([asked(0, lasted_s=1), asked(5)]), Sessions.CAUSAL, ()) == ()


def test_turns_that_did_not_wait_for_their_answer_are_said_out_loud() -> None:
    trace = assemble([asked(0, lasted_s=1), asked(5, lasted_s=1), asked(10, lasted_s=1)])

    def records(*finished_s: float | None) -> list[Record]:
        return [
            Record(request=index, due_s=5.0 * index, sent_s=5.0 * index, finished_s=at)
            for index, at in enumerate(finished_s)
        ]

    (said,) = remarks(trace, Sessions.RECORDED, records(6.0, 9.0, 11.0))
    assert said.startswith("1 of 2 turns left before the answer that they go on from was complete")
    assert remarks(trace, Sessions.RECORDED, records(4.0, None, math.inf)) == ()
