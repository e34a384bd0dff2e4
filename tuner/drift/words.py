"""A drift report as a person reads it. Only words here."""

from collections.abc import Iterator

from tuner.drift.shapes import Change, DriftReport, Outlook, Remeasured
from tuner.titles import interval, number

ROWS = 8
"""Of configs; `--json` has all."""


def drift_lines(found: DriftReport) -> Iterator[str]:
    """What `tuner drift` prints."""
    mark = " (SIMULATED, not measured)" if found.simulated else ""
    yield f"study {found.study}{mark}, trial {found.trial}: {found.title}"
    yield f"its traffic against {found.trace}, as recorded; 95 % intervals; *: told and large"
    for change in found.changes:
        yield f"  {'*' if change.matters else ' '} {change.name:<14}{_change(change)}"
    for distance in found.distances:
        yield f"    {distance.name}: shares differ by {distance.largest:.0%} at most, p {distance.p:.2g}"
    if found.outlook:
        yield "expected on the new traffic: as measured, times what the first-order model expects to change"
        yield from (f"    {_outlook(found, one)}" for one in found.outlook[:ROWS])
    if len(found.outlook) > ROWS:
        yield f"    and {len(found.outlook) - ROWS} more of the front"
    if found.capacity_rps is not None and found.rate_rps is not None:
        yield f"    it serves about {number(found.capacity_rps)} requests/s; {number(found.rate_rps)} come"
    if found.remeasured:
        yield "measured on the new traffic"
        yield from (f"    {_remeasured(one)}" for one in found.remeasured)
    yield from (f"note: {note}" for note in found.notes)
    yield f"{found.verdict}: {found.why}"
    if found.verdict.retune:
        yield f"next: {found.next}"


def _change(change: Change) -> str:
    sign = "×" if change.kind == "ratio" else "+" if change.change.value >= 0 else ""
    return (
        f"{interval(change.before)} → {interval(change.now)} {change.unit}, {sign}{interval(change.change)}"
    )


def _outlook(found: DriftReport, one: Outlook) -> str:
    who = "control" if one.is_control else f"trial {one.number}"
    told = ", ".join(
        f"{name} {number(one.measured[name])} → {number(one.expected[name])}" for name in one.expected
    )
    return f"{who}{' (chosen)' if one.chosen else ''}: {told}; dominated with a chance of {one.off_front:.0%}"


def _remeasured(one: Remeasured) -> str:
    who = "control" if one.is_control else f"trial {one.number}"
    chosen = " (chosen)" if one.chosen else ""
    if one.failed is not None:
        return f"{who}{chosen}: failed: {one.failed}"
    told = ", ".join(f"{name} {text}" for name, text in one.objectives.items())
    place = "on the front" if one.on_front else "dominated" if one.ruled_out else "not told from the front"
    return f"{who}{chosen}: {told}; {place}"
