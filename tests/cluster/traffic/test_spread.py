import statistics
from itertools import accumulate, pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cluster.traffic.spread import quantum, spread


def test_rounded_arrivals_have_a_step_and_others_have_none() -> None:
    assert quantum([float(i // 5 * 3) for i in range(100)]) == 3.0
    assert quantum([float(i) for i in range(100)]) is None
    assert quantum([0.0] * 100) is None
    assert quantum([0.0, 0.0, 1.0, 1.0]) is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 3), st.integers(0, 5))
def test_nobody_overtakes_or_moves_by_a_step(counts: list[int], step: int, seed: int) -> None:
    arrivals = sorted(float(count * step) for count in counts)
    moved = spread(arrivals, float(step), seed=seed)
    assert moved == sorted(moved)
    assert all(a <= b < a + step for a, b in zip(arrivals, moved, strict=True))
    assert spread(arrivals, float(step), seed=seed) == moved


def test_a_rounded_poisson_process_is_poisson_again() -> None:
    random = Random(1)
    true = accumulate(random.expovariate(10 / 3) for _ in range(10_000))
    rounded = [arrival // 3 * 3 for arrival in true]
    assert quantum(rounded) == 3.0
    gaps = [b - a for a, b in pairwise(spread(rounded, 3.0))]
    assert 0.96 < statistics.pstdev(gaps) / statistics.fmean(gaps) < 1.04
