"""How a study came to its best, as an interactive page: every trial in turn, and the best so far as steps."""

from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from objectives.metrics import METRICS
from tuner.front import FrontView
from tuner.history import Moment, history
from tuner.records import State
from tuner.titles import number, trial_title

_BLUE, _VERMILION, _GREY = "#0072b2", "#d55e00", "#6b7280"


def history_html(view: FrontView) -> str:
    """The whole page. Needs no network."""
    page: str = history_figure(view).to_html(
        include_plotlyjs=True,
        full_html=True,
        default_height="calc(100vh - 24px)",  # the body's own margins, or a viewer shows a scroll bar
        config={"displaylogo": False, "responsive": True},
    )
    return page


def history_figure(view: FrontView) -> go.Figure:
    """A row an objective. Repeats are crosses where they ran; failures stand at the foot, for they have no
    number."""
    names = view.goal.names
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for row, name in enumerate(names, 1):
        objective = view.goal.objectives[row - 1]
        moments = history(view, name)
        first = row == 1
        figure.add_trace(_staircase(moments, legend=first), row=row, col=1)
        for kind, colour, symbol in (("control", _VERMILION, "diamond"), ("trial", _BLUE, "circle")):
            shown = [m for m in moments if m.value is not None and m.trial.is_control is (kind == "control")]
            figure.add_trace(_points(view, shown, kind, colour, symbol, legend=first), row=row, col=1)
        figure.add_trace(_repeats(view, name, legend=first), row=row, col=1)
        unit = METRICS[objective.metric].shown_unit
        better = "more" if objective.direction == "maximise" else "less"
        figure.update_yaxes(title=f"{name} ({unit})<br>{better} is better", row=row, col=1)
    _failures(figure, view)
    figure.update_xaxes(title="trial", row=len(names), col=1)
    simulated = " · <b>SIMULATED</b>, not measured" if view.study.engine == "simulated" else ""
    failed = sum(trial.state is not State.MEASURED for trial in view.trials)
    subtitle = f"{len(view.trials)} trials" + (f", {failed} without a score" if failed else "")
    figure.update_layout(
        title={
            "text": f"{escape(view.study.name)} · best so far{simulated}",
            "subtitle": {"text": subtitle},
        },
        template="plotly_white",
        hovermode="closest",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1.0, "xanchor": "right"},
        margin={"t": 110},
    )
    return figure


def _staircase(moments: tuple[Moment, ...], *, legend: bool) -> go.Scatter:
    known = [moment for moment in moments if moment.best is not None]
    return go.Scatter(
        mode="lines",
        name="best so far",
        legendgroup="best",
        showlegend=legend,
        x=[moment.trial.number for moment in known],
        y=[moment.best for moment in known],
        line={"shape": "hv", "color": _BLUE, "width": 2},
        hoverinfo="skip",
    )


def _points(
    view: FrontView, shown: list[Moment], kind: str, colour: str, symbol: str, *, legend: bool
) -> go.Scatter:
    return go.Scatter(
        mode="markers",
        name=kind,
        legendgroup=kind,
        showlegend=legend and bool(shown),
        x=[moment.trial.number for moment in shown],
        y=[moment.value for moment in shown],
        marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.75},
        hovertext=[
            f"<b>{escape(trial_title(m.trial, view.study))}</b><br>{number(m.value or 0.0)}" for m in shown
        ],
        hoverinfo="text",
    )


def _repeats(view: FrontView, name: str, *, legend: bool) -> go.Scatter:
    shown = [
        (trial, view.objective_values(trial)[name].value)
        for trial in view.trials
        if trial.repeats is not None and name in view.objective_values(trial)
    ]
    return go.Scatter(
        mode="markers",
        name="measured again",
        legendgroup="again",
        showlegend=legend and bool(shown),
        x=[trial.number for trial, _ in shown],
        y=[value for _, value in shown],
        marker={"color": _GREY, "symbol": "x-thin-open", "size": 8},
        hovertext=[f"{escape(trial_title(trial, view.study))}<br>{number(value)}" for trial, value in shown],
        hoverinfo="text",
    )


def _failures(figure: go.Figure, view: FrontView) -> None:
    """At the foot of the last row."""
    lost = [trial for trial in view.trials if trial.state is not State.MEASURED]
    if not lost:
        return
    rows = len(view.goal.names)
    figure.add_trace(
        go.Scatter(
            mode="markers",
            name="no score",
            x=[trial.number for trial in lost],
            y=[0.0] * len(lost),
            yaxis=f"y{rows + 1}",
            marker={"color": _VERMILION, "symbol": "triangle-up-open", "size": 9},
            hovertext=[
                f"{escape(trial_title(trial, view.study))}<br>{escape(str(trial.cause or 'no score'))}"
                for trial in lost
            ],
            hoverinfo="text",
            xaxis=f"x{rows if rows > 1 else ''}",
        )
    )
    below = f"y{rows if rows > 1 else ''}"
    hidden = {"overlaying": below, "range": [-0.02, 1.0], "visible": False, "fixedrange": True}
    figure.update_layout({f"yaxis{rows + 1}": hidden})
