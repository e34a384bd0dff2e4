"""The report's pictures: the front as planes, latency against rate as panels, the marks of a legend."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from objectives.metrics import METRICS, latency_metric
from tuner.curve import DRAWN, spans_decades
from tuner.report.axis import Axis, axis
from tuner.report.drawing import DASHES, SHAPES, Frame, group, line, mark, path, text
from tuner.report.shapes import ConfigReport, NumberReport, ObjectiveReport, PointReport, Report
from tuner.titles import number

PANELS = (*(METRICS[latency_metric(latency, 95)].shown for latency in DRAWN), "slo_attainment")
"""Of the curves, in this order."""

_DRAWN_MOST = 10.0
"""A latency's axis ends at this many times its limit: an engine past its capacity is late without bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one config is drawn in all pictures."""

    look: str
    """Class of the style sheet."""
    shape: str
    dash: str


def looks(report: Report) -> dict[int, Look]:
    """Of the chosen few, by number: colour, shape and dash each tell them apart alone."""
    control = {c.number for c in report.configs if c.is_control}
    others = [chosen for chosen in report.chosen if chosen not in control]
    found = {chosen: Look(look="control", shape="diamond", dash="4 4") for chosen in report.chosen}
    for place, chosen in enumerate(others):
        found[chosen] = Look(
            look=f"c{place % len(SHAPES)}",
            shape=SHAPES[place % len(SHAPES)],
            dash=DASHES[place % len(DASHES)],
        )
    return found


def key(look: Look) -> str:
    """A config's mark on a piece of its line, for a legend."""
    svg = ET.Element("svg", {"viewBox": "0 0 36 14", "class": "key", "aria-hidden": "true"})
    made = ET.SubElement(svg, "g", {"class": look.look})
    path(made, "run", [(1, 7), (35, 7)], look.dash)
    mark(made, look.shape, 18, 7, 4.5)
    return ET.tostring(svg, encoding="unicode")


def panel_title(metric: str) -> str:
    """`TTFT p95, ms`."""
    if metric == "slo_attainment":
        return "SLO attainment"
    latency, percentile, unit = metric.split("_")
    return f"{latency.upper()} {percentile}, {unit}"


def curves(report: Report) -> dict[str, str]:
    """Latency against rate by metric: one picture for each that any of the chosen has; empty for none."""
    drawn = [(report.config(n), look) for n, look in looks(report).items() if report.config(n).curve]
    rates = [point.rps for config, _ in drawn for point in config.curve]
    found = {}
    for metric in PANELS:
        if any(metric in point.metrics for config, _ in drawn for point in config.curve):
            found[metric] = _panel(metric, drawn, axis(rates, zero=True), report.limits.get(metric))
    return found


def _panel(metric: str, drawn: Sequence[tuple[ConfigReport, Look]], across: Axis, limit: float | None) -> str:
    most = math.inf if limit is None or metric == "slo_attainment" else _DRAWN_MOST * limit
    values = [n.value for c, _ in drawn for p in c.curve if (n := p.metrics.get(metric)) and n.value <= most]
    values += [] if limit is None else [limit]
    if metric == "slo_attainment":
        values += [point.most_met for config, _ in drawn for point in config.curve if point.cut]
    up = (
        axis([*values, 1.0], room=0.1)
        if metric == "slo_attainment"
        else axis(values, zero=not spans_decades(values), log=spans_decades(values))
    )
    frame = Frame(width=360, height=250, x=across, y=up, title=f"{panel_title(metric)} over the offered rate")
    frame.name_x("offered requests/s")
    for config, look in drawn:
        _run(frame, metric, config, look, most)
    if limit is not None:
        level = frame.up(limit)
        line(frame.svg, "limit", frame.left, level, frame.right, level)
        words = f"SLO {limit:.0%}" if metric == "slo_attainment" else f"SLO {number(limit)}"
        text(frame.svg, "limit-name", frame.left + 4, level - 4, words)
    return frame.written()


def _run(frame: Frame, metric: str, config: ConfigReport, look: Look, most: float) -> None:
    """One config's line; it ends where latencies leave the picture, or where replays were cut."""
    whole = [(p, p.metrics[metric]) for p in config.curve if metric in p.metrics]
    inside = list(itertools.takewhile(lambda pair: pair[1].value <= most, whole))
    told = group(frame.svg, look.look, f"{name(config)}: {config.title}")
    path(told, "run", [(frame.across(p.rps), frame.up(n.value)) for p, n in inside], look.dash)
    for point, measured in inside:
        one = group(told, "", _point_words(config, metric, point, measured))
        mark(
            one, look.shape, frame.across(point.rps), frame.up(measured.value), 5 if point.at_capacity else 3
        )
    if metric == "slo_attainment":
        for point in config.curve:
            if point.cut:
                one = group(
                    told, "hollow", f"{name(config)} at {number(point.rps)} requests/s: cut, SLO broken"
                )
                mark(one, "down", frame.across(point.rps), frame.up(point.most_met), 3)
    if inside:
        point, measured = inside[-1]
        x, y = frame.across(point.rps), frame.up(measured.value)
        frame.label(told, x, y, name(config))


