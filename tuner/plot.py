"""The front as an interactive figure: one HTML file with everything in it, no network needed to open it.

One objective is drawn over the trial's number; two as a plane with the front as a staircase; more as
a matrix of planes. Intervals are error bars. Failed trials have no place in it: they have no numbers.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

import plotly.graph_objects as go

from objectives.measurement import Estimate, Measurement
from objectives.metrics import METRICS, Metric
from tuner.bracket import estimate_text
from tuner.front import FrontView
from tuner.loads import measured_text
from tuner.records import State, StoredTrial
from tuner.titles import doubt_mark, trial_title

_BLUE, _VERMILION = "#0072b2", "#d55e00"
_EXPLAIN = (
    "capacity_rps",
    "slo_attainment",
    "ttft_p95_s",
    "tpot_p95_s",
    "accepted_tokens_per_target_step",
    "batch_occupancy",
    "prefix_hit_rate",
)
"""What hovering over a trial tells beside its objectives."""
_UNITS = {"share": "", "count": "", "tokens": "", "ratio": ""}
"""Where a metric's name says it already."""
_CROWDED = 0.05
"""Of the picture: labels of points nearer than this would cover each other."""
_HOVER_WIDTH = 60
"""Characters of a line, so that a long config stays on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Trials drawn alike."""

    name: str
    colour: str
    bars: str
    """Colour of the error bars."""
    symbol: str
    trials: tuple[StoredTrial, ...]
    best: bool = False
    """On the front."""
    labelled: bool = True
    """Whether a word stands beside each: a crowd of dominated trials would cover what matters."""


def front_html(front: FrontView) -> str:
    """The whole page. Needs no network."""
    page: str = front_figure(front).to_html(
        include_plotlyjs=True,
        full_html=True,
        default_height="calc(100vh - 24px)",  # the body's own margins, or a viewer shows a scroll bar
        config={"displaylogo": False, "responsive": True},
    )
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
    figure.update_layout(
        title={"text": _title(front), "subtitle": {"text": _subtitle(front)}},
        template="plotly_white",
        font={"size": 14 if count <= 2 else 11},
        hovermode="closest",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1.0, "xanchor": "right"},
        margin={"t": 110},
    )
    return figure


def _title(front: FrontView) -> str:
    name = escape(front.study.name)
    return f"{name} · <b>SIMULATED</b>, not measured" if front.study.engine == "simulated" else name


def _subtitle(front: FrontView) -> str:
    """On what load, and what the picture leaves out."""
    missing = len(front.standing) - sum(len(group.trials) for group in _groups(front))
    parts = [
        measured_text(front.study),
        *(["bars: 95 % intervals"] if len(front.goal.objectives) <= 2 else []),
        *([f"{missing} of {len(front.standing)} configs gave no numbers"] if missing else []),
    ]
    return " · ".join(parts)


