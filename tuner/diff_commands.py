"""`tuner diff`: words to the use case."""

from pathlib import Path

import click

from tuner.options import JSON, RUNS, print_json


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--all", "every", is_flag=True, help="List settings that are alike too.")
@RUNS
@JSON
def diff(a: str, b: str, every: bool, runs: Path, as_json: bool) -> None:
    """Show two configs side by side: settings, promised numbers, and whether these are told apart.

    A and B are STUDY:TRIAL, STUDY:control or the folder of an export.
    """
    from tuner import diff_usecases
    from tuner.diff.words import compared_json, compared_lines

    found = diff_usecases.diff(a, b, runs=runs)
    if as_json:
        print_json(compared_json(found))
        return
    for line in compared_lines(found, every=every):
        click.echo(line)
