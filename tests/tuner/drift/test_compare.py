import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.traffic.pace import Service
from cluster.traffic.trace import Request, Trace
from tuner.drift.compare import changes, comparable, distances, moved
from tuner.drift.shapes import Change


def trace(
    seed: int, *, n: int = 300, rate: float = 4.0, length: float = 200.0, output: float = 50.0
) -> Trace:
    """Poisson arrivals, gamma lengths, nothing shared."""
    rng = np.random.default_rng(seed)
    arrivals = np.concatenate(([0.0], np.cumsum(rng.exponential(1 / rate, n - 1))))
    return Trace(
        requests=tuple(
            Request(
                arrival_s=float(at),
                input_length=1 + int(rng.gamma(4.0, length / 4)),
                output_length=1 + int(rng.gamma(4.0, output / 4)),
            )
            for at in arrivals
        )
    )


def named(found: tuple[Change, ...], name: str) -> Change:
    return next(change for change in found if change.name == name)


def test_a_trace_has_not_moved_from_itself() -> None:
    same = trace(0)
    found = changes(same, same)
    assert all(change.change.value == (1.0 if change.kind == "ratio" else 0.0) for change in found)
    assert not any(change.told for change in found)
    assert all(distance.largest == 0 and distance.p == 1 for distance in distances(same, same))
    assert not moved(found, distances(same, same))


def test_properties_are_those_of_the_traces() -> None:
    before, now = trace(0), trace(1, rate=8.0, length=400.0)
    found = changes(before, now)
    rate = named(found, "rate")
    span = before.requests[-1].arrival_s
    assert rate.before.value == pytest.approx(299 / span)
    assert rate.change.value == pytest.approx(rate.now.value / rate.before.value)
    mean = np.mean([request.input_length for request in now.requests])
    assert named(found, "prompt, mean").now.value == pytest.approx(mean)
    tail = np.percentile([request.output_length for request in now.requests], 95)
    assert named(found, "output, p95").now.value == pytest.approx(tail)


def test_a_rate_and_lengths_that_doubled_are_told_and_outputs_that_did_not_are_not() -> None:
    before, now = trace(0), trace(1, rate=8.0, length=400.0)
    found, apart = changes(before, now), distances(before, now)
    assert {change.name for change in found if change.matters} == {"rate", "prompt, mean", "prompt, p95"}
    assert {distance.name for distance in apart if distance.p < 0.01} == {"prompt", "gaps between arrivals"}
    assert moved(found, apart)


def test_chance_alone_is_seldom_told() -> None:
    pairs = [changes(trace(2 * seed), trace(2 * seed + 1)) for seed in range(16)]
    told = sum(change.told for found in pairs for change in found)
    # 16 pairs, 7 properties at 5 %: 5.6 expected. Three deviations above, as if they were independent.
    assert told <= 5.6 + 3 * math.sqrt(112 * 0.05 * 0.95)


def test_p_values_of_chance_alone_are_not_all_small() -> None:
    small = sum(d.p < 0.05 for seed in range(10) for d in distances(trace(2 * seed), trace(2 * seed + 1)))
    # 30 tests at 5 %: 1.5 expected.
    assert small <= 1.5 + 3 * math.sqrt(30 * 0.05 * 0.95)


def test_a_small_change_of_a_long_trace_is_told_and_does_not_matter() -> None:
    before, now = trace(0, n=6000), trace(1, n=6000, length=210.0)
    prompt = named(changes(before, now), "prompt, mean")
    assert prompt.told
    assert not prompt.matters


def test_prefixes_that_are_no_longer_shared_are_told() -> None:
    def shared(share: bool) -> Trace:
        made = trace(0)
        return Trace(
            requests=tuple(
                dataclasses.replace(r, input_length=1024, hash_ids=(0 if share else 2 * i, 2 * i + 1))
                for i, r in enumerate(made.requests)
            ),
            block_tokens=512,
        )

    change = named(changes(shared(True), shared(False)), "prefix share")
    # The first block of all requests but the first one lies in an earlier prompt: half of their tokens.
    assert change.before.value == pytest.approx(0.5 * 299 / 300)
    assert change.now.value == 0
    assert change.kind == "difference"
    assert change.matters


def test_concurrency_is_littles_law() -> None:
    before = trace(0)
    service = Service(ttft_s=0.5, tpot_s=0.02)
    change = named(
        changes(before, before, service=(service, Service(ttft_s=1.0, tpot_s=0.04))), "concurrency"
    )
    seconds = [service.seconds(request) for request in before.requests[:-1]]
    assert change.before.value == pytest.approx(sum(seconds) / before.requests[-1].arrival_s)
    assert change.change.value == pytest.approx(2.0)


def test_evenly_paced_arrivals_have_a_burstiness_of_nothing() -> None:
    even = Trace(
        requests=tuple(Request(arrival_s=float(i), input_length=8, output_length=4) for i in range(50))
    )
    change = named(changes(even, trace(0)), "burstiness")
    assert change.before.value == 0
    assert change.kind == "difference"
    assert change.matters


@settings(max_examples=10, deadline=None)
@given(
    n=st.integers(min_value=20, max_value=80),
    m=st.integers(min_value=20, max_value=80),
    seed=st.integers(0, 99),
)
def test_intervals_hold_their_values_and_p_is_a_probability(n: int, m: int, seed: int) -> None:
    before, now = trace(seed, n=n), trace(seed + 1, n=m, rate=2.0)
    for change in changes(before, now):
        for one in (change.before, change.now, change.change):
            assert one.low is not None
            assert one.high is not None
            assert one.low <= one.high
    assert all(0 < distance.p <= 1 and 0 <= distance.largest <= 1 for distance in distances(before, now))


def test_traces_too_short_or_all_at_once_are_not_comparable() -> None:
    assert comparable(trace(0))
    assert not comparable(trace(0, n=10))
    at_once = Trace(
        requests=tuple(Request(arrival_s=0.0, input_length=8, output_length=4) for _ in range(50))
    )
    assert not comparable(at_once)
