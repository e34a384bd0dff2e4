import dataclasses
import re

import pytest

from objectives.measurement import Estimate
from tests.tuner import loads, stories
from tuner.front import FrontView, view
from tuner.plot import front_figure, front_html
from tuner.records import StoredTrial


def _front(*objectives: str) -> FrontView:
    study = dataclasses.replace(stories.study_file(), objectives=objectives)
    return view(study, _trials())


def _trials() -> list[StoredTrial]:
    # goodput up, TPOT down: 1 and 2 are the front; 0 (the control) and 3 are dominated by 1.
    return [
        stories.stored(stories.measured(1.0, 0.05), 0),
        stories.stored(stories.measured(2.0, 0.03), 1),
        stories.stored(stories.measured(3.0, 0.04), 2),
        stories.stored(stories.measured(1.5, 0.06), 3),
        stories.stored(stories.failed(), 4),
    ]


def test_two_objectives_are_drawn_as_a_plane_in_peoples_units() -> None:
    figure = front_figure(_front("goodput", "tpot_p95"))
    traces = {trace.name: trace for trace in figure.data}
    assert (list(traces["front"].x), list(traces["front"].y)) == ([2.0, 3.0], [30.0, 40.0])
    assert (list(traces["dominated"].x), list(traces["control"].x)) == ([1.5], [1.0])
    # From the best goodput: right angle over (2 req/s, 40 ms), then the other point.
    assert list(zip(traces["border"].x, traces["border"].y, strict=True)) == [
        (3.0, 40.0),
        (2.0, 40.0),
        (2.0, 30.0),
    ]
    assert "ms, less is better" in figure.layout.yaxis.title.text


def test_error_bars_reach_to_the_interval_and_no_further() -> None:
    figure = front_figure(_front("goodput", "tpot_p95"))
    front = next(trace for trace in figure.data if trace.name == "front")
    assert list(front.error_x.array) == [0.5, 0.5]
    assert list(front.error_y.array) == [0.0, 0.0]  # no upper end is known


def test_one_objective_is_drawn_over_the_trials() -> None:
    figure = front_figure(_front("goodput"))
    front = next(trace for trace in figure.data if trace.name == "front")
    assert (list(front.x), list(front.y)) == ([2], [3.0])


def test_three_objectives_are_drawn_as_a_matrix() -> None:
    more = {"ttft_p95_s": Estimate(value=0.2)}
    study = dataclasses.replace(stories.study_file(), objectives=("goodput", "tpot_p95", "ttft_p95"))
    trials = [stories.stored(stories.measured(1.0 + n, 0.05, more), n) for n in range(3)]
    figure = front_figure(view(study, trials))
    assert {trace.type for trace in figure.data} == {"splom"}
    assert len(figure.data[0].dimensions) == 3


def test_a_study_with_nothing_measured_has_an_empty_figure() -> None:
    front = view(stories.study_file(), [stories.stored(stories.failed(), 0)])
    assert all(not trace.x for trace in front_figure(front).data)


def test_the_page_needs_no_network_and_says_that_it_is_simulated() -> None:
    page = front_html(_front("goodput", "tpot_p95"))
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    assert "SIMULATED" in page


def test_names_cannot_break_out_of_the_page() -> None:
    study = dataclasses.replace(stories.study_file(), name="<img src=x>")
    assert "<img src=x>" not in front_figure(view(study, _trials())).layout.title.text


def test_the_picture_says_on_what_load_and_how_many_trials_it_leaves_out() -> None:
    subtitle = front_figure(_front("goodput", "tpot_p95")).layout.title.subtitle.text
    # 4 requests/s as recorded, played 1.5 times as fast; trial 4 of the five failed
    assert subtitle == (
        "fixed load: speed 1.5, 6 requests/s offered · bars: 95 % intervals · 1 of 5 configs gave no numbers"
    )


def test_points_are_numbered_and_hovering_tells_the_config_its_intervals_and_what_explains_them() -> None:
    more = {"batch_occupancy": Estimate(value=0.5)}
    trials = [stories.stored(stories.measured(2.0, 0.03, more), 1)]
    (front,) = (t for t in front_figure(view(stories.study_file(), trials)).data if t.name == "front")
    assert list(front.text) == ["1"]
    assert front.hovertext[0] == (
        "<b>trial 1 (simulated) · ngram · depth 3 · seqs 16</b>"
        "<br>goodput: 2 (1.5 to 2.5) requests/s<br>tpot p95: 30 (27 to ?) ms<br>batch occupancy: 0.5"
    )


@pytest.mark.parametrize("objectives", [("goodput",), ("goodput", "tpot_p95")])
def test_kinds_of_trial_differ_in_shape_and_not_in_colour_alone(objectives: tuple[str, ...]) -> None:
    points = [trace for trace in front_figure(_front(*objectives)).data if trace.name != "border"]
    assert len(points) == 3
    assert len({trace.marker.symbol for trace in points}) == 3


def test_labels_stand_beside_the_border_on_its_two_sides_in_turn() -> None:
    figure = front_figure(_front("goodput", "tpot_p95"))
    sides = {trace.name: trace.textposition for trace in figure.data if trace.name != "border"}
    # More goodput is to the right and less TPOT is down, so the better side is the lower right.
    assert list(sides["front"]) == ["bottom right", "top left"]
    assert list(sides["control"]) == ["top left"]


def test_a_trial_that_the_engine_contradicts_is_marked_and_says_why() -> None:
    trials = [
        stories.stored(loads.measured(loads.BETWEEN, disagreements=("tokens <differ>",)), 0),
        stories.stored(loads.measured(loads.ABOVE, disagreements=("TTFT differs",)), 1),
    ]
    traces = {trace.name: trace for trace in front_figure(view(loads.study(), trials)).data}
    assert (list(traces["control"].text), list(traces["front"].text)) == (["control !"], ["1 !"])
    assert "! client and engine disagree: tokens &lt;differ&gt;" in traces["control"].hovertext[0]
    assert "capacity: at least 96 (91.2 to ?) requests/s" in traces["front"].hovertext[0]


def test_the_picture_of_a_closed_loop_says_that_it_is_one() -> None:
    front = view(loads.closed_study(), [stories.stored(loads.in_closed_loop(), 1)])
    assert "closed loop, 8 in flight: no load a user makes" in front_figure(front).layout.title.subtitle.text


def test_where_points_lie_on_each_other_the_best_alone_has_a_label_and_says_how_many_more() -> None:
    # Three in one place, in the others' midst one apart, and a control far off.
    places = [(1.0, 0.09), (5.0, 0.02), (5.01, 0.0201), (5.02, 0.0202), (9.0, 0.05)]
    trials = [stories.stored(stories.measured(*place), number) for number, place in enumerate(places)]
    study = dataclasses.replace(stories.study_file(), objectives=("goodput", "tpot_p95"))
    figure = front_figure(view(study, trials))
    (best,) = (trace for trace in figure.data if trace.name == "front")
    assert [trial.number for trial in view(study, trials).front if not trial.is_control] == [1, 2, 3, 4]
    assert list(best.text) == ["", "", "3 (+2)", "4"]
