"""A replay is void when its own client moved the numbers that are printed, and not before."""

import math
from collections.abc import Sequence

import pytest

from cluster.node.validity import void
from objectives.measurement import Record


def record(*, ttft_s: float, late_s: float = 0.0, error: str | None = None) -> Record:
    """A request whose first token came so long after it was due, and which left so late."""
    return Record(
        request=0, due_s=1.0, sent_s=1.0 + late_s, chunk_s=(1.0 + ttft_s,), chunk_tokens=(1,), error=error
    )


def judged(
    records: Sequence[Record],
    *,
    lags_s: Sequence[float] = (0.0,),
    cpu_share: float = 0.1,
    faults: Sequence[str] = (),
) -> str | None:
    return void(records, lags_s=lags_s, cpu_share=cpu_share, faults=faults)


def test_a_median_may_be_moved_by_ten_milliseconds_or_five_percent() -> None:
    # All alike, so TTFT from due and from sent differ by exactly the lateness.
    assert judged([record(ttft_s=0.05, late_s=0.0099)] * 10) is None
    assert judged([record(ttft_s=0.05, late_s=0.0101)] * 10) == (
        "the client sent late: TTFT p50 is 50.0 ms from due and 39.9 ms from sent, "
        "allowed 10.0 ms of difference"
    )
    assert judged([record(ttft_s=1.0, late_s=0.049)] * 10) is None
    assert judged([record(ttft_s=1.0, late_s=0.051)] * 10) is not None


def test_one_hiccup_in_fifty_changes_nothing_that_is_printed() -> None:
    records = [record(ttft_s=0.1 + 0.001 * n) for n in range(49)]
    assert judged([*records, record(ttft_s=0.2, late_s=0.063)]) is None


def test_a_tail_moved_by_the_client_voids() -> None:
    # Every tenth request 100 ms late: the median stays, p95 goes from 0.1 to 0.2 s.
    records = [record(ttft_s=0.2, late_s=0.1) if n % 10 == 0 else record(ttft_s=0.1) for n in range(50)]
    assert "TTFT p95 is 200.0 ms from due and 100.0 ms from sent" in str(judged(records))


@pytest.mark.parametrize(("requests", "is_void"), [(200, False), (300, True)])
def test_a_p99_moved_by_the_client_voids_where_it_is_printed(requests: int, is_void: bool) -> None:
    # One in fifty late: p95 stays. The p99 is printed from 299 requests on.
    records = [record(ttft_s=0.2, late_s=0.1) if n % 50 == 0 else record(ttft_s=0.1) for n in range(requests)]
    assert (judged(records) is not None) is is_void


def test_a_failed_request_has_no_latency_to_blur() -> None:
    assert judged([record(ttft_s=0.1, late_s=0.1, error="HTTP 500: no")] * 10) is None
    assert judged([]) is None


def test_a_request_that_never_left_is_no_lateness() -> None:
    unsent = Record(request=0, due_s=1.0, sent_s=None, error="the replay was stopped")
    assert unsent.lateness_s == math.inf
    assert judged([unsent, *[record(ttft_s=0.1)] * 10]) is None


@pytest.mark.parametrize(
    ("lag_s", "void_at_100_ms", "void_at_1_s"), [(0.009, 0, 0), (0.02, 1, 0), (0.06, 1, 1)]
)
def test_a_loop_that_lags_stamps_late(lag_s: float, void_at_100_ms: int, void_at_1_s: int) -> None:
    lags_s = [0.0] * 90 + [lag_s] * 10
    assert (judged([record(ttft_s=0.1)], lags_s=lags_s) is not None) == void_at_100_ms
    assert (judged([record(ttft_s=1.0)], lags_s=lags_s) is not None) == void_at_1_s


def test_one_lag_in_a_hundred_is_no_verdict() -> None:
    assert judged([record(ttft_s=0.1)], lags_s=[0.0] * 99 + [1.0]) is None


def test_a_full_core_or_missing_handles_void_a_replay() -> None:
    assert "short of CPU: it used 90%" in str(judged([record(ttft_s=0.1)], cpu_share=0.9))
    assert (
        judged([], faults=["out of local ports"])
        == "the client could not send 1 request(s): out of local ports"
    )
