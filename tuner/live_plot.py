"""The front as a few lines of text, for a terminal whose width is known and that may lack colour. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.titles import number

DOMINATED, FRONT, CONTROL = "·", "●", "◆"
"""Marks that differ in shape; of several in one place the last of these is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One trial in the plot."""

    x: float
    y: float
    mark: str


def plot_lines(places: Sequence[Place], *, x_name: str, y_name: str, width: int, height: int) -> list[str]:
    """A plane with its ends written beside it; empty without a trial.

    Args:
        width: columns in all.
        height: rows of the plane itself; two more are for the axis below.
    """
    if not places:
        return []
    xs, ys = [place.x for place in places], [place.y for place in places]
    labels = number(max(ys)), number(min(ys)) if min(ys) < max(ys) else ""
    margin = max(map(len, labels)) + 1
    across = max(width - margin - 1, 10)
    grid = [[" "] * across for _ in range(height)]
    order: Mapping[str, int] = {DOMINATED: 0, FRONT: 1, CONTROL: 2}
    for place in sorted(places, key=lambda one: order.get(one.mark, 3)):
        column = _step(place.x, min(xs), max(xs), across)
        row = height - 1 - _step(place.y, min(ys), max(ys), height)
        grid[row][column] = place.mark
    rows = []
    for row, cells in enumerate(grid):
        label = labels[0] if row == 0 else labels[1] if row == height - 1 else ""
        rows.append(f"{label:>{margin - 1}} │{''.join(cells)}")
    low, high = number(min(xs)), number(max(xs)) if min(xs) < max(xs) else ""
    rows.append(f"{'':>{margin - 1}} └{'─' * across}")
    rows.append(f"{'':>{margin}} {low}{high:>{max(across - len(low), len(high) + 1)}}")
    legend = f"{FRONT} front  {CONTROL} control  {DOMINATED} dominated"
    return [f"{y_name} over {x_name}   {legend}", *rows]


def _step(value: float, low: float, high: float, steps: int) -> int:
    return round((value - low) / (high - low) * (steps - 1)) if high > low else (steps - 1) // 2
