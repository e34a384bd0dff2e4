"""The report as one HTML file: no script, no network, pictures as inline SVG beside the numbers they are of.

Everything of the report is escaped, by the template or by the pictures' XML writer. The same report gives the
same page.
"""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tuner.report.pictures import PANELS, curves, key, looks, name, panel_title, planes, shares
from tuner.report.shapes import Report
from tuner.titles import number

_CHECKS = {"passed": "✓ passed", "failed": "✗ failed", "not checked": "– not checked"}
"""With a sign of its own shape each, so that colour is never needed to read them."""


def report_html(report: Report) -> str:
    """The whole page."""
    time = report.time
    parts = {"engine start": time.start_s, "replay": time.replay_s, "rest": time.rest_s}
    return _template().render(
        report=report,
        chosen=[report.config(number) for number in report.chosen],
        front=[report.config(number) for number in report.front],
        keys={chosen: key(look) for chosen, look in looks(report).items()},
        curves=curves(report),
        planes=planes(report),
        panels=[
            metric for metric in PANELS if any(metric in p.metrics for c in report.configs for p in c.curve)
        ],
        parts=parts,
        shares=shares(parts),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tuner.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "many": lambda count, word: f"{count} {word}{'' if count == 1 else 's'}",
        "seconds": duration,
        "panel_title": panel_title,
        "check": _CHECKS.__getitem__,
        "called": name,
    }
    return environment.get_template("page.html.jinja")


def duration(seconds: float) -> str:
    """`42 s`, `12.5 min`, `3.2 h`."""
    if seconds < 120:
        return f"{number(seconds)} s"
    return f"{number(seconds / 60)} min" if seconds < 7200 else f"{number(seconds / 3600)} h"
