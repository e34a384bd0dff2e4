"""What a trial measures: as a space says it, as a command line overrides it, as it is kept."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.goal import OBJECTIVES
from search_spaces.load import SpaceError, parse_space
from search_spaces.measure import (
    CAPACITY_ONLY,
    Capacity,
    Closed,
    Fixed,
    Measure,
    default_objectives,
    measure_from,
    measured_as,
    unmeasured,
    word_of,
)

MEASURES: st.SearchStrategy[Measure] = st.one_of(
    st.builds(
        Capacity,
        resolution=st.floats(0.001, 1),
        lowest=st.floats(0, 1, exclude_min=True),
        highest=st.floats(1, 1e6),
        repeats=st.integers(1, 9),
    ),
    st.builds(Fixed, repeats=st.integers(1, 9)),
    st.builds(Closed, concurrency=st.integers(1, 999_999)),
)


def measure_of(text: str) -> Measure:
    return parse_space(f"model: m\nmeasure: {text}\n", "s.yaml").measure


def faults_of(text: str) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        parse_space(text, "s.yaml")
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("capacity", Capacity(resolution=0.05, lowest=0.25, highest=16.0, repeats=1)),
        ("null", Capacity()),
        ("fixed", Fixed(repeats=1)),
        ("{kind: fixed, repeats: 3}", Fixed(repeats=3)),
        ("{kind: closed, concurrency: 16}", Closed(concurrency=16)),
        (
            "{kind: capacity, resolution: 0.1, lowest: 0.5, highest: 8, repeats: 2}",
            Capacity(resolution=0.1, lowest=0.5, highest=8.0, repeats=2),
        ),
    ],
)
def test_a_space_says_it_short_or_long(text: str, expected: Measure) -> None:
    assert measure_of(text) == expected


def test_a_space_that_does_not_say_measures_capacity() -> None:
    space = parse_space("model: m", "s.yaml")
    assert space.measure == Capacity()
    assert space.objectives == ("capacity", "tpot_p95")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("fixd", "no such kind of measure as 'fixd'; did you mean 'fixed'?"),
        ("3", "no such kind of measure as 3; known here: capacity, closed, fixed"),
        ("{repeats: 3}", "needs 'kind': capacity, fixed, closed"),
        ("{}", "needs 'kind': capacity, fixed, closed"),
        ("closed", "closed needs the requests in flight: {kind: closed, concurrency: 16}"),
        ("{kind: closed}", "closed needs the requests in flight: {kind: closed, concurrency: 16}"),
    ],
)
def test_a_measure_that_is_none_is_told_with_what_to_write(text: str, fault: str) -> None:
    (told,) = faults_of(f"model: m\nmeasure: {text}\n")
    assert told == f"s.yaml:2 measure: {fault}"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            "{kind: fixed, resolution: 0.1}",
            ["s.yaml:2 measure.resolution: goes with kind capacity; fixed has repeats"],
        ),
        (
            "{kind: closed, concurrency: 2, repeats: 3}",
            ["s.yaml:2 measure.repeats: goes with kind capacity or fixed; closed has concurrency"],
        ),
        (
            "{kind: capacity, concurrency: 2, lowest: 3}",
            [
                "s.yaml:2 measure.concurrency: goes with kind closed; "
                "capacity has resolution, lowest, highest, repeats",
                "s.yaml:2 measure.lowest: should be less than or equal to 1, got 3",
            ],
        ),
        (
            "{kind: capacity, resolutoin: 0.1}",
            [
                "s.yaml:2 measure.resolutoin: unknown key in a measure of kind capacity; "
                "did you mean 'resolution'?"
            ],
        ),
        (
            "{kind: fixed, repeats: 0}",
            ["s.yaml:2 measure.repeats: should be greater than or equal to 1, got 0"],
        ),
        ("{kind: capacity, highest: .inf}", ["s.yaml:2 measure.highest: should be a finite number, got inf"]),
        (
            "{kind: capacity, resolution: 0}",
            ["s.yaml:2 measure.resolution: should be greater than or equal to 0.001, got 0"],
        ),
    ],
)
def test_a_setting_that_the_kind_has_not_is_told_with_its_place(text: str, faults: list[str]) -> None:
    assert faults_of(f"model: m\nmeasure: {text}\n") == faults


@pytest.mark.parametrize("kind", ["fixed", "{kind: closed, concurrency: 4}"])
def test_an_objective_that_is_not_measured_is_refused_where_it_stands(kind: str) -> None:
    text = f"model: m\nmeasure: {kind}\nobjectives:\n  - tpot_p95\n  - capacity_tokens\n"
    name = "fixed" if kind == "fixed" else "closed"
    assert faults_of(text) == [
        f"s.yaml:5 objectives[1]: 'capacity_tokens' is not measured by kind {name}; "
        "write goodput_tokens, or measure: capacity"
    ]


def test_a_fault_in_the_measure_drags_no_objective_along() -> None:
    text = "model: m\nmeasure: {kind: fixed, repeats: 0}\nobjectives: [capacity]\n"
    assert len(faults_of(text)) == 1


def test_objectives_that_are_named_stand_whatever_is_measured() -> None:
    space = parse_space("model: m\nobjectives: [goodput]\n", "s.yaml")
    assert (space.measure, space.objectives) == (Capacity(), ("goodput",))


@given(MEASURES)
def test_the_default_objectives_are_measured_and_known(measure: Measure) -> None:
    names = default_objectives(measure)
    assert unmeasured(names, measure) == ()
    assert set(names) <= set(OBJECTIVES)


def test_what_only_a_capacity_search_measures_are_the_objectives_called_so() -> None:
    assert set(CAPACITY_ONLY) == {name for name in OBJECTIVES if name.startswith("capacity")}
    assert set(CAPACITY_ONLY.values()) <= set(OBJECTIVES)


@given(MEASURES, MEASURES)
def test_a_word_turns_any_measure_into_its_kind_and_its_own_kind_into_itself(
    measure: Measure, other: Measure
) -> None:
    assert measured_as(measure, word_of(measure)) == measure
    turned = measured_as(measure, word_of(other))
    assert word_of(turned) == word_of(other)
    assert turned == (measure if measure.kind == other.kind != "closed" else turned)


@pytest.mark.parametrize(
    "word", ["", "closed", "closed:", "closed:0", "closed:x", "closed:-1", "Fixed", "fixed:2"]
)
def test_a_word_that_names_no_measure_is_answered_with_those_that_do(word: str) -> None:
    with pytest.raises(ValueError, match=r"is capacity, fixed or closed:N with N requests in flight, got"):
        measured_as(Closed(concurrency=3), word)


@given(MEASURES)
def test_what_is_kept_as_json_comes_back(measure: Measure) -> None:
    assert measure_from(json.loads(json.dumps(measure.model_dump(mode="json")))) == measure


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({}, "no such kind of measure: None"),
        ({"kind": "open"}, "no such kind of measure: 'open'"),
        ({"kind": "fixed", "repeats": "3"}, "measure.repeats: Input should be a valid integer"),
        ({"kind": "closed"}, "measure.concurrency: Field required"),
    ],
)
def test_what_is_kept_and_cannot_be_read_is_one_line(kept: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        measure_from(dict(kept))
    assert "\n" not in str(error.value)
