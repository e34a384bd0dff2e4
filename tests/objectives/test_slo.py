import pytest

from objectives.slo import Slo
from tests.objectives.replays import answered, failed


def test_limits_of_a_space_become_seconds_and_a_share() -> None:
    slo = Slo.from_limits({"ttft_p90_ms": 500, "tpot_p90_ms": 40})
    assert slo == Slo(ttft_s=0.5, tpot_s=0.04, attainment=0.9)


def test_limits_survive_the_round_trip() -> None:
    limits = {"ttft_p99_ms": 500.0, "e2e_p99_ms": 9000.0}
    assert Slo.from_limits(limits).limits() == limits


def test_without_limits_every_answered_request_is_good_and_no_failed_one() -> None:
    slo = Slo.from_limits({})
    assert slo.met_by(answered(0, due_s=0, ttft_s=1e6))
    assert not slo.met_by(failed(1, due_s=0))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"ttft_p95_s": 1}, "unknown limit 'ttft_p95_s'; did you mean 'ttft_p95_ms'?"),
        ({"itl_p95_ms": 1}, "unknown limit 'itl_p95_ms'; did you mean 'ttft_p95_ms'?"),
        ({"zzz": 1}, "unknown limit 'zzz'; limits look like 'ttft_p95_ms'"),
        (
            {"ttft_p95_ms": 1, "tpot_p99_ms": 1},
            "limits of one SLO share one percentile: 'ttft_p95_ms' and 'tpot_p99_ms' have two, "
            "so write 'tpot_p95_ms'",
        ),
        ({"ttft_p95_ms": 0}, "ttft_p95_ms: a limit is a positive number of milliseconds, got 0"),
        ({"ttft_p95_ms": float("nan")}, "ttft_p95_ms: a limit is a positive number of milliseconds, got nan"),
        ({"ttft_p95_ms": True}, "ttft_p95_ms: a limit is a positive number of milliseconds, got True"),
        ({"ttft_p95_ms": "5"}, "ttft_p95_ms: a limit is a positive number of milliseconds, got '5'"),
    ],
)
def test_a_bad_limit_is_told_in_one_line(limits: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared whole below
        Slo.from_limits(limits)
    assert str(caught.value) == said


def test_a_request_must_meet_all_limits_at_once() -> None:
    slo = Slo(ttft_s=0.2, tpot_s=0.03)
    assert slo.met_by(answered(0, due_s=3, ttft_s=0.19, gap_s=0.02))
    assert not slo.met_by(answered(0, due_s=3, ttft_s=0.21, gap_s=0.02))
    assert not slo.met_by(answered(0, due_s=3, ttft_s=0.19, gap_s=0.04))


def test_one_output_token_cannot_miss_a_limit_on_tpot() -> None:
    assert Slo(tpot_s=0.001).met_by(answered(0, due_s=0, tokens=1))
