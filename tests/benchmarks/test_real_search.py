import pytest

from benchmarks.real_search import Compared, Row, Study, compared, pooled, table
from cluster.order import Outcome
from objectives.goal import Goal
from tests.tuner.stories import failed, measured, stored

GOAL = Goal.of(["goodput", "tpot_p95"])


def _study(sampler: str, *outcomes: tuple[str, Outcome], seed: int = 0) -> Study:
    """Outcomes by name of the config."""
    trials = tuple(stored(outcome, n, CONFIG=config) for n, (config, outcome) in enumerate(outcomes))
    return Study(sampler=sampler, seed=seed, goal=GOAL, trials=trials)


PLAIN = ("plain", measured(2.0, 0.040))
FAST = ("fast", measured(6.0, 0.020))
QUICK = ("quick", measured(4.0, 0.010))


def _row(told: Compared, sampler: str) -> Row:
    (row,) = (row for row in told["studies"] if row["sampler"] == sampler)
    return row


def test_a_study_that_found_the_whole_front_has_all_of_it_and_another_its_rectangle() -> None:
    both = _study("ehvi", PLAIN, ("bad", failed()), FAST, QUICK)
    one = _study("random", PLAIN, FAST, PLAIN, PLAIN)
    told = compared([both, one])
    # From 10 % beyond the front, at 3.8 requests/s and 21 ms: 2.2 * 1 of `fast`, and 0.2 * 10 of `quick`.
    assert _row(told, "ehvi")["share"][4] == pytest.approx(1.0)
    assert _row(told, "random")["share"][4] == pytest.approx(2.2 / 4.2)
    assert _row(told, "ehvi")["failed"] == 1
    assert _row(told, "ehvi")["best"][4] == pytest.approx(6.0)


def test_a_lucky_measurement_is_worth_what_all_measurements_of_its_config_are_on_average() -> None:
    lucky = _study("tpe", PLAIN, ("same", measured(9.0, 0.02)))
    again = _study("random", PLAIN, ("same", measured(5.0, 0.04)))
    means = pooled([lucky, again])
    assert sorted(means.values()) == [pytest.approx((-7.0, 0.03)), pytest.approx((-2.0, 0.04))]
    assert _row(compared([lucky, again]), "tpe")["best"][2] == pytest.approx(7.0)


def test_what_was_found_later_does_not_count_before() -> None:
    late = _study("ehvi", PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, FAST)
    shares = _row(compared([late, _study("tpe", PLAIN, FAST)]), "ehvi")["share"]
    assert shares[4] < shares[6] == pytest.approx(1.0)


def test_the_table_has_a_line_a_study_and_a_median_a_sampler() -> None:
    told = compared([_study("ehvi", PLAIN, FAST, seed=seed) for seed in (0, 1)] + [_study("tpe", PLAIN)])
    lines = table(told).splitlines()
    assert len(lines) == 2 + 3 + 2
    assert sum("median" in line for line in lines) == 2


def test_studies_of_other_objectives_are_not_compared() -> None:
    other = Study(sampler="tpe", seed=0, goal=Goal.of(["ttft_p95"]), trials=())
    with pytest.raises(ValueError, match="different objectives"):
        compared([_study("ehvi", PLAIN), other])
