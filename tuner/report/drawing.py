"""Pictures as SVG text: the frame with its axes, marks that differ in shape as well as in colour, labels.

Sizes are those of the picture's own grid, which the page scales. Colours are the page's style sheet's, by
class, so that a picture follows dark mode and print. Text is escaped by the XML writer.
"""

import math
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from tuner.report.axis import Axis
from tuner.titles import number

SHAPES = ("circle", "square", "triangle", "cross", "plus", "down", "bar")
"""Of the lines and points of a picture, in turn; a diamond is the control's alone."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2", "12 4", "3 6")

_LABEL_WIDTH, _LABEL_HEIGHT = 44.0, 13.0
"""What a label may take."""

Element = ET.Element


class Frame:
    """A picture with two axes; places are the axes' own values."""

    def __init__(self, *, width: int, height: int, x: Axis, y: Axis, title: str) -> None:
        self.x, self.y = x, y
        self._labels: list[tuple[float, float]] = []
        self.left, self.top, self.right, self.bottom = 50.0, 12.0, width - 16.0, height - 40.0
        self.svg = ET.Element(
            "svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": title, "class": "chart"}
        )
        for value in x.ticks:
            place = self.across(value)
            line(self.svg, "grid", place, self.top, place, self.bottom)
            text(self.svg, "tick", place, self.bottom + 15, number(value), anchor="middle")
        for value in y.ticks:
            place = self.up(value)
            line(self.svg, "grid", self.left, place, self.right, place)
            text(self.svg, "tick", self.left - 6, place + 4, number(value), anchor="end")
        line(self.svg, "edge", self.left, self.bottom, self.right, self.bottom)
        line(self.svg, "edge", self.left, self.top, self.left, self.bottom)

    def across(self, value: float) -> float:
        return self.left + self.x.at(value) * (self.right - self.left)

    def up(self, value: float) -> float:
        return self.bottom - self.y.at(value) * (self.bottom - self.top)

    def name_x(self, words: str) -> None:
        text(self.svg, "name", (self.left + self.right) / 2, self.bottom + 33, words, anchor="middle")

    def label(self, above: Element, x: float, y: float, words: str) -> None:
        """Words beside a place: to its left where the right has no room, and below where others stand."""
        left = x > self.right - _LABEL_WIDTH
        up = max(y - 7, self.top + 9)
        while any(abs(x - ox) < _LABEL_WIDTH and abs(up - oy) < _LABEL_HEIGHT for ox, oy in self._labels):
            up += _LABEL_HEIGHT
        self._labels.append((x, up))
        text(above, "label", x - 8 if left else x + 8, up, words, anchor="end" if left else "start")

    def written(self) -> str:
        """The picture."""
        return ET.tostring(self.svg, encoding="unicode", short_empty_elements=True)


def group(above: Element, look: str, told: str) -> Element:
    """A part of a picture with what is told of it where the mouse is, and to a screen reader."""
    made = ET.SubElement(above, "g", {"class": look})
    ET.SubElement(made, "title").text = told
    return made


def line(above: Element, look: str, x1: float, y1: float, x2: float, y2: float) -> None:
    at = {"x1": _at(x1), "y1": _at(y1), "x2": _at(x2), "y2": _at(y2)}
    ET.SubElement(above, "line", {"class": look, **at})


def path(above: Element, look: str, points: Sequence[tuple[float, float]], dash: str = "") -> None:
    """A line through the points."""
    if len(points) < 2:
        return
    told = {"class": look, "points": " ".join(f"{_at(x)},{_at(y)}" for x, y in points)}
    ET.SubElement(above, "polyline", told | ({"stroke-dasharray": dash} if dash else {}))


def text(above: Element, look: str, x: float, y: float, words: str, *, anchor: str = "start") -> None:
    made = ET.SubElement(above, "text", {"class": look, "x": _at(x), "y": _at(y), "text-anchor": anchor})
    made.text = words


def mark(above: Element, shape: str, x: float, y: float, size: float) -> None:
    """A shape about a place; `size` is half its height."""
    if shape == "circle":
        ET.SubElement(above, "circle", {"cx": _at(x), "cy": _at(y), "r": _at(size), "class": "mark"})
        return
    s, thin = size, size / 2.5
    corners: dict[str, list[tuple[float, float]]] = {
        "square": [(-s, -s), (s, -s), (s, s), (-s, s)],
        "triangle": [(0, -1.2 * s), (1.1 * s, 0.8 * s), (-1.1 * s, 0.8 * s)],
        "down": [(0, 1.2 * s), (1.1 * s, -0.8 * s), (-1.1 * s, -0.8 * s)],
        "diamond": [(0, -1.4 * s), (1.4 * s, 0), (0, 1.4 * s), (-1.4 * s, 0)],
        "bar": [(-1.3 * s, -thin), (1.3 * s, -thin), (1.3 * s, thin), (-1.3 * s, thin)],
        "plus": _plus(1.2 * s, thin, turn=0.0),
        "cross": _plus(1.3 * s, thin, turn=math.pi / 4),
    }
    points = " ".join(f"{_at(x + dx)},{_at(y + dy)}" for dx, dy in corners[shape])
    ET.SubElement(above, "polygon", {"points": points, "class": "mark"})


def _plus(long: float, thin: float, *, turn: float) -> list[tuple[float, float]]:
    quarter = [(thin, -thin), (thin, -long), (-thin, -long)]
    corners = []
    for quarters in range(4):
        angle = turn - quarters * math.pi / 2
        c, s = math.cos(angle), math.sin(angle)
        corners += [(dx * c - dy * s, dx * s + dy * c) for dx, dy in quarter]
    return corners


def _at(place: float) -> str:
    """One digit after the point: less cannot be seen, and digits make the page long."""
    return f"{place:.1f}".removesuffix(".0")
