"""Latency against rate, a few trials of the front and the control over each other: one interactive HTML page.

A large marker stands at a trial's capacity. Lines end at the last replay that was played whole; of those that
were cut, the panel of attainment has the most that can have met the SLO.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from objectives.metrics import METRICS, latency_metric
from tuner.bracket import bracket, capacity_text
from tuner.chosen import chosen_few
from tuner.curve import DRAWN, Rated, curve, limit_ms, spans_decades
from tuner.front import FrontView
from tuner.records import StoredTrial
from tuner.titles import doubt_mark, interval, number, trial_title

_CONTROL = "#d55e00"
_COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Of Okabe and Ito, which colour-blind people tell apart, without the yellow that white swallows."""
_SYMBOLS = ("circle", "square", "triangle-up", "cross", "x", "pentagon")
"""One each, since configs alike in their curves lie on each other."""
_PANELS = (*(latency_metric(latency, 95) for latency in DRAWN), "slo_attainment")
_SMALL, _LARGE = 7, 14
_HOVER_WIDTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One trial's look in all panels."""

    trial: StoredTrial
    replays: tuple[Rated, ...]
    colour: str
    dash: str
    symbol: str


def has_curves(front: FrontView) -> bool:
    """Whether there is anything to draw: a trial of the front, or a control, with two rates at least."""
    return bool(_lines(front))


def curves_html(front: FrontView) -> str:
    """The whole page. Needs no network."""
    page: str = curves_figure(front).to_html(
        include_plotlyjs=True,
        full_html=True,
        default_height="calc(100vh - 24px)",  # the body's own margins, or a viewer shows a scroll bar
        config={"displaylogo": False, "responsive": True},
    )
    return page


def curves_figure(front: FrontView) -> go.Figure:
    """A panel a latency, by its p95, and one for SLO attainment; the same trials in the same colours."""
    figure = make_subplots(
        rows=2, cols=2, vertical_spacing=0.14, subplot_titles=[_panel_title(name) for name in _PANELS]
    )
    lines = _lines(front)
    for place, metric in enumerate(_PANELS):
        row, column = divmod(place, 2)
        where = {"row": row + 1, "col": column + 1}
        for line in lines:
            figure.add_trace(_drawn(front, line, metric, legend=place == 0), **where)
        if metric == "slo_attainment":
            for line in lines:
                figure.add_trace(_cuts(line), **where)
        limit = (
            front.study.slo.attainment if metric == "slo_attainment" else limit_ms(front.study.slo, metric)
        )
        if limit is not None and lines:
            # A little more than the limit, or its line runs along the panel's edge.
            figure.update_yaxes(autorangeoptions={"include": [1.05 * limit]}, **where)
            figure.add_hline(limit, line={"dash": "dash", "width": 1, "color": "#444444"}, **where)
        figure.update_xaxes(title="offered requests/s" if row == 1 else None, rangemode="tozero", **where)
        values = [shown.value for line in lines for r in line.replays if (shown := r.shown(metric))]
        if spans_decades(values):
            figure.update_yaxes(type="log", dtick="D2", **where)
        elif metric != "slo_attainment":
            figure.update_yaxes(rangemode="tozero", **where)
    figure.update_layout(
        title={"text": _title(front), "subtitle": {"text": _subtitle(front)}},
        template="plotly_white",
        hovermode="closest",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": -0.14, "yanchor": "top"},
        margin={"t": 110},
    )
    return figure


def _title(front: FrontView) -> str:
    name = f"{escape(front.study.name)} · latency against rate"
    return f"{name} · <b>SIMULATED</b>, not measured" if front.study.engine == "simulated" else name


def _subtitle(front: FrontView) -> str:
    drawn = {line.trial.number for line in _lines(front)}
    missing = len(set(front.numbers) - drawn)
    parts = [
        "large marker: capacity",
        "dashed: the SLO",
        "triangle: cut, at most this share met it",
        *([f"{missing} more on the front are not drawn"] if missing else []),
    ]
    return " · ".join(parts)


def _panel_title(metric: str) -> str:
    known = METRICS[metric]
    if metric == "slo_attainment":
        return "SLO attainment"
    latency, percentile = known.name.removesuffix("_s").split("_")
    return f"{latency.upper()} {percentile} ({known.shown_unit})"


def _lines(front: FrontView) -> list[_Line]:
    """The control, then a few spread over the front; all of a large one would cover each other."""
    trials = {t.number: t for t in (*front.control, *front.standing) if curve(t.measurement)}
    looks = iter(zip(_COLOURS, _SYMBOLS, strict=True))
    found = []
    for trial in (trials[chosen] for chosen in chosen_few(front) if chosen in trials):
        colour, symbol = (_CONTROL, "diamond") if trial.is_control else next(looks)
        found.append(
            _Line(
                trial=trial,
                replays=curve(trial.measurement),
                colour=colour,
                dash="dash" if trial.is_control else "solid",
                symbol=symbol,
            )
        )
    return found


def _drawn(front: FrontView, line: _Line, metric: str, *, legend: bool) -> go.Scatter:
    whole = [(replay, shown) for replay in line.replays if (shown := replay.shown(metric))]
    return go.Scatter(
        mode="lines+markers",
        name=_name(line.trial),
        legendgroup=str(line.trial.number),
        showlegend=legend,
        x=[replay.rps for replay, _ in whole],
        y=[shown.value for _, shown in whole],
        line={"color": line.colour, "dash": line.dash, "width": 2},
        marker={
            "color": line.colour,
            "symbol": line.symbol,
            "size": _sizes(line, [replay for replay, _ in whole]),
        },
        hovertext=[_hover(front, line.trial, replay) for replay, _ in whole],
        hoverinfo="text",
    )


def _cuts(line: _Line) -> go.Scatter:
    cut = [replay for replay in line.replays if replay.point.cut_s is not None]
    return go.Scatter(
        mode="markers",
        name=f"{_name(line.trial)}, cut",
        legendgroup=str(line.trial.number),
        showlegend=False,
        x=[replay.rps for replay in cut],
        y=[replay.most_met for replay in cut],
        marker={
            "symbol": "triangle-down-open",
            "size": 9,
            "color": line.colour,
        },
        hovertext=[
            escape(
                f"trial {line.trial.number} at {number(replay.rps)} requests/s: SLO broken, cut after "
                f"{number(replay.point.cut_s or 0.0)} s with {replay.point.misses} misses"
            )
            for replay in cut
        ],
        hoverinfo="text",
    )


def _sizes(line: _Line, replays: Sequence[Rated]) -> list[int]:
    found = bracket(line.trial.measurement)
    held = None if found is None else found.held
    return [_LARGE if replay.point is held else _SMALL for replay in replays]


def _name(trial: StoredTrial) -> str:
    who = f"{'control' if trial.is_control else f'trial {trial.number}'}{doubt_mark(trial)}"
    text = capacity_text(trial.measurement)
    return who if text is None else f"{who}: {text}"


def _hover(front: FrontView, trial: StoredTrial, replay: Rated) -> str:
    """What the trial is, at what rate, and all that is drawn of this replay with its intervals."""
    title = [f"<b>{escape(line)}</b>" for line in wrap(trial_title(trial, front.study), _HOVER_WIDTH)]
    verdict = "held" if replay.point.held else "broken"
    lines = [f"{number(replay.rps)} requests/s (speed {number(replay.point.speed)}), SLO {verdict}"]
    for metric in _PANELS:
        shown = replay.shown(metric)
        if shown is not None:
            lines.append(f"{_panel_title(metric)}: {interval(shown)}")
    return "<br>".join([*title, *map(escape, lines)])
