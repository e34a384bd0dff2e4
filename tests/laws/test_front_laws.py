"""Fronts against their definitions, on any losses."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.front import hypervolume, indistinguishable, non_dominated, possibly_on_front
from objectives.goal import OBJECTIVES, Goal, MissingObjective
from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from objectives.summary import summarise
from tests.objectives.replays import failed

Row = tuple[float, ...]

# Few values, so that ties and duplicates are common.
NUMBERS = st.integers(0, 4).map(float)
GOALS = st.lists(st.sampled_from(sorted(OBJECTIVES)), min_size=1, max_size=4, unique=True)
BROKEN = st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def trials(draw: st.DrawFn, *, failures: bool = True, most: int = 9) -> list[Row | None]:
    m = draw(st.integers(1, 4))
    row: st.SearchStrategy[Row | None] = st.tuples(*[NUMBERS] * m)
    if failures:
        row = row | st.none() | st.tuples(*[NUMBERS | BROKEN] * m)
    return draw(st.lists(row, max_size=most))


def measured(row: Row | None) -> bool:
    return row is not None and all(math.isfinite(loss) for loss in row)


def dominates(a: Row, b: Row) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


@given(trials())
def test_the_front_is_what_no_measured_trial_dominates(rows: list[Row | None]) -> None:
    good = [row for row in rows if row is not None and measured(row)]
    expected = [
        row is not None and measured(row) and not any(dominates(other, row) for other in good) for row in rows
    ]
    assert non_dominated(rows).tolist() == expected


@given(trials())
def test_a_failed_trial_changes_no_front(rows: list[Row | None]) -> None:
    kept = [row for row in rows if measured(row)]
    mask = non_dominated(rows)
    assert not any(on for on, row in zip(mask, rows, strict=True) if not measured(row))
    assert [on for on, row in zip(mask, rows, strict=True) if measured(row)] == non_dominated(kept).tolist()


@given(GOALS, st.integers(1, 60))
def test_a_replay_in_which_all_failed_has_no_losses_whatever_the_directions(names: list[str], n: int) -> None:
    nothing = summarise([failed(i, due_s=i) for i in range(n)], [], slo=Slo(ttft_s=1), max_num_seqs=None)
    with pytest.raises(MissingObjective, match=f"none of the {n} requests was answered"):
        Goal.of(names).losses(nothing)


@given(GOALS, st.data())
def test_losses_turn_back_into_values_and_order_trials_by_direction(
    names: list[str], data: st.DataObject
) -> None:
    goal = Goal.of(names)
    rows = [data.draw(st.tuples(*[NUMBERS] * len(names))) for _ in range(2)]
    losses = [goal.losses(_measurement(goal, row)) for row in rows]
    for row, loss in zip(rows, losses, strict=True):
        assert goal.values(loss) == row
    for objective, x, y, lx, ly in zip(goal.objectives, *rows, *losses, strict=True):
        assert (lx < ly) == (x > y if objective.direction == "maximise" else x < y)


def _measurement(goal: Goal, values: Row) -> Measurement:
    metrics = {o.metric: Estimate(value=v) for o, v in zip(goal.objectives, values, strict=True)}
    return Measurement(metrics=metrics, requests=500, failed_requests=0, duration_s=1.0)


@given(trials())
def test_hypervolume_is_inclusion_and_exclusion_of_boxes(rows: list[Row | None]) -> None:
    kept = [row for row in rows if row is not None and measured(row)]
    m = len(kept[0]) if kept else 2
    reference = (4.0,) * m
    total = 0.0
    for size in range(1, len(kept) + 1):
        for some in itertools.combinations(kept, size):
            corner = [max(column) for column in zip(*some, strict=True)]
            total -= (-1) ** size * math.prod(max(4 - loss, 0.0) for loss in corner)
    assert hypervolume(rows, reference) == pytest.approx(total)


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_hypervolume_is_the_share_of_random_points_that_the_front_covers(m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.random((12, m))
    points = rng.random((20_000, m))
    covered = (losses[:, None, :] <= points).all(axis=2).any(axis=0).mean()
    # Four standard errors of a share, and a little for shares near 0.
    slack = 4 * math.sqrt(covered * (1 - covered) / 20_000) + 1e-3
    assert hypervolume(losses, (1.0,) * m) == pytest.approx(float(covered), abs=slack)


@given(trials(failures=False), NUMBERS)
def test_the_front_has_all_the_volume_and_no_trial_takes_any_away(
    rows: list[Row | None], extra: float
) -> None:
    m = len(rows[0]) if rows and rows[0] is not None else 2
    reference = (5.0,) * m
    before = hypervolume(rows, reference)
    front = [row for row, on in zip(rows, non_dominated(rows), strict=True) if on]
    assert hypervolume(front, reference) == pytest.approx(before)
    assert hypervolume([*rows, (extra,) * m], reference) >= before - 1e-9


@st.composite
def interval_rows(draw: st.DrawFn) -> list[list[Estimate] | None]:
    m = draw(st.integers(1, 3))

    def estimate(ends: list[float]) -> Estimate:
        low, value, high = sorted(ends)
        return Estimate(
            value=value,
            low=draw(st.sampled_from([low, None])),
            high=draw(st.sampled_from([high, None])),
        )

    number = st.lists(NUMBERS, min_size=3, max_size=3).map(estimate)
    return draw(st.lists(st.none() | st.lists(number, min_size=m, max_size=m), max_size=7))


def ends(estimate: Estimate) -> tuple[float, float]:
    return (
        -math.inf if estimate.low is None else estimate.low,
        math.inf if estimate.high is None else estimate.high,
    )


@given(interval_rows())
def test_trials_cannot_be_told_apart_exactly_when_all_their_intervals_overlap(
    rows: list[list[Estimate] | None],
) -> None:
    def overlap(a: Estimate, b: Estimate) -> bool:
        return ends(a)[0] <= ends(b)[1] and ends(b)[0] <= ends(a)[1]

    expected = [
        (i, j)
        for (i, a), (j, b) in itertools.combinations(enumerate(rows), 2)
        if a is not None and b is not None and all(overlap(x, y) for x, y in zip(a, b, strict=True))
    ]
    assert indistinguishable(rows) == expected


@given(interval_rows())
def test_a_trial_is_ruled_out_exactly_when_another_certainly_dominates_it(
    rows: list[list[Estimate] | None],
) -> None:
    def certainly(a: list[Estimate], b: list[Estimate]) -> bool:
        return dominates(tuple(ends(x)[1] for x in a), tuple(ends(x)[0] for x in b))

    expected = [
        row is not None and not any(other is not None and certainly(other, row) for other in rows)
        for row in rows
    ]
    assert possibly_on_front(rows).tolist() == expected


@given(interval_rows())
def test_the_front_is_always_possibly_on_the_front(rows: list[list[Estimate] | None]) -> None:
    values = [None if row is None else [estimate.value for estimate in row] for row in rows]
    assert (possibly_on_front(rows) >= non_dominated(values)).all()
