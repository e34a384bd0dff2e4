"""A comparison as a person reads it, and as JSON. Words only."""

import json
import math
from dataclasses import asdict
from io import StringIO

from rich.console import Console
from rich.table import Table

from objectives.measurement import Estimate
from search_spaces.values import Json
from tuner.diff.compare import Compared, How, Number, Setting, differing
from tuner.diff.side import Side
from tuner.remeasure import times_text

_HOW = {
    How.ALTERNATION: "runs of both in alternation, in pairs on held-out traffic: what differs from run to "
    "run is in the interval",
    How.OVER_CONTROL: "each was verified in alternation with the control; the ratios to it are compared",
    How.INTERVALS: "from the two promised intervals; that both were played the same requests is not used, "
    "which errs towards not told apart",
    How.REQUESTS: "mean ratio over the requests of each pair of runs, with what differs from run to run",
    How.ONE_RUN: "mean ratio over the requests of one run a side: a slow run looks like a slow config here",
}


def compared_lines(found: Compared, *, every: bool = False, width: int | None = None) -> list[str]:
    """The comparison as lines.

    Args:
        every: list every setting, those that are alike too.
        width: of the terminal.
    """
    settings = found.settings if every else differing(found.settings, found.a, found.b)
    lines = [f"a: {_side(found.a)}", f"b: {_side(found.b)}", *(f"! {note}" for note in found.notes), ""]
    if settings:
        lines += _table(["setting", "a", "b"], [_setting(one) for one in settings], width)
    else:
        lines.append("no setting differs that either is launched with")
    if not every and (alike := len(found.settings) - len(settings)):
        lines.append(f"{alike} settings are alike, or differ only as a consequence; --all lists them")
    lines.append("")
    lines += _table(
        ["number", "a", "b", "a against b", "told apart"], [_number(one) for one in found.numbers], width
    )
    if found.latencies:
        lines += _table(
            ["latency", "a / b", "told apart"],
            [[one.name, *_number(one)[3:]] for one in found.latencies],
            width,
        )
    used = dict.fromkeys(one.how for one in (*found.numbers, *found.latencies) if one.how is not None)
    lines += [f"{_names(found, how)}: {_HOW[how]}" for how in used]
    return lines


def compared_json(found: Compared) -> dict[str, Json]:
    """All of it as data."""
    asked = {*found.a.settings, *found.b.settings}
    return {
        "a": _side_json(found.a),
        "b": _side_json(found.b),
        "settings": [
            {
                "name": one.name,
                "a": one.a,
                "b": one.b,
                "differs": one.differs,
                "launched_with": one.name in asked,
            }
            for one in found.settings
        ],
        "numbers": [_number_json(one) for one in found.numbers],
        "latencies": [_number_json(one) for one in found.latencies],
        "notes": list(found.notes),
    }


def _side(side: Side) -> str:
    again = f"measured again {times_text(side.again)}" if side.again else "measured once"
    held = {None: "not verified", True: "verified", False: "VERIFICATION FAILED"}[side.held]
    quality = {None: "quality not checked", True: "quality passed", False: "QUALITY FAILED"}[side.quality]
    control = ", the control" if side.is_control else ""
    return (
        f"{side.label}: trial {side.promised.trial} of study {side.promised.study}{control}; "
        f"{again}, {held}, {quality}"
    )


def _setting(one: Setting) -> list[str]:
    return [one.name, _value(one.a), _value(one.b)]


def _value(value: Json) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value)


def _number(one: Number) -> list[str]:
    against = "?" if one.contrast is None else _against(one)
    verdict = {None: "nobody knows", False: "no", True: "yes"}[one.different]
    if one.contrast is None:
        verdict = "not compared"
    elif one.better is not None:
        verdict = f"yes, {one.better} is better"
    name = f"{one.name} ({one.unit})" + (" *" if one.is_objective else "")
    return [name, _estimate(one.a), _estimate(one.b), against, verdict]


def _against(one: Number) -> str:
    assert one.contrast is not None
    sign = "× " if one.is_ratio else ""
    plus = "" if one.is_ratio or one.contrast.value < 0 else "+"
    return f"{sign}{plus}{_estimate(one.contrast)}"


def _estimate(one: Estimate | None) -> str:
    if one is None:
        return "?"
    if one.low is None and one.high is None:
        return _plain(one.value)
    low, high = ("?" if end is None else _plain(end) for end in (one.low, one.high))
    return f"{_plain(one.value)} ({low} to {high})"


def _plain(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def _names(found: Compared, how: How) -> str:
    return ", ".join(one.name for one in (*found.numbers, *found.latencies) if one.how is how)


def _table(heads: list[str], rows: list[list[str]], width: int | None) -> list[str]:
    table = Table()
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    page = StringIO()
    Console(file=page, width=width or max(Console().width, 100), force_terminal=False, markup=False).print(
        table
    )
    return page.getvalue().rstrip().splitlines()


def _side_json(side: Side) -> dict[str, Json]:
    return {
        "label": side.label,
        "study": side.promised.study,
        "trial": side.promised.trial,
        "control": side.is_control,
        "simulated": side.simulated,
        "engine_version": side.engine_version,
        "hardware": side.hardware,
        "trace_digest": side.promised.traffic.digest,
        "measured_again": side.again,
        "verification_held": side.held,
        "quality_passed": side.quality,
    }


def _number_json(one: Number) -> dict[str, Json]:
    return {
        "name": one.name,
        "unit": one.unit,
        "better": {1: "more", -1: "less", 0: None}[one.direction],
        "objective": one.is_objective,
        "a": _estimate_json(one.a),
        "b": _estimate_json(one.b),
        "against": _estimate_json(one.contrast),
        "against_is": "ratio" if one.is_ratio else "difference",
        "test": None if one.how is None else one.how.value,
        "pairs": one.pairs,
        "told_apart": one.different,
        "winner": one.better,
    }


def _estimate_json(one: Estimate | None) -> dict[str, Json] | None:
    if one is None:
        return None
    return {
        name: end if end is not None and math.isfinite(end) else None for name, end in asdict(one).items()
    }
