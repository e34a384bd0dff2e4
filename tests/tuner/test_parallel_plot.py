import dataclasses

from search_spaces.values import Scalar
from tests.tuner import stories
from tests.tuner.test_runs_table import SPACE
from tuner.front import FrontView, view
from tuner.parallel_plot import parallel_figure, parallel_html


def _view(*configs: dict[str, Scalar]) -> FrontView:
    trials = [
        dataclasses.replace(stories.stored(stories.measured(1.0 + n, 0.03), n), config=config)
        for n, config in enumerate(configs)
    ]
    return view(stories.study_file(), trials)


def _axes(seen: FrontView) -> dict[str, dict[str, object]]:
    (trace,) = parallel_figure(seen).data
    return {dimension.label: dimension.to_plotly_json() for dimension in trace.dimensions}


def _shown(axis: dict[str, object]) -> list[str]:
    """What stands beside the axis where each line crosses it."""
    places = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))  # type: ignore[call-overload]
    return [places[value] for value in axis["values"]]  # type: ignore[attr-defined]


def test_choices_numbers_and_branches_each_have_their_axis() -> None:
    seen = _view(
        {"scheme": "bf16", "same": 1, "speculation": "off"},
        {"scheme": "fp8", "same": 1, "speculation": "ngram", "speculation.depth": 4},
        {"scheme": "fp8", "same": 1, "speculation": "ngram", "speculation.depth": 2},
    )
    axes = _axes(seen)
    assert "same" not in axes  # it tells nothing
    assert _shown(axes["scheme"]) == ["bf16", "fp8", "fp8"]
    assert _shown(axes["speculation.depth"]) == ["–", "4", "2"]
    assert list(axes["<b>goodput</b> (requests/s)"]["values"]) == [1, 2, 3]  # type: ignore[call-overload]
    assert _shown(axes["front"]) == ["no", "no", "yes"]


def test_a_number_of_many_values_has_a_scale_and_untaken_branches_stand_below_it() -> None:
    many: list[dict[str, Scalar]] = [{"a": "x", "a.depth": n} for n in range(1, 31)]
    axis = _axes(_view({"a": "off"}, *many))["a.depth"]
    values = list(axis["values"])  # type: ignore[call-overload]
    assert values[0] < min(values[1:])
    assert values[1:] == list(range(1, 31))
    assert axis["ticktext"][0] == "–"  # type: ignore[index]


def test_two_long_choices_that_begin_alike_stay_two() -> None:
    long = "organisation/a-model-with-a-very-long-name"
    axis = _axes(_view({"m": f"{long}-one"}, {"m": f"{long}-two"}))["m"]
    assert len(set(axis["values"])) == 2  # type: ignore[call-overload]
    assert all(len(text) < 20 for text in axis["ticktext"])  # type: ignore[attr-defined]


def test_a_study_without_a_score_has_a_page() -> None:
    seen = view(stories.study_file(), [stories.stored(stories.failed(), 0)])
    assert not parallel_figure(seen).data
    assert "0 configs" in parallel_html(seen)


def test_what_the_space_cannot_vary_has_no_axis() -> None:
    configs: list[dict[str, Scalar]] = [
        {"speculation": "ngram", "speculation.only": "one"},
        {"speculation": "off"},
    ]
    seen = _view(*configs)
    assert "speculation.only" in _axes(seen)  # a space that cannot be read: nothing is known of it
    told = dataclasses.replace(seen.study, space_text=SPACE)
    assert "speculation.only" not in _axes(dataclasses.replace(seen, study=told))


def test_choices_are_escaped() -> None:
    axis = _axes(_view({"a": "<b>x"}, {"a": "y"}))["a"]
    assert "&lt;b&gt;x" in axis["ticktext"]  # type: ignore[operator]
