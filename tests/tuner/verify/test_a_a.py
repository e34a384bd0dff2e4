"""The control verified against itself, a small seeded part of `benchmarks.verify_a_a`."""

from dataclasses import replace

import pytest
from scipy.stats import binom

from benchmarks.verify_a_a import CASES, measured_pairs, verified
from tuner.verify.judge import RATE, Pair

TIMES, MANY, REQUESTS = 20, 3, 30

LIGHT = CASES[0]
"""Fixed load, latencies: runs that differ by 2 %, steps by 5 %, traffic that is another each time."""


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return list(measured_pairs(LIGHT, REQUESTS, TIMES * (MANY + 1)))


def test_a_true_promise_fails_no_oftener_than_stated(pairs: list[Pair]) -> None:
    failed = sum(not all(kept.held for kept in one) for one in verified(LIGHT, pairs, MANY))
    assert failed <= binom.isf(1e-4, TIMES, RATE)


def test_twice_what_is_true_is_mostly_told(pairs: list[Pair]) -> None:
    """The median TPOT differs so little between runs that three pairs tell a factor of two."""
    case = replace(LIGHT, objectives=("tpot_p50",), exaggerated=2.0)
    told = sum(
        any(kept.name == "tpot_p50" and not kept.held for kept in one) for one in verified(case, pairs, MANY)
    )
    assert told > TIMES / 2
