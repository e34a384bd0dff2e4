import pytest

from objectives.counters import growth, restarted, time_mean
from objectives.measurement import Sample
from objectives.occupancy import occupancy


def steps(*readings: float | None) -> list[Sample]:
    return [Sample(at_s=float(i), target_steps_total=reading) for i, reading in enumerate(readings)]


def grown(*readings: float | None) -> float | None:
    return growth(steps(*readings), lambda sample: sample.target_steps_total)


def test_a_counter_counts_from_the_first_sample_to_the_last() -> None:
    assert grown(10, 14, None, 25) == 15


@pytest.mark.parametrize("readings", [(), (5,), (None, 5), (5, None), (None, None)])
def test_a_counter_that_is_missing_is_unknown_not_zero(readings: tuple[float | None, ...]) -> None:
    assert grown(*readings) is None


def test_a_counter_that_went_down_is_unknown_even_if_it_caught_up() -> None:
    assert grown(10, 2, 30) is None
    assert restarted(steps(10, 2, 30))
    assert not restarted(steps(10, None, 10, 30))


def test_a_restart_shows_in_counters_by_position_too() -> None:
    samples = [Sample(at_s=i, accepted_per_position_total=(9.0, 5.0 - i)) for i in range(2)]
    assert restarted(samples)


def test_a_gauge_is_weighted_by_time() -> None:
    # 2 for one second, then rising to 6 over three: (2·1 + 4·3) / 4 = 3.5.
    samples = [Sample(at_s=at, running=running) for at, running in ((0, 2), (1, 2), (4, 6))]
    mean = time_mean(samples, lambda sample: sample.running, start_s=0, end_s=4)
    assert mean == pytest.approx(3.5)


def test_a_gauge_is_read_only_while_the_replay_ran() -> None:
    samples = [Sample(at_s=at, running=r) for at, r in ((-10, 0), (0, 4), (2, 4), (12, 0))]
    assert time_mean(samples, lambda sample: sample.running, start_s=0, end_s=2) == pytest.approx(4)


def test_occupancy_is_the_batch_over_its_slots() -> None:
    samples = [
        Sample(at_s=0, running=8, waiting=0, kv_usage=0.2, target_steps_total=0, step_tokens_total=100),
        Sample(at_s=2, running=8, waiting=4, kv_usage=0.6, target_steps_total=50, step_tokens_total=500),
    ]
    full = occupancy(samples, start_s=0, end_s=2, max_num_seqs=32)
    assert full.batch_mean == pytest.approx(8)
    assert full.batch_share == pytest.approx(0.25)
    assert full.waiting_mean == pytest.approx(2)
    assert full.kv_mean == pytest.approx(0.4)
    assert full.kv_max == 0.6
    assert full.tokens_per_step == pytest.approx(8)
    assert full.preemptions is None


def test_an_engine_that_says_nothing_has_no_occupancy() -> None:
    full = occupancy([Sample(at_s=0), Sample(at_s=1)], start_s=0, end_s=1, max_num_seqs=32)
    assert {full.batch_mean, full.batch_share, full.kv_mean, full.kv_max, full.target_steps} == {None}
