"""Buckets against the observations that fell into them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.histogram import between, bracket
from objectives.measurement import Histogram

BOUNDS = (0.1, 0.25, 1.0, 2.5, math.inf)


def counted(observed: list[float]) -> Histogram:
    return Histogram(
        bounds=BOUNDS,
        counts=tuple(float(sum(one <= bound for one in observed)) for bound in BOUNDS),
        sum=sum(observed),
    )


times = st.lists(st.floats(0, 5) | st.sampled_from(BOUNDS[:-1]), max_size=30)


@given(times, times)
def test_between_two_readings_lies_what_was_observed_meanwhile(
    before: list[float], meanwhile: list[float]
) -> None:
    found = between(counted(before), counted(before + meanwhile))
    assert found is not None
    assert found.counts == counted(meanwhile).counts
    assert found.sum == pytest.approx(sum(meanwhile), abs=1e-9)


@given(times.filter(bool))
def test_every_rank_lies_in_the_bucket_that_is_named(observed: list[float]) -> None:
    histogram = counted(observed)
    for rank, one in enumerate(sorted(observed), start=1):
        above, up_to = bracket(histogram, rank)
        assert above < one <= up_to
        assert up_to in BOUNDS


@pytest.mark.parametrize("rank", [0, 4])
def test_a_rank_that_no_observation_has_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"no observation has rank {rank} of 3"):
        bracket(counted([0.5, 0.5, 3.0]), rank)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, counted([1.0])),
        (counted([1.0]), None),
        (counted([1.0, 2.0]), counted([1.0])),  # restarted
        (counted([0.2, 3.0]), counted([3.0, 3.0, 3.0])),  # restarted, and more since
        (Histogram(bounds=(1.0, math.inf), counts=(0.0, 0.0), sum=0.0), counted([1.0])),
    ],
)
def test_what_cannot_be_told_is_unknown(before: Histogram | None, after: Histogram | None) -> None:
    assert between(before, after) is None
