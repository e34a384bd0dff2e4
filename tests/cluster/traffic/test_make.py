"""Made traces against what their recipes ask for; the figures are computed here, not by `show`."""

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping

import pytest

from cluster.traffic.make import Recipe, make_trace, recipe_from
from cluster.traffic.trace import Trace, TraceError

PLAIN: Mapping[str, object] = {"requests": 4000, "rate": 8.0, "input_mean": 300, "output_mean": 40}


def recipe(**figures: object) -> Recipe:
    return recipe_from({**PLAIN, **figures})


def within(values: list[int], mean: float, *, errors: float = 4) -> bool:
    """Whether a sample's mean is within so many standard errors of what it should be."""
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(set(values)) > 1 else 0
    return abs(statistics.fmean(values) - mean) <= errors * spread + 1e-9


def inputs(trace: Trace) -> list[int]:
    return [request.input_length for request in trace.requests]


def outputs(trace: Trace) -> list[int]:
    return [request.output_length for request in trace.requests]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    trace = make_trace(recipe(burstiness=burstiness))
    arrivals = [request.arrival_s for request in trace.requests]
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    assert arrivals[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 8, rel=1e-6)
    cv = statistics.pstdev(gaps) / statistics.fmean(gaps)
    assert cv == pytest.approx(1 / math.sqrt(burstiness), rel=0.12)


@pytest.mark.parametrize(("cv", "cap"), [(0.0, 5000), (0.4, 100_000), (1.0, 600), (2.0, 400)])
def test_lengths_keep_their_mean_under_a_cap(cv: float, cap: int) -> None:
    trace = make_trace(recipe(input_cv=cv, input_max=cap, output_cv=cv, output_max=cap))
    assert within(inputs(trace), 300)
    assert within(outputs(trace), 40)
    assert min(inputs(trace)) >= 1
    assert max(inputs(trace)) <= cap


def test_lengths_have_the_variation_where_no_cap_cuts_it() -> None:
    lengths = inputs(make_trace(recipe(requests=20_000, input_cv=0.6)))
    assert statistics.pstdev(lengths) / statistics.fmean(lengths) == pytest.approx(0.6, rel=0.05)


def test_short_lengths_are_not_rounded_away_from_their_mean() -> None:
    trace = make_trace(recipe(requests=20_000, output_mean=1.7, output_cv=1.0))
    assert within(outputs(trace), 1.7)
    assert set(outputs(make_trace(recipe(output_mean=1)))) == {1}


@pytest.mark.parametrize("share", [0.1, 0.37, 0.8])
def test_shared_prefixes_make_up_their_share_of_the_prompts(share: float) -> None:
    asked = recipe(shared_prefix=share, prefixes=5, block_tokens=16, input_cv=0.2)
    trace = make_trace(asked)
    # A block belongs to a shared prefix if more than one request has it: all others are private.
    users = Counter(itertools.chain.from_iterable(request.hash_ids for request in trace.requests))
    common = sum(16 for request in trace.requests for hash_id in request.hash_ids if users[hash_id] > 1)
    assert common / sum(inputs(trace)) == pytest.approx(share, rel=0.02)
    assert within(inputs(trace), 300)
    lengths = inputs(trace)
    assert statistics.pstdev(lengths) / statistics.fmean(lengths) == pytest.approx(0.2, rel=0.1)


def test_prefixes_are_used_by_rank() -> None:
    trace = make_trace(recipe(requests=20_000, shared_prefix=0.5, prefixes=4, block_tokens=16))
    first = Counter(request.hash_ids[0] for request in trace.requests)
    counts = [count for _, count in first.most_common()]
    whole = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert [c / 20_000 for c in counts] == pytest.approx([1 / k / whole for k in (1, 2, 3, 4)], abs=0.015)