def _point_words(config: ConfigReport, metric: str, point: PointReport, measured: NumberReport) -> str:
    held = "SLO held" if point.held else "SLO broken"
    return f"{name(config)} at {number(point.rps)} requests/s: {panel_title(metric)} {measured.text}, {held}"


def planes(report: Report) -> dict[str, str]:
    """The front by caption: the first objective against each other one; over the trial's number where there
    is one alone. Empty where nothing has a score."""
    first, *others = report.objectives
    if not report.configs:
        return {}
    if not others:
        return {f"{_axis_name(first)}, by trial": _plane(report, first, None)}
    return {f"{_axis_name(other)}, over {first.name}": _plane(report, first, other) for other in others}


def _plane(report: Report, first: ObjectiveReport, other: ObjectiveReport | None) -> str:
    """All configs: the front filled and numbered with its intervals, the rest hollow and bare."""

    def place(config: ConfigReport) -> tuple[NumberReport, NumberReport]:
        one = config.objectives[first.name]
        if other is None:
            return _bare(float(config.number)), one
        return one, config.objectives[other.name]

    marked = {*report.front, *report.chosen}
    pairs = [(config, *place(config)) for config in report.configs]
    across, up = (
        _both_ends([(config.number in marked, sides[side]) for config, *sides in pairs]) for side in (0, 1)
    )
    x_name = "trial" if other is None else _axis_name(first)
    y_name = _axis_name(first if other is None else other)
    frame = Frame(width=480, height=360, x=across, y=up, title=f"{y_name} over {x_name}, one mark a config")
    frame.name_x(x_name)
    if other is not None and len(report.objectives) == 2:
        _border(frame, [(x.value, y.value) for c, x, y in pairs if c.on_front], first, other)
    drawn = looks(report)
    for config, x, y in sorted(pairs, key=lambda pair: (pair[0].number in drawn, pair[0].on_front)):
        look = drawn.get(config.number)
        kind = "front" if config.on_front else "rest"
        told = group(frame.svg, look.look if look else kind, _config_words(report, config))
        at = frame.across(x.value), frame.up(y.value)
        if config.number in marked:
            _bars(frame, told, x, y, at, across=other is not None)
        mark(told, look.shape if look else "circle", *at, 5.5 if look else 4 if config.on_front else 3)
        if look:
            frame.label(told, *at, name(config))
    return frame.written()


def _both_ends(numbers: Sequence[tuple[bool, NumberReport]]) -> Axis:
    """An axis for all values, and for the intervals of those that are marked."""
    ends = [end for marked, one in numbers if marked for end in (one.low, one.high) if end is not None]
    return axis([*(one.value for _, one in numbers), *ends])


def _bars(
    frame: Frame,
    above: ET.Element,
    x: NumberReport,
    y: NumberReport,
    at: tuple[float, float],
    *,
    across: bool,
) -> None:
    """95 % intervals; an end that is not known is drawn to the picture's edge, dotted."""
    if across and (x.low is not None or x.high is not None):
        for end, edge in ((x.low, frame.left), (x.high, frame.right)):
            line(
                above,
                "ci" if end is not None else "open",
                *at,
                edge if end is None else frame.across(end),
                at[1],
            )
    if y.low is not None or y.high is not None:
        for end, edge in ((y.low, frame.bottom), (y.high, frame.top)):
            line(
                above, "ci" if end is not None else "open", *at, at[0], edge if end is None else frame.up(end)
            )


def _border(
    frame: Frame, points: Sequence[tuple[float, float]], first: ObjectiveReport, other: ObjectiveReport
) -> None:
    """The staircase that the front dominates."""
    sx, sy = (-1 if objective.better == "more" else 1 for objective in (first, other))
    losses = sorted((sx * x, sy * y) for x, y in points)
    corners = losses[:1]
    for before, after in itertools.pairwise(losses):
        corners += [(after[0], before[1]), after]
    path(frame.svg, "border", [(frame.across(sx * x), frame.up(sy * y)) for x, y in corners], "2 3")


def _config_words(report: Report, config: ConfigReport) -> str:
    numbers = [
        f"{objective.name} {config.objectives[objective.name].text} {objective.unit}"
        for objective in report.objectives
    ]
    return "; ".join([f"{name(config)}: {config.title}", *numbers])


def name(config: ConfigReport) -> str:
    """`control`, `17`."""
    return "control" if config.is_control else str(config.number)


def _axis_name(objective: ObjectiveReport) -> str:
    return f"{objective.name} ({objective.unit}), {objective.better} is better"


def _bare(value: float) -> NumberReport:
    return NumberReport(value=value, low=None, high=None, text=f"{value:g}")


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Each part of the whole, in per cent; nothing where the whole is nothing."""
    whole = sum(parts.values())
    return {part: 100 * value / whole for part, value in parts.items()} if whole > 0 else {}
