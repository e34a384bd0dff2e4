"""A trace's figures as a picture: one HTML file that needs no network, or a PNG."""

from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from cluster.traffic.show import Histogram
from tuner.mistakes import Mistake
from tuner.trace_usecases import Shown

_COLOUR = "#0b7285"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of the picture: bars of equal width."""

    title: str
    across: str
    up: str
    x: tuple[float, ...]
    """Each bar's left edge."""
    y: tuple[float, ...]
    width: float


def panels(shown: Shown) -> tuple[Panel, ...]:
    """What the picture shows, whatever draws it."""
    window = shown.pace.window_s
    shares = shown.share_by_block
    return (
        Panel(
            title="Rate over time",
            across=f"s at speed {shown.speed:g}",
            up="requests/s",
            x=tuple(window * place for place in range(len(shown.pace.rates))),
            y=shown.pace.rates,
            width=window,
        ),
        _lengths("Prompts", shown.prompts),
        _lengths("Outputs", shown.outputs),
        Panel(
            title="Prefix share by block",
            across=f"block of {shown.figures.block_tokens} tokens",
            up="share of tokens",
            x=tuple(range(len(shares))),
            y=shares,
            width=1,
        ),
    )


def draw(shown: Shown, out: Path) -> None:
    """Write the picture: HTML or PNG by the file's ending.

    Raises:
        Mistake: for another ending, or where the file can't be written.
    """
    kinds = {".html": _html, ".png": _png}
    if out.suffix not in kinds:
        raise Mistake(f"{out}: a picture ends in .html or .png")
    try:
        kinds[out.suffix](f"{shown.path}: {shown.figures.requests} requests", panels(shown), out)
    except OSError as error:
        raise Mistake(f"{out}: cannot be written: {error.strerror or error}") from error


def _lengths(title: str, of: Histogram) -> Panel:
    return Panel(
        title=title,
        across="tokens",
        up="requests",
        x=tuple(of.width * place for place in range(len(of.counts))),
        y=of.counts,
        width=of.width,
    )


def _html(title: str, shown: tuple[Panel, ...], out: Path) -> None:
    figure = make_subplots(rows=2, cols=2, subplot_titles=[panel.title for panel in shown])
    for place, panel in enumerate(shown):
        row, column = divmod(place, 2)
        bars = go.Bar(
            x=list(panel.x),
            y=list(panel.y),
            width=panel.width,
            offset=0,
            marker_color=_COLOUR,
            name=panel.title,
        )
        figure.add_trace(bars, row=row + 1, col=column + 1)
        figure.update_xaxes(title=panel.across, row=row + 1, col=column + 1)
        figure.update_yaxes(title=panel.up, row=row + 1, col=column + 1)
    figure.update_layout(title=title, template="plotly_white", showlegend=False, bargap=0)
    out.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")


def _png(title: str, shown: tuple[Panel, ...], out: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and only a PNG needs it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(2, 2).flat, shown, strict=True):
        axes.bar(panel.x, panel.y, width=panel.width, align="edge", color=_COLOUR)
        axes.set(title=panel.title, xlabel=panel.across, ylabel=panel.up)
    figure.savefig(out)
