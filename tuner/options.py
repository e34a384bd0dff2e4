"""What commands of several groups share: their common options, and how JSON is printed."""

import json
import sys
from pathlib import Path

import click

RUNS = click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder that holds studies.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def print_json(value: object) -> None:
    """Print a value as JSON that any reader takes: without NaN."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