def _groups(front: FrontView) -> tuple[_Group, ...]:
    """In the colours of Okabe and Ito, which colour-blind people tell apart, and in shapes for the rest."""
    scored = [trial for trial in front.standing if trial.state is State.MEASURED]
    control = tuple(trial for trial in scored if trial.is_control)
    best = tuple(trial for trial in scored if trial.number in front.numbers and not trial.is_control)
    rest = tuple(trial for trial in scored if trial.number not in front.numbers and not trial.is_control)
    control_best = any(trial.number in front.numbers for trial in control)
    groups = (
        _Group(
            name="dominated",
            colour="#6b7280",
            bars="#c4c8ce",
            symbol="circle-open",
            trials=rest,
            labelled=False,
        ),
        _Group(name="front", colour=_BLUE, bars=_BLUE, symbol="circle", trials=best, best=True),
        _Group(
            name="control, on the front" if control_best else "control",
            colour=_VERMILION,
            bars=_VERMILION,
            symbol="diamond",
            trials=control,
            best=control_best,
        ),
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
        place = {"x": [estimate.value for estimate in x], "error_x": _bars(x, group.bars)}
    return go.Scatter(
        mode="markers+text" if group.labelled else "markers",
        name=group.name,
        y=[estimate.value for estimate in y],
        error_y=_bars(y, group.bars),
        marker={
            "color": group.colour,
            "symbol": group.symbol,
            "size": 11,
            "line": {"width": 2, "color": group.colour},
        },
        text=_labels(front, group),
        textposition=_sides(front, group),
        textfont={"color": group.colour},
        hovertext=[_hover(front, trial) for trial in group.trials],
        hoverinfo="text",
        **place,
    )


def _labels(front: FrontView, group: _Group) -> list[str]:
    """A word for each; of several that lie in one place only the best has one, with how many more there are.

    Best by the first objective, and what is recommended before all.
    """
    places = _places(front, group.trials)
    first = None if front.recommended is None else front.recommended.number
    rank = {trial.number: rank for rank, trial in enumerate(front.best_first)}
    order = sorted(group.trials, key=lambda t: (t.number != first, rank.get(t.number, len(rank)), t.number))
    crowds: dict[int, int] = {}
    for trial in order:
        x, y = places[trial.number]
        heads = (one for one in crowds if math.hypot(x - places[one][0], y - places[one][1]) < _CROWDED)
        head = next(heads, None)
        crowds[trial.number if head is None else head] = 0 if head is None else crowds[head] + 1
    return [_label(trial, crowds[trial.number]) if trial.number in crowds else "" for trial in group.trials]


def _label(trial: StoredTrial, more: int) -> str:
    name = f"{'control' if trial.is_control else trial.number}{doubt_mark(trial)}"
    return f"{name} (+{more})" if more else name


def _places(front: FrontView, trials: Sequence[StoredTrial]) -> dict[int, tuple[float, float]]:
    """Where trials lie, as shares of what all of the study's take up."""
    scored = [trial for trial in front.standing if trial.state is State.MEASURED]
    sides = []
    for index in range(len(front.goal.objectives)):
        everywhere = [estimate.value for estimate in _values(front, scored, index)]
        low, width = min(everywhere), max(everywhere) - min(everywhere)
        own = [estimate.value for estimate in _values(front, trials, index)]
        sides.append([(value - low) / width if width else 0.0 for value in own])
    if len(sides) == 1:
        last = max(trial.number for trial in scored) or 1
        sides.insert(0, [trial.number / last for trial in trials])
    return {trial.number: (x, y) for trial, x, y in zip(trials, sides[0], sides[1], strict=True)}


def _sides(front: FrontView, group: _Group) -> list[str]:
    """Where each point's label stands: along the front in turn on its better and on its worse side, clear
    of the border between, so that neighbours do not cover each other. What is not on the front has its
    label on the worse side."""
    *first, last = [objective.direction == "maximise" for objective in front.goal.objectives]
    right, top = all(first), last
    sides = (_corner(right=right, top=top), _corner(right=not right, top=not top))
    name = front.goal.names[0]
    labelled = [trial for trial, text in zip(group.trials, _labels(front, group), strict=True) if text]
    ordered = sorted(labelled, key=lambda trial: front.objective_values(trial)[name].value)
    turn = {trial.number: place % 2 for place, trial in enumerate(ordered)}
    return [sides[turn.get(trial.number, 0) if group.best else 1] for trial in group.trials]


def _corner(*, right: bool, top: bool) -> str:
    return f"{'top' if top else 'bottom'} {'right' if right else 'left'}"


def _bars(estimates: Sequence[Estimate], colour: str) -> dict[str, object]:
    """Error bars down to `low` and up to `high`; none on the side that has no end."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if e.high is None else max(e.high - e.value, 0.0) for e in estimates],
        "arrayminus": [0.0 if e.low is None else max(e.value - e.low, 0.0) for e in estimates],
        "color": colour,
        "thickness": 1.2,
        "width": 4,
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
        line={"color": _BLUE, "dash": "dot", "width": 1},
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
                    {
                        "label": _axis(front, index).replace(" (", "<br>(", 1).replace(", ", ",<br>", 1),
                        "values": column,
                    }
                    for index, column in enumerate(columns)
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
    better = "more is better" if objective.direction == "maximise" else "less is better"
    return f"{objective.name} ({METRICS[objective.metric].shown_unit}, {better})"


def _hover(front: FrontView, trial: StoredTrial) -> str:
    """What a trial is, its objectives with their intervals, and what explains them."""
    title = wrap(trial_title(trial, front.study), _HOVER_WIDTH)
    lines = [f"<b>{escape(line)}</b>" for line in title]
    if trial.measurement is not None:
        objectives = [objective.metric for objective in front.goal.objectives]
        names = [n for n in dict.fromkeys([*objectives, *_EXPLAIN]) if n in trial.measurement.metrics]
        lines += [escape(_line(METRICS[name], trial.measurement)) for name in names]
        doubts = (f"! client and engine disagree: {text}" for text in trial.measurement.disagreements)
        lines += [escape(line) for text in doubts for line in wrap(text, _HOVER_WIDTH)]
    return "<br>".join(lines)


def _line(metric: Metric, measurement: Measurement) -> str:
    """`tpot p95: 31 (29 to 33) ms`, `capacity: at least 24 (23 to ?) requests/s`."""
    name = metric.name.removesuffix("_s").removesuffix("_rps").replace("_", " ")
    unit = _UNITS.get(metric.unit, f" {metric.shown_unit}")
    return f"{name}: {estimate_text(measurement, metric.name)}{unit}"
