import dataclasses
import re

import pytest

from tests.tuner import loads, stories
from tuner.curve_plot import curves_figure, curves_html, has_curves
from tuner.front import FrontView, view


def _front() -> FrontView:
    trials = [
        stories.stored(loads.measured(loads.BETWEEN, tpot_p95_s=0.05), 0),
        stories.stored(loads.measured(loads.ABOVE), 1),
        stories.stored(loads.measured(loads.BELOW, tpot_p95_s=0.06), 2),
    ]
    return view(loads.study(), trials)


def _named(front: FrontView, panel: int) -> dict[str, object]:
    axis = "x" if panel == 1 else f"x{panel}"
    return {trace.name: trace for trace in curves_figure(front).data if trace.xaxis == axis}


def test_the_front_and_the_control_are_drawn_over_each_other_and_dominated_trials_are_not() -> None:
    drawn = _named(_front(), 1)
    assert list(drawn) == [
        "control: 12 (11.4 to 13.2) requests/s",
        "trial 1: at least 96 (91.2 to ?) requests/s",
    ]


def test_latency_stands_over_the_offered_rate_in_milliseconds() -> None:
    control = next(iter(_named(_front(), 1).values()))
    # Whole replays at 6 and 12 requests/s; TTFT p95 is made up as 10 ms for each
    assert list(control.x) == [6.0, 12.0]  # type: ignore[attr-defined]
    assert list(control.y) == pytest.approx([60.0, 120.0])  # type: ignore[attr-defined]


def test_the_capacity_has_the_large_marker() -> None:
    control = next(iter(_named(_front(), 1).values()))
    small, large = control.marker.size  # type: ignore[attr-defined]
    assert large > small


def test_cut_replays_are_in_the_panel_of_attainment_alone() -> None:
    cut = "control: 12 (11.4 to 13.2) requests/s, cut"
    assert [cut in _named(_front(), panel) for panel in (1, 2, 3, 4)] == [False, False, False, True]
    trace = _named(_front(), 4)[cut]
    assert list(trace.y) == pytest.approx([0.94, 0.94])  # type: ignore[attr-defined]


def test_hovering_tells_the_load_the_verdict_and_the_intervals() -> None:
    control = next(iter(_named(_front(), 1).values()))
    assert control.hovertext[1] == (  # type: ignore[attr-defined]
        "<b>trial 0 (simulated) · control (engine defaults)</b><br>12 requests/s (speed 3), SLO held"
        "<br>TTFT p95 (ms): 120 (108 to ?)<br>TPOT p95 (ms): 20 (19 to 22)<br>E2E p95 (ms): 2200 (1000 to ∞)"
        "<br>SLO attainment: 0.98 (0.9 to 1)"
    )


def test_of_a_large_front_a_few_are_drawn_from_end_to_end_each_with_its_own_mark() -> None:
    trials = [
        stories.stored(loads.measured((loads.whole(1.5), loads.whole(3.0 + n)), tpot_p95_s=0.01 * n), n)
        for n in range(1, 31)
    ]
    seen = view(loads.study(), trials)
    assert len(seen.front) == 30
    drawn = _named(seen, 1)
    numbers = [int(name.split()[1].removesuffix(":")) for name in drawn]
    assert {1, 30} < set(numbers)
    assert len(numbers) == 6
    assert len({trace.marker.symbol for trace in drawn.values()}) == 6  # type: ignore[attr-defined]
    assert "24 more on the front are not drawn" in curves_figure(seen).layout.title.subtitle.text


def test_a_study_without_curves_has_no_page() -> None:
    front = view(stories.study_file(), [stories.stored(stories.measured(), 1)])
    assert not has_curves(front)
    assert has_curves(_front())
    assert not curves_figure(front).data


def test_the_page_needs_no_network_names_stay_text_and_simulated_is_said() -> None:
    page = curves_html(_front())
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    assert "SIMULATED" in page
    front = dataclasses.replace(_front(), study=dataclasses.replace(loads.study(), name="<img src=x>"))
    assert "<img src=x>" not in curves_figure(front).layout.title.text
