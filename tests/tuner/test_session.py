"""From what was asked, and what a study keeps, to what its trials measure."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.order import CapacityLoad, ClosedLoop, FixedLoad, Load
from search_spaces.load import parse_space
from search_spaces.measure import Capacity, Closed, Fixed, Measure
from tests.tuner import stories
from tuner.mistakes import Mistake
from tuner.records import RecordError, write_study
from tuner.session import SearchRequest, load_of, measured_so, resumed

SPACE = parse_space("model: m\nmeasure: {kind: capacity, resolution: 0.1}\n", "s.yaml")


@pytest.mark.parametrize(
    ("measure", "load"),
    [
        (
            Capacity(resolution=0.1, lowest=0.5, highest=4, repeats=2),
            CapacityLoad(resolution=0.1, lowest=0.5, highest=4, guess=None, repeats=2),
        ),
        (Fixed(repeats=3), FixedLoad(repeats=3)),
        (Closed(concurrency=16), ClosedLoop(concurrency=16)),
        # Neither side's defaults may move alone.
        (Capacity(), CapacityLoad()),
        (Fixed(), FixedLoad()),
    ],
)
def test_a_node_is_told_all_that_the_space_says(measure: Measure, load: Load) -> None:
    assert load_of(measure) == load


def test_nothing_asked_for_leaves_the_space_as_it_is() -> None:
    assert measured_so(SPACE, None) == SPACE
    assert measured_so(SPACE, "capacity") == SPACE


def test_named_objectives_that_both_kinds_measure_stay() -> None:
    named = replace(SPACE, named_objectives=("ttft_p95", "goodput"))
    assert measured_so(named, "fixed").objectives == ("ttft_p95", "goodput")


def test_named_objectives_that_would_be_lost_are_told_with_what_to_name() -> None:
    named = replace(SPACE, named_objectives=("tpot_p95", "capacity_tokens"))
    with pytest.raises(Mistake) as mistake:
        measured_so(named, "closed:4")
    assert str(mistake.value) == (
        "--measure closed:4 does not measure 'capacity_tokens', an objective of s.yaml; "
        "name goodput_tokens there instead, or leave its objectives out"
    )


def _study(runs: Path, **options: object) -> SearchRequest:
    study = stories.study_file()
    begun = {
        "space": "s.yaml",
        "trials": 3,
        "trace": None,
        "speed": 1.0,
        "storage": None,
        "tracking_uri": None,
    }
    write_study(runs / study.name, replace(study, options={**begun, **options}))  # type: ignore[dict-item]
    return SearchRequest(name=study.name, resume=True, runs=runs)


def test_a_resumed_study_measures_what_it_kept_and_not_what_the_defaults_are_now(tmp_path: Path) -> None:
    asked = _study(tmp_path, measure=Capacity(resolution=0.3, lowest=0.5).model_dump(mode="json"))
    again, _, space = resumed(asked)
    assert space.measure == Capacity(resolution=0.3, lowest=0.5)
    assert again.measure == "capacity"


def test_a_study_that_kept_no_measure_had_one_load(tmp_path: Path) -> None:
    again, before, space = resumed(_study(tmp_path))
    assert space.measure == Fixed()
    assert space.objectives == before.objectives == ("goodput", "tpot_p95")
    assert again.measure == "fixed"


def test_a_closed_loop_of_another_size_is_another_study(tmp_path: Path) -> None:
    asked = _study(tmp_path, measure=Closed(concurrency=16).model_dump(mode="json"))
    assert resumed(replace(asked, measure="closed:16"))[2].measure == Closed(concurrency=16)
    with pytest.raises(Mistake, match="was begun with measure closed:16, not closed:8"):
        resumed(replace(asked, measure="closed:8"))


@pytest.mark.parametrize("kept", [{"kind": "open"}, {"kind": "fixed", "repeats": 0}, "fixd"])
def test_a_measure_that_this_version_cannot_read_stops_the_study_in_one_line(
    tmp_path: Path, kept: object
) -> None:
    with pytest.raises(RecordError, match=r"study tea cannot go on: its study\.json says") as error:
        resumed(_study(tmp_path, measure=kept))
    assert "\n" not in str(error.value)