def test_sessions_have_their_turns_their_think_time_and_growing_prompts() -> None:
    asked = recipe(requests=20_000, input_mean=600, turns=3, think_s=10, block_tokens=16, shared_prefix=0.2)
    trace = make_trace(asked)
    sessions: dict[str, list[int]] = {}
    for index, request in enumerate(trace.requests):
        assert request.session_id is not None
        sessions.setdefault(request.session_id, []).append(index)
    assert len(trace.requests) / len(sessions) == pytest.approx(3, rel=0.05)
    assert statistics.fmean(inputs(trace)) == pytest.approx(600, rel=0.05)
    waits: list[float] = []
    for indices in sessions.values():
        for before, after in itertools.pairwise(trace.requests[i] for i in indices):
            assert after.input_length > before.input_length + before.output_length
            assert after.hash_ids[: len(before.hash_ids)] == before.hash_ids
            waits.append(after.arrival_s - before.arrival_s)
    assert statistics.fmean(waits) == pytest.approx(10, rel=0.05)


def test_a_session_ends_where_its_prompt_would_be_too_long() -> None:
    trace = make_trace(recipe(input_mean=600, input_max=900, turns=4))
    assert max(inputs(trace)) <= 900


def test_blocks_are_as_many_as_prompts_need() -> None:
    for figures in ({}, {"block_tokens": 16, "shared_prefix": 0.5}, {"block_tokens": 7, "turns": 2.5}):
        trace = make_trace(recipe(requests=500, **figures))
        size = trace.block_tokens
        assert all(len(r.hash_ids) == -(-r.input_length // size) for r in trace.requests)


def test_the_same_recipe_gives_the_same_trace_and_another_seed_another() -> None:
    asked = recipe(requests=100, turns=2, shared_prefix=0.3, block_tokens=16)
    assert make_trace(asked) == make_trace(asked)
    assert make_trace(asked).digest != make_trace(asked.model_copy(update={"seed": 1})).digest


def test_a_recipe_gives_this_trace_on_every_machine() -> None:
    # Written down once: a change of the generator, ours or numpy's, must not pass unnoticed.
    trace = make_trace(recipe(requests=50, turns=2, shared_prefix=0.3, prefixes=3, block_tokens=16))
    assert trace.digest == "d20087accf880331440177d4ee96db1e4af7e59543a727425b97c42caada1595"


def test_changing_one_figure_leaves_the_draws_of_the_others() -> None:
    base, other = make_trace(recipe(requests=200)), make_trace(recipe(requests=200, output_mean=80))
    assert [dataclasses.replace(r, output_length=1) for r in base.requests] == [
        dataclasses.replace(r, output_length=1) for r in other.requests
    ]


def test_one_request_is_a_trace() -> None:
    (only,) = make_trace(recipe(requests=1)).requests
    assert only.arrival_s == 0


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"inut_mean": 3}, "unknown key 'inut_mean': is it 'input_mean'?"),
        ({"rate": 0}, "rate: Input should be greater than or equal to 0.001, got 0"),
        ({"rate": math.nan}, "rate: Input should be less than or equal to 1000000, got nan"),
        ({"requests": "many"}, "requests: Input should be a valid integer"),
        ({"input_max": 200}, "input_mean 300 must be below input_max 200"),
        ({"shared_prefix": 0.1}, "less than one block"),
        ({"turns": 9}, "cannot hold 9 turns with answers of 40 tokens"),
        ({"turns": 1.5, "input_max": 310, "shared_prefix": 0.9, "block_tokens": 64}, "leaves too little"),
    ],
)
def test_an_impossible_recipe_says_why(figures: dict[str, object], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        recipe(**figures)
    assert any(said in fault for fault in caught.value.faults), caught.value.faults
    assert all(fault.startswith("recipe: ") for fault in caught.value.faults)


def test_a_recipe_without_its_figures_says_which() -> None:
    with pytest.raises(TraceError) as caught:
        recipe_from({"rate": 1})
    assert caught.value.faults == tuple(
        f"recipe: {name} is missing" for name in ("requests", "input_mean", "output_mean")
    )
