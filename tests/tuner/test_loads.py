"""The load of a study: figures, and words that stand wherever its numbers do."""

import dataclasses

from objectives.measurement import Mode
from search_spaces.measure import Capacity, Fixed
from tests.tuner import loads, stories
from tuner.loads import NO_USERS, concurrency, load_text, measured_text, mode, offered_rps, speed
from tuner.titles import study_title, trial_title


def test_a_trace_without_a_rate_or_a_study_without_a_speed_offers_no_number() -> None:
    study = stories.study_file()
    at_once = dataclasses.replace(study, trace_figures={"requests": 2, "rate": None})
    older = dataclasses.replace(study, options={})
    assert (offered_rps(at_once), speed(at_once)) == (None, 1.5)
    assert (offered_rps(older), speed(older)) == (None, None)


def test_a_study_of_before_there_were_kinds_of_load_is_of_a_fixed_one() -> None:
    assert mode(stories.study_file()) is Mode.FIXED
    assert mode(loads.study(Fixed(repeats=2))) is Mode.FIXED
    assert mode(loads.study(Capacity(resolution=0.1))) is Mode.CAPACITY


def test_a_closed_loop_offers_no_rate_and_says_what_it_is() -> None:
    study = loads.closed_study()
    assert (mode(study), concurrency(study)) == (Mode.CLOSED, 8)
    assert (speed(study), offered_rps(study)) == (None, None)
    assert load_text(study) == f"closed loop, 8 in flight: {NO_USERS}"


def test_an_open_load_is_told_by_its_speed_and_rate() -> None:
    assert load_text(loads.study()) == "speed 1.5, 6 requests/s offered"
    assert concurrency(loads.study()) is None


def test_a_closed_loop_is_marked_in_the_names_that_lists_show() -> None:
    study = loads.closed_study()
    trial = stories.stored(loads.in_closed_loop(), 7)
    assert study_title(study) == "simulated, closed loop · tea"
    assert trial_title(trial, study) == "trial 7 (simulated, closed loop) · ngram · depth 3 · seqs 16"
    assert study_title(dataclasses.replace(study, engine="vllm")) == "closed loop · tea"


def test_what_is_measured_is_told_with_its_load() -> None:
    assert measured_text(loads.study()) == "capacity; reference load: speed 1.5, 6 requests/s offered"
    assert measured_text(loads.study(Fixed())) == "fixed load: speed 1.5, 6 requests/s offered"
    assert measured_text(loads.closed_study()) == f"closed loop, 8 in flight: {NO_USERS}"
    assert measured_text(dataclasses.replace(stories.study_file(), options={})) == "fixed load"


def test_with_causal_sessions_no_rate_is_promised() -> None:
    study = loads.study()
    causal = dataclasses.replace(study, options={**study.options, "sessions": "causal"})
    assert offered_rps(causal) is None
    assert load_text(causal) == "speed 1.5, sessions causal"
