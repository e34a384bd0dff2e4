"""How much a server in use is asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.measure import Fixed
from tests.tuner.verify.promises import PROMISED, RECIPE
from tuner.mistakes import Mistake
from tuner.verify.traffic import held_out
from tuner.verify_endpoint import REQUESTS, judgeable, root_of, slowed
from tuner.verify_plan import VerifyPlan


def plan(requests: int = 30) -> VerifyPlan:
    traffic = replace(PROMISED.traffic, make={**RECIPE, "requests": requests}, speed=2.0)
    promised = replace(PROMISED, traffic=traffic)
    return VerifyPlan(
        promised=promised,
        folder=Path("nowhere"),
        source="endpoint",
        traffic=held_out(promised, None, pairs=2, draw=0, tokenizer="some/model"),
        draw=0,
        trace=None,
        with_control=False,
        stress=False,
        is_control_itself=False,
    )


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("https://host/v1/", "https://host"),
        ("https://host/some/path/v1", "https://host/some/path"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_a_url_is_brought_to_its_root(given: str, root: str) -> None:
    assert root_of(given) == root


@pytest.mark.parametrize("given", ["host:8000", "file:///etc", "http://", "http://h:x", "http://h/?a=1"])
def test_what_is_no_server_is_refused(given: str) -> None:
    with pytest.raises(Mistake, match="--endpoint"):
        root_of(given)


def test_a_name_and_password_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(Mistake) as refused:
        root_of("http://me:secret@host")
    assert "secret" not in str(refused.value)


def test_requests_leave_no_faster_than_allowed() -> None:
    for workload in slowed(plan(), 1.5).traffic.workloads:
        requests = workload.trace.requests
        assert (len(requests) - 1) / (requests[-1].arrival_s / workload.speed) == pytest.approx(1.5)


def test_more_than_was_promised_is_never_played() -> None:
    before = plan()
    after = slowed(before, 10_000)
    assert [one.speed for one in after.traffic.workloads] == [2.0, 2.0]
    assert after.remarks == ()


def test_less_load_than_promised_is_said() -> None:
    # The recipe's 10 requests/s at speed 2 are 20 requests/s; 1 of them is 5 %.
    (remark,) = slowed(plan(), 1.0).remarks
    assert "5% of the load that the promise is of" in remark


def test_a_replay_is_short() -> None:
    assert {len(one.trace.requests) for one in slowed(plan(requests=500), 1.0).traffic.workloads} == {
        REQUESTS
    }


def test_rates_are_not_judged_where_the_load_is_not_there() -> None:
    promised, left_out = judgeable(PROMISED)
    assert promised.objectives == ("tpot_p95",)
    assert promised.control is None
    assert promised.measure == Fixed()
    assert left_out == ("goodput: it takes the full load, which a server in use is not put under",)
