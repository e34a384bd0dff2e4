"""What commands of several groups share: their common options, and how JSON is printed."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

RUNS = click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder that holds studies.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class Finite(click.FloatRange):
    """A number within a range, as `click.FloatRange` has it; NaN is in none, and infinity means nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


def print_json(value: object) -> None:
    """Print a value as JSON that any reader takes: without NaN."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
