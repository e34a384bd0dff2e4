"""Of a long study the models see a part: the best, some from all of it, and what must not be forgotten."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from objectives.front import non_dominated
from search_spaces.values import Scalar
from tests.tuner.spaces import MEMORY, SCHEME, SEQUENCES, SMALL, space_of
from tuner.refusals import refusals
from tuner.sampler.lessons import Lessons, thinned, ventures
from tuner.sampler.pool import drawn

CONFIGS = tuple(drawn(SMALL, np.random.default_rng(0), 400))


def _long(missed: NDArray[np.bool_] | None = None) -> Lessons:
    rng = np.random.default_rng(1)
    violations = {} if missed is None else {"slo_attainment": np.where(missed, 0.1, -0.1)}
    return Lessons(
        configs=CONFIGS[:300],
        losses=rng.normal(size=(300, 2)),
        violations=violations,
        failed=CONFIGS[300:],
        pending=(),
        taken=frozenset(CONFIGS),
        refusals=refusals([], []),
    )


def test_the_front_is_kept_whole_and_rows_stay_with_their_configs() -> None:
    known = _long()
    seen = thinned(known, 60)
    assert len(seen.configs) == len(set(seen.configs)) == 60
    front = {c for c, on in zip(known.configs, non_dominated(known.losses), strict=True) if on}
    assert front <= set(seen.configs)
    rows = dict(zip(known.configs, known.losses.tolist(), strict=True))
    assert [rows[config] for config in seen.configs] == seen.losses.tolist()


def test_half_of_it_comes_evenly_from_the_whole_study() -> None:
    places = {config: place for place, config in enumerate(CONFIGS)}
    kept = sorted(places[config] for config in thinned(_long(), 60).configs)
    assert max(b - a for a, b in itertools.pairwise(kept)) <= 2 * 300 / 30


def test_those_that_hold_the_constraints_are_the_best_whatever_their_losses() -> None:
    missed = np.ones(300, dtype=np.bool_)
    missed[::20] = False
    seen = thinned(_long(missed), 40)
    assert {CONFIGS[place] for place in range(0, 300, 20)} <= set(seen.configs)
    assert (seen.violations["slo_attainment"] <= 0).sum() == 15


def test_what_was_taken_is_never_forgotten_and_of_failures_the_latest_count() -> None:
    seen = thinned(_long(), 60)
    assert seen.taken == frozenset(CONFIGS)
    assert seen.failed == CONFIGS[-60:]


@pytest.mark.parametrize("most", [300, 1000])
def test_a_study_that_is_short_enough_is_left_as_it_is(most: int) -> None:
    known = _long()
    assert thinned(known, most) is known


@pytest.mark.parametrize(("seqs", "memory", "upper"), [(12, 0.8, {}), (20, 0.95, {"seqs", "memory"})])
def test_a_number_ventures_into_a_half_of_its_range_by_its_own_scale(
    seqs: int, memory: float, upper: set[str]
) -> None:
    # 4 to 64 on a logarithmic scale: its middle is 16, not 34.
    space = space_of(SCHEME, SEQUENCES, MEMORY)
    values: dict[str, Scalar] = {"scheme": "int8", "max_num_seqs": seqs, "gpu_memory_utilization": memory}
    assert ventures(space, space.config(values)) == {
        ("scheme", "int8"),
        ("max_num_seqs", "seqs" in upper),
        ("gpu_memory_utilization", "memory" in upper),
    }
