import csv
import itertools
from collections import Counter
from datetime import datetime

import pytest

from cluster.traffic.formats.importing import import_trace
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.pace import Service, concurrency, pace
from cluster.traffic.trace import Request, Trace, assemble
from tests.cluster.traffic.encoding import public


def at(*arrivals: float, output: int = 11) -> Trace:
    return assemble(Request(arrival_s=a, input_length=5, output_length=output) for a in arrivals)


def test_rates_are_counts_over_windows_of_a_round_length() -> None:
    seen = pace(at(0, 1, 1.5, 4.9, 9), windows=5)  # 9 s in 5 windows: 1.8 s, so 2 s
    assert (seen.window_s, seen.rates, seen.peak) == (2.0, (1.5, 0.0, 0.5, 0.0, 0.5), 1.5)
    # counts of the whole windows 3, 0, 1, 0: mean 1, variance (4 + 1 + 0 + 1) / 3 = 2
    assert seen.dispersion == pytest.approx(2.0)


def test_twice_the_speed_doubles_every_rate() -> None:
    trace = at(0, 1, 4, 8, 20)
    assert pace(trace, speed=2, windows=10).rates == tuple(2 * r for r in pace(trace, windows=10).rates)


def test_poisson_arrivals_have_a_dispersion_of_one_and_bursts_more() -> None:
    base = {"requests": 20_000, "rate": 10, "input_mean": 10, "output_mean": 5}
    assert pace(make_trace(recipe_from(base)), windows=400).dispersion == pytest.approx(1, abs=0.2)
    # Counts over long windows vary as the gaps' squared variation: 1 / burstiness.
    bursty = make_trace(recipe_from({**base, "burstiness": 0.25}))
    assert pace(bursty, windows=400).dispersion == pytest.approx(4, rel=0.2)


def test_concurrency_worked_by_hand() -> None:
    # Each takes 1 + 10 · 0.1 = 2 s. There: one from 0 s, two from 1, one from 2, none from 3, one from 6.
    seen = concurrency(at(0, 1, 6), Service(ttft_s=1, tpot_s=0.1))
    assert seen.mean == pytest.approx(6 / 8)
    assert (seen.p50, seen.p90, seen.p99, seen.peak) == (1, 2, 2, 2)


def test_a_request_that_ends_as_another_comes_leaves_its_slot() -> None:
    assert concurrency(at(0, 2, 4), Service(ttft_s=1, tpot_s=0.1)).peak == 1


def test_mean_concurrency_is_littles_law() -> None:
    trace = make_trace(recipe_from({"requests": 3000, "rate": 20, "input_mean": 10, "output_mean": 40}))
    service = Service(ttft_s=0.3, tpot_s=0.02)
    taken = [0.3 + 0.02 * (r.output_length - 1) for r in trace.requests]
    last = max(r.arrival_s / 3 + s for r, s in zip(trace.requests, taken, strict=True))
    assert concurrency(trace, service, speed=3).mean == pytest.approx(sum(taken) / last)


def test_concurrency_percentiles_are_those_found_by_looking_every_millisecond() -> None:
    trace = make_trace(recipe_from({"requests": 60, "rate": 10, "input_mean": 10, "output_mean": 40}))
    service = Service(ttft_s=0.2, tpot_s=0.01)
    spans = [(r.arrival_s, r.arrival_s + service.seconds(r)) for r in trace.requests]
    looks = [k / 1000 for k in range(int(max(end for _, end in spans) * 1000))]
    levels = sorted(sum(start <= t < end for start, end in spans) for t in looks)
    seen = concurrency(trace, service)
    assert seen.p50 == levels[len(levels) // 2]
    assert seen.p90 == levels[int(len(levels) * 0.9)]


def test_requests_at_one_instant_are_all_at_once() -> None:
    seen = concurrency(at(0, 0, 0, output=1), Service(ttft_s=0, tpot_s=1))
    assert (seen.mean, seen.peak) == (3, 3)
    assert pace(at(0, 0, 0)).rates == (3.0,)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be a positive number"):
        pace(at(0, 1), speed=speed)


def test_the_public_azure_trace_has_the_minutes_that_its_timestamps_say() -> None:
    path = public("azure_llm_2023_conv.csv")
    with path.open() as file:
        stamps = [
            datetime.strptime(row["TIMESTAMP"][:-1], "%Y-%m-%d %H:%M:%S.%f")  # noqa: DTZ007
            for row in csv.DictReader(file)
        ]
    first = min(stamps)
    seconds = [(stamp - first).total_seconds() for stamp in stamps]
    seen = pace(import_trace(path)[0], windows=60)
    counts = Counter(int(s // seen.window_s) for s in seconds)
    assert seen.window_s == 100.0  # 3,500 s in 60 windows, rounded up
    assert seen.rates == tuple(counts[k] / 100 for k in range(len(seen.rates)))
    assert all(a <= b for a, b in itertools.pairwise(sorted(seconds)))
