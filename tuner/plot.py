"""The front as an interactive figure: one HTML file with everything in it, no network needed to open it.

One objective is drawn over the trial's number; two as a plane with the front as a staircase; more as
a matrix of planes. Intervals are error bars. Failed trials have no place in it: they have no numbers.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go

from objectives.measurement import Estimate
from objectives.metrics import METRICS
from tuner.front import FrontView
from tuner.records import State, StoredTrial
from tuner.titles import trial_title


@dataclass(frozen=True, slots=True)
class _Group:
    """Trials drawn alike."""

    name: str
    colour: str
    symbol: str
    trials: tuple[StoredTrial, ...]


def front_html(front: FrontView) -> str:
    """The whole page. Needs no network."""
    page: str = front_figure(front).to_html(include_plotlyjs=True, full_html=True)
    return page


def front_figure(front: FrontView) -> go.Figure:
    """The figure of a study's measured trials."""
    count = len(front.goal.objectives)
    if count > 2:
        figure = _matrix(front)
    else:
        figure = go.Figure()
        if count == 2:
            figure.add_trace(_staircase(front))
        for group in _groups(front):
            figure.add_trace(_points(front, group))
        figure.update_xaxes(title=_axis(front, 0) if count == 2 else "trial")
        figure.update_yaxes(title=_axis(front, count - 1))
    simulated = " · SIMULATED" if front.study.engine == "simulated" else ""
    figure.update_layout(
        title=escape(f"{front.study.name}: {' and '.join(front.goal.names)}{simulated}"),
        template="plotly_white",
        hovermode="closest",
        legend={"orientation": "h", "y": -0.2},
    )
    return figure


def _groups(front: FrontView) -> tuple[_Group, ...]:
    scored = [trial for trial in front.trials if trial.state is State.MEASURED]
    control = tuple(trial for trial in scored if trial.is_control)
    best = tuple(trial for trial in scored if trial.number in front.numbers and not trial.is_control)
    rest = tuple(trial for trial in scored if trial.number not in front.numbers and not trial.is_control)
    control_name = "control, on the front" if any(t.number in front.numbers for t in control) else "control"
    groups = (
        _Group("dominated", "#9aa5b1", "circle", rest),
        _Group("front", "#0b7285", "circle", best),
        _Group(control_name, "#e8590c", "diamond", control),
    )
    return tuple(group for group in groups if group.trials)


def _values(front: FrontView, trials: Sequence[StoredTrial], index: int) -> list[Estimate]:
    name = front.goal.names[index]
    return [front.objective_values(trial)[name] for trial in trials]


def _points(front: FrontView, group: _Group) -> go.Scatter:
    last = len(front.goal.objectives) - 1
    y = _values(front, group.trials, last)
    place: dict[str, object] = {"x": [trial.number for trial in group.trials]}
    if last == 1:
        x = _values(front, group.trials, 0)
        place = {"x": [estimate.value for estimate in x], "error_x": _bars(x)}
    return go.Scatter(
        mode="markers",
        name=group.name,
        y=[estimate.value for estimate in y],
        error_y=_bars(y),
        marker={"color": group.colour, "symbol": group.symbol, "size": 10},
        text=[_hover(front, trial) for trial in group.trials],
        hoverinfo="text",
        **place,
    )


def _bars(estimates: Sequence[Estimate]) -> dict[str, object]:
    """Error bars down to `low` and up to `high`; none on the side that has no end."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if e.high is None else max(e.high - e.value, 0.0) for e in estimates],
        "arrayminus": [0.0 if e.low is None else max(e.value - e.low, 0.0) for e in estimates],
        "thickness": 1,
        "width": 2,
    }


def _staircase(front: FrontView) -> go.Scatter:
    """The border of what the front dominates: from each point the worse side is filled at right angles."""
    measurements = [trial.measurement for trial in front.front if trial.measurement is not None]
    losses = sorted(front.goal.losses(measurement) for measurement in measurements)
    corners = [losses[0]] if losses else []
    for before, after in itertools.pairwise(losses):
        corners += [(after[0], before[1]), after]
    shown = [front.goal.values(corner) for corner in corners]
    first, second = (METRICS[objective.metric].factor for objective in front.goal.objectives)
    return go.Scatter(
        mode="lines",
        name="border",
        x=[value[0] * first for value in shown],
        y=[value[1] * second for value in shown],
        line={"color": "#0b7285", "dash": "dot", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )


def _matrix(front: FrontView) -> go.Figure:
    figure = go.Figure()
    for group in _groups(front):
        columns = [
            [estimate.value for estimate in _values(front, group.trials, index)]
            for index in range(len(front.goal.objectives))
        ]
        figure.add_trace(
            go.Splom(
                name=group.name,
                dimensions=[
                    {"label": _axis(front, index), "values": column} for index, column in enumerate(columns)
                ],
                marker={"color": group.colour, "symbol": group.symbol, "size": 8},
                text=[_hover(front, trial) for trial in group.trials],
                hoverinfo="text",
                diagonal_visible=False,
            )
        )
    return figure


def _axis(front: FrontView, index: int) -> str:
    objective = front.goal.objectives[index]
    metric = METRICS[objective.metric]
    better = "more is better" if objective.direction == "maximise" else "less is better"
    return f"{objective.name} ({metric.shown_unit}, {better})"


def _hover(front: FrontView, trial: StoredTrial) -> str:
    lines = [f"<b>{escape(trial_title(trial))}</b>"]
    for name, estimate in front.objective_values(trial).items():
        low, high = (("?" if end is None else f"{end:.4g}") for end in (estimate.low, estimate.high))
        lines.append(f"{name} {estimate.value:.4g} ({low} to {high})")
    return "<br>".join(lines)
