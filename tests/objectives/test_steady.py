import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.measurement import Record
from objectives.slo import Slo
from objectives.steady import steady_window, still_growing, unsettled
from objectives.summary import summarise
from tests.objectives.replays import answered, failed


def served_in_turn(n: int, *, every_s: float, service_s: float, tokens: int = 10) -> list[Record]:
    """One server: a request gets its tokens evenly over its service, and waits for the one before it."""
    free_s, records = 0.0, []
    for i in range(n):
        start_s = max(free_s, i * every_s)
        free_s = start_s + service_s
        gap_s = service_s / tokens
        records.append(
            answered(i, due_s=i * every_s, ttft_s=start_s + gap_s - i * every_s, gap_s=gap_s, tokens=tokens)
        )
    return records


def with_batch(n: int, *, every_s: float, took_s: float, tokens: int = 10) -> list[Record]:
    """Requests that never wait, and take as long whoever else is there."""
    return [
        answered(i, due_s=i * every_s, ttft_s=took_s / tokens, gap_s=took_s / tokens, tokens=tokens)
        for i in range(n)
    ]


def rates(records: list[Record]) -> dict[str, float]:
    metrics = summarise(records, [], slo=Slo(ttft_s=1.0), max_num_seqs=None).metrics
    return {name: estimate.value for name, estimate in metrics.items()}


def test_a_short_light_replay_is_not_slowed_by_its_tail() -> None:
    # 50 requests over 4.9 s that take 1 s each: the last token comes at 5.9 s, a fifth later.
    measured = rates(with_batch(50, every_s=0.1, took_s=1.0))
    assert measured["throughput_rps"] == pytest.approx(10, rel=0.03)
    assert measured["goodput_tokens_per_s"] == pytest.approx(100, rel=0.03)


def test_an_engine_that_keeps_up_never_serves_more_than_was_offered() -> None:
    measured = rates(with_batch(50, every_s=0.1, took_s=0.2))
    assert measured["goodput_rps"] <= measured["offered_rps"]


def test_an_overloaded_engine_has_the_throughput_that_it_can_serve() -> None:
    # 10 requests/s for an engine that serves 8; what is worked off after the last due time is worked off
    # at 8 a second too.
    measured = rates(served_in_turn(400, every_s=0.1, service_s=0.125))
    assert measured["throughput_rps"] == pytest.approx(8, rel=0.01)
    # TTFT grows by 0.025 s a request: some 40 are within the 1 s, of 400 that took 50 s.
    assert measured["goodput_rps"] == pytest.approx(40 / 50, rel=0.1)


def test_a_replay_as_short_as_its_requests_counts_the_time_to_work_them_off_and_says_so() -> None:
    records = with_batch(50, every_s=0.1, took_s=10.0)
    window = steady_window(records)
    assert window.tail_share == 1
    assert window.end_s == pytest.approx(4.9 + 10.0)
    assert rates(records)["throughput_rps"] == pytest.approx(50 / 14.9)
    # 4.9 s of requests, median 10 s: three times that would leave the tail out.
    assert unsettled(records) == (
        "no steady state: half of the requests took 10 s or more, and they came within 4.9 s "
        "(30 s would do): rates count the time to work them off, and are low"
    )


def test_a_steady_replay_has_no_such_warning() -> None:
    assert unsettled(with_batch(50, every_s=0.1, took_s=1.0)) is None


def test_requests_all_due_at_once_are_nothing_but_tail() -> None:
    records = [answered(i, due_s=3.0, ttft_s=1.0 + i, tokens=2) for i in range(5)]
    window = steady_window(records)
    assert window.start_s == 3.0
    assert window.end_s == pytest.approx(3 + 5.02)
    assert window.rate(5) == pytest.approx(5 / 5.02)


def test_a_failure_after_the_last_answer_is_in_the_window() -> None:
    assert steady_window([answered(0, due_s=0), failed(1, due_s=100)]).end_s == 100


@settings(deadline=None)
@given(
    took_s=st.lists(st.floats(0.01, 20), min_size=12, max_size=40),
    slower=st.floats(1.0, 3.0),
)
def test_slower_requests_never_raise_a_rate(took_s: list[float], slower: float) -> None:
    def replay(factor: float) -> list[Record]:
        return [
            answered(i, due_s=0.5 * i, ttft_s=took * factor / 4, gap_s=took * factor / 4, tokens=4)
            for i, took in enumerate(took_s)
        ]

    n = len(took_s)
    before, after = steady_window(replay(1.0)).rate(n), steady_window(replay(slower)).rate(n)
    # From no tail to all of it, one more gap counts: 1 / (n - 1) at the most.
    assert after <= before * (1 + 1 / (n - 1))


@settings(deadline=None)
@given(took_s=st.floats(0.01, 20))
def test_no_line_is_crossed_with_a_jump(took_s: float) -> None:
    rate = [
        steady_window(with_batch(40, every_s=0.1, took_s=took)).rate(40) for took in (took_s, took_s + 1e-6)
    ]
    assert rate[0] == pytest.approx(rate[1], rel=1e-4)


def test_a_queue_that_grows_to_the_end_is_said_to() -> None:
    said = still_growing(served_in_turn(200, every_s=0.1, service_s=0.125))
    assert said is not None
    assert "a longer trace would give a lower capacity" in said


def test_a_queue_that_fills_and_stays_is_not() -> None:
    assert still_growing(with_batch(200, every_s=0.1, took_s=3.0)) is None


def test_random_arrivals_well_below_saturation_seldom_pass_for_a_growing_queue() -> None:
    alarms = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        due = np.cumsum(draw.exponential(0.1, 300))
        free, records = 0.0, []
        for i, at in enumerate(due):
            free = max(free, at) + draw.exponential(0.06)
            records.append(answered(i, due_s=float(at), ttft_s=free - float(at), gap_s=0.0, tokens=1))
        alarms += still_growing(records) is not None
    assert alarms <= 5


def test_too_few_requests_have_no_trend() -> None:
    assert still_growing(served_in_turn(39, every_s=0.1, service_s=1.0)) is None
