import dataclasses

import pytest

from tests.tuner import stories
from tuner.entries import study_entry
from tuner.front import FrontView, view
from tuner.history import best_so_far, history
from tuner.history_plot import history_figure, history_html
from tuner.records import StoredTrial


def _trials() -> list[StoredTrial]:
    # A control of 2, then 1 (worse), a failure, 5, and 5 again, which showed 9.
    return [
        stories.stored(stories.measured(2.0, 0.05), 0),
        stories.stored(stories.measured(1.0, 0.03), 1),
        stories.stored(stories.failed(), 2),
        stories.stored(stories.measured(5.0, 0.04), 3),
        dataclasses.replace(stories.stored(stories.measured(9.0, 0.01), 4), repeats=3),
    ]


@pytest.fixture
def seen() -> FrontView:
    return view(stories.study_file(), _trials())


def test_the_best_so_far_of_each_objective_goes_its_own_way(seen: FrontView) -> None:
    assert [moment.best for moment in history(seen, "goodput")] == [2, 2, 2, 5, 5]
    assert [moment.best for moment in history(seen, "tpot_p95")] == pytest.approx([50, 30, 30, 30, 30])
    assert [moment.value for moment in history(seen, "goodput")] == [2, 1, None, 5, None]


def test_a_study_without_a_score_has_no_best() -> None:
    seen = view(stories.study_file(), [stories.stored(stories.failed(), 0)])
    assert best_so_far(seen) == {}
    assert history(seen, "goodput")[0].best is None
    assert best_so_far(view(stories.study_file(), [])) == {}


def test_mlflow_charts_it_under_a_prefix_of_its_own(seen: FrontView) -> None:
    metrics = study_entry(seen, "").metrics
    assert metrics["best/goodput_rps"] == 5
    assert metrics["best/tpot_p95_ms"] == pytest.approx(30)


def test_the_page_has_a_row_an_objective_with_repeats_and_failures(seen: FrontView) -> None:
    figure = history_figure(seen)
    by_name = {(trace.name, trace.yaxis): trace for trace in figure.data}
    assert list(by_name["best so far", "y"].y) == [2, 2, 2, 5, 5]
    assert list(by_name["measured again", "y"].x) == [4]
    assert list(by_name["control", "y"].x) == [0]
    (lost,) = (trace for trace in figure.data if trace.name == "no score")
    assert list(lost.x) == [2]
    assert "SIMULATED" in figure.layout.title.text


def test_the_page_needs_no_network(seen: FrontView) -> None:
    page = history_html(seen)
    assert "<script src=" not in page
    assert "cdn.plot.ly" not in page.partition("plotly.js")[0]
