"""Where jobs may run."""

import pytest

from tests.tuner.service.jobs import job, running
from tuner.mistakes import Mistake
from tuner.service.places import free, places_of


def test_without_sets_of_gpus_there_is_one_place_for_all_that_is_real() -> None:
    real = [place for place in places_of((), cluster=False, simulated=2) if not place.simulated]
    assert [place.name for place in real] == ["machine"]
    assert real[0].fits(job("ana", 1, simulated=False, gpus=8))
    assert not real[0].fits(job("ana", 1))


def test_a_job_fits_where_there_are_gpus_enough() -> None:
    one, two, _ = places_of(("3", "0,1"), cluster=False, simulated=1)
    assert not one.fits(job("ana", 1, simulated=False, gpus=2))
    assert two.fits(job("ana", 1, simulated=False, gpus=2))
    assert not two.fits(job("ana", 1))


def test_the_smallest_free_set_is_offered_first() -> None:
    places = places_of(("0,1,2,3", "4"), cluster=False, simulated=0)
    assert [place.devices for place in free(places, [])] == [(4,), (0, 1, 2, 3)]
    held = running(job("ana", 1, simulated=False, gpus=1), "gpus 4")
    assert [place.devices for place in free(places, [held])] == [(0, 1, 2, 3)]


def test_while_a_job_runs_on_gpus_that_nobody_knows_no_real_place_is_free() -> None:
    places = places_of(("0", "1"), cluster=False, simulated=1)
    stranger = running(job("ana", 1, simulated=False, gpus=2), "gpus 0,1")
    assert [place.name for place in free(places, [stranger])] == ["simulated 1"]


@pytest.mark.parametrize("sets", [("0,1", "1"), ("2,2",), ("",), ("0,",), ("a",), ("-1",), ("0 1",)])
def test_sets_that_are_none_or_share_a_gpu_are_refused(sets: tuple[str, ...]) -> None:
    with pytest.raises(Mistake, match="--gpus"):
        places_of(sets, cluster=False, simulated=0)


def test_a_cluster_places_trials_itself() -> None:
    with pytest.raises(Mistake, match="--ray"):
        places_of(("0",), cluster=True, simulated=0)
