"""A study's configs as parallel coordinates, an interactive page: drag along an axis to keep only its part.

One line a config with a score, from its parameters to its objectives, in the colour of the first objective.
The axis "front" keeps the front alone. Parameters of branches that a config has not taken are "–" on theirs.
"""

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from objectives.metrics import METRICS
from search_spaces.values import Scalar
from tuner.front import FrontView
from tuner.records import State, StoredTrial
from tuner.titles import varied

_NOT_TAKEN = "–"
_LONGEST = 14
"""Characters of a choice beside its axis."""

_TICKS = 12
"""Most choices that are all written beside an axis."""


def parallel_html(view: FrontView) -> str:
    """The whole page. Needs no network."""
    page: str = parallel_figure(view).to_html(
        include_plotlyjs=True,
        full_html=True,
        default_height="calc(100vh - 24px)",  # the body's own margins, or a viewer shows a scroll bar
        config={"displaylogo": False, "responsive": True},
    )
    return page


def parallel_figure(view: FrontView) -> go.Figure:
    """An axis each for parameters that differ, objectives and the front."""
    trials = [trial for trial in view.standing if trial.state is State.MEASURED]
    # Of those that the space cannot vary, a branch's only model, the branch tells already.
    open_ = set(varied(view.study))
    paths = dict.fromkeys(
        path for trial in trials for path in (trial.config or {}) if not open_ or path in open_
    )
    dimensions = [
        dimension
        for path in paths
        if (dimension := _parameter(path, [_value(trial, path) for trial in trials])) is not None
    ]
    for objective in view.goal.objectives:
        unit = METRICS[objective.metric].shown_unit
        values = [view.objective_values(trial)[objective.name].value for trial in trials]
        dimensions.append(
            {"label": f"<b>{objective.name}</b> ({unit})", "values": values, "tickformat": ".3~g"}
        )
    on_front = ["yes" if trial.number in view.numbers else "no" for trial in trials]
    front = _choices("front", on_front, ["no", "yes"])
    figure = go.Figure()
    if trials:
        first = view.goal.objectives[0]
        aims = [view.objective_values(trial)[first.name].value for trial in trials]
        figure.add_trace(
            go.Parcoords(
                line={
                    "color": aims,
                    "colorscale": "Viridis",
                    "reversescale": first.direction == "minimise",
                    "showscale": True,
                    "colorbar": {"title": {"text": first.name}},
                },
                dimensions=[*dimensions, front],
                labelangle=-20,
                tickfont={"size": 11},
            )
        )
    simulated = " · <b>SIMULATED</b>, not measured" if view.study.engine == "simulated" else ""
    figure.update_layout(
        title={
            "text": f"{escape(view.study.name)} · {len(trials)} configs{simulated}",
            "subtitle": {"text": "drag along an axis to keep only its part; click it to let go"},
        },
        template="plotly_white",
        margin={"t": 190, "l": 90, "r": 60},
    )
    return figure


def _value(trial: StoredTrial, path: str) -> Scalar | str:
    config = trial.config or {}
    return config.get(path, _NOT_TAKEN)


def _parameter(path: str, values: Sequence[Scalar | str]) -> dict[str, object] | None:
    """Its axis; None where all configs have it alike."""
    if len(set(map(str, values))) < 2:
        return None
    label = escape(path.replace("_", " "))
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values) and len(set(numbers)) > _TICKS:
        whole = all(isinstance(value, int) for value in numbers)
        return {"label": label, "values": list(numbers), "tickformat": "d" if whole else ".3~g"}
    if numbers and len(set(numbers)) > _TICKS:
        # What has not taken the branch stands below all that have.
        low, high = min(numbers), max(numbers)
        below = low - 0.1 * (high - low)
        places = [below if isinstance(v, str) or v is None else float(v) for v in values]
        return {
            "label": label,
            "values": places,
            "tickvals": [below, low, high],
            "ticktext": [_NOT_TAKEN, f"{low:g}", f"{high:g}"],
        }
    return _choices(label, [_words(value) for value in values], _ordered(values))


def _choices(label: str, values: Sequence[str], order: Sequence[str]) -> dict[str, object]:
    places = {words: place for place, words in enumerate(order)}
    return {
        "label": label,
        "values": [places[value] for value in values],
        "tickvals": list(places.values()),
        "ticktext": [escape(_cut(words)) for words in places],
        "range": [-0.2, max(len(places) - 0.8, 0.2)],
    }


def _cut(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _ordered(values: Sequence[Scalar | str]) -> list[str]:
    """Numbers by size, after words in the order in which they came."""
    words = dict.fromkeys(_words(value) for value in values if not _is_number(value))
    numbers = sorted({value for value in values if _is_number(value)}, key=lambda value: float(str(value)))
    return [*words, *(_words(number) for number in numbers)]


def _is_number(value: Scalar | str) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(value: Scalar | str) -> str:
    """Short enough to stand beside an axis: of a model, its name without its owner."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value).rpartition("/")[2] or str(value)
