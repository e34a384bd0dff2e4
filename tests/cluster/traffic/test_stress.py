"""The same requests at other times."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.stress import burst, permuted
from cluster.traffic.trace import Request, Trace, assemble


def chat(turns: float = 1.0, seed: int = 0) -> Trace:
    figures = {"requests": 60, "rate": 5, "input_mean": 200, "output_mean": 20, "turns": turns, "seed": seed}
    return make_trace(recipe_from({**figures, "think_s": 1.0}))


def lengths(trace: Trace) -> Counter[tuple[int, int]]:
    return Counter((request.input_length, request.output_length) for request in trace.requests)


@given(st.integers(0, 50), st.integers(0, 50))
def test_permuting_keeps_the_requests_and_the_times_of_sessions_without_turns(drawn: int, seed: int) -> None:
    trace = chat(seed=seed)
    moved = permuted(trace, seed=drawn)
    assert lengths(moved) == lengths(trace)
    before, after = ([round(one.arrival_s, 6) for one in each.requests] for each in (trace, moved))
    assert after == pytest.approx(before, abs=2e-6)


def test_permuting_draws_another_order() -> None:
    trace = chat()
    orders = [[one.input_length for one in permuted(trace, seed=seed).requests] for seed in (1, 2)]
    assert orders[0] != orders[1]
    assert orders[0] != [one.input_length for one in trace.requests]


def test_a_sessions_turns_keep_their_gaps() -> None:
    trace = chat(turns=3.0)

    def gaps(of: Trace) -> dict[str | None, list[float]]:
        times: dict[str | None, list[float]] = {}
        for one in of.requests:
            if one.session_id is not None:
                times.setdefault(one.session_id, []).append(one.arrival_s)
        return {name: [round(at - each[0], 4) for at in each] for name, each in times.items()}

    before, after = gaps(trace), gaps(permuted(trace, seed=3))
    assert before.keys() == after.keys()
    for name, each in before.items():
        assert after[name] == pytest.approx(each, abs=2e-4)


def test_the_middle_fifth_comes_in_a_quarter_of_its_time() -> None:
    trace = assemble([Request(arrival_s=float(at), input_length=1, output_length=1) for at in range(101)])
    times = [one.arrival_s for one in burst(trace).requests]
    # From 40 s to 60 s, 21 requests: 20 s become 5, and nobody comes from 45 s on.
    assert times[40:61] == pytest.approx([40 + 0.25 * k for k in range(21)])
    assert times[:40] == [float(at) for at in range(40)]
    assert times[61:] == [float(at) for at in range(61, 101)]
