import dataclasses
import xml.etree.ElementTree as ET

from tests.tuner import loads, stories
from tuner.curve_picture import curve_svg


def test_a_trial_with_a_curve_has_a_picture_that_is_the_same_each_time() -> None:
    trial = stories.stored(loads.measured(), 7)
    svg = curve_svg(trial, loads.study())
    assert svg is not None
    assert ET.fromstring(svg).tag.endswith("svg")
    assert curve_svg(trial, loads.study()) == svg
    assert len(svg) < 300_000  # one lies in every trial's run


def test_a_trial_without_two_rates_has_none() -> None:
    assert curve_svg(stories.stored(stories.measured(), 7), stories.study_file()) is None
    assert curve_svg(stories.stored(stories.failed(), 7), loads.study()) is None


def test_names_are_drawn_as_they_are_whatever_they_hold() -> None:
    trial = dataclasses.replace(
        stories.stored(loads.measured(loads.BELOW), 7), config={"path": "$x^{", "note": "数 <b>"}
    )
    assert curve_svg(trial, loads.study()) is not None
