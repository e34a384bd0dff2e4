"""Whose turn it is."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.service.jobs import START, job, running
from tuner.service.fairness import in_turn
from tuner.service.jobs import Job


def _users(jobs: tuple[Job, ...]) -> list[str]:
    return [one.user for one in jobs]


def test_who_has_fewer_running_comes_first_however_late_they_came() -> None:
    waiting = [job("ana", 1), job("ana", 2), job("ben", 3)]
    assert _users(in_turn(waiting, [running(job("ana", 0), "simulated 1")], {})) == ["ben", "ana"]


def test_who_was_served_longest_ago_comes_first_and_who_never_was_before_all() -> None:
    waiting = [job("ana", 1), job("ben", 2), job("cy", 3)]
    served = {"ana": START + timedelta(seconds=9), "ben": START}
    assert _users(in_turn(waiting, [], served)) == ["cy", "ben", "ana"]


def test_a_users_own_jobs_come_in_order() -> None:
    assert [one.sequence for one in in_turn([job("ana", 5), job("ana", 2), job("ana", 9)], [], {})] == [2]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), st.data())
def test_nobody_waits_for_more_than_one_job_of_each_other_user(
    owners: list[str], data: st.DataObject
) -> None:
    arriving = [job(user, number) for number, user in enumerate(owners)]
    waiting: list[Job] = []
    served: dict[str, datetime] = {}
    starts: list[Job] = []
    waits: dict[str, list[str]] = {}  # users started while a user's oldest job waited
    while arriving or waiting:
        come = data.draw(st.integers(0 if waiting else 1, max(len(arriving), 1)))
        waiting += arriving[:come]
        arriving = arriving[come:]
        for one in waiting:
            waits.setdefault(one.user, [])
        (first, *_) = in_turn(waiting, [], served)
        waiting.remove(first)
        starts.append(first)
        served[first.user] = START + timedelta(hours=len(starts))
        before = waits.pop(first.user)
        assert len(before) == len(set(before))
        for others in waits.values():
            others.append(first.user)
    assert sorted(one.sequence for one in starts) == list(range(len(owners)))
