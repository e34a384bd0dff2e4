"""`tuner doctor`: words to its checks and to what removes leftovers."""

from pathlib import Path

import click

from tuner.options import JSON, RUNS, print_json

_EXIT_UNFIT = 1


@click.command()
@click.option("--clean", is_flag=True, help="List what crashes left, and remove it.")
@click.option("--yes", is_flag=True, help="With --clean: do not ask.")
@RUNS
@JSON
@click.pass_context
def doctor(ctx: click.Context, clean: bool, yes: bool, runs: Path, as_json: bool) -> None:
    """Tell what is installed and whether a trial could run here, with the fix for what is missing."""
    if yes and not clean:
        raise click.UsageError("--yes is of --clean")
    if clean:
        _clean(runs, yes, as_json)
        return
    from tuner.doctor import diagnosis_json, diagnosis_lines, examine

    diagnosis = examine(runs, say=lambda line: click.echo(line, err=True))
    if as_json:
        print_json(diagnosis_json(diagnosis))
    else:
        for line in diagnosis_lines(diagnosis):
            click.echo(line)
    if not diagnosis.could_run:
        ctx.exit(_EXIT_UNFIT)


def _clean(runs: Path, yes: bool, as_json: bool) -> None:
    from tuner.leftovers import find_leftovers, leftover_line, leftovers_json, remove

    left = find_leftovers(runs)
    for one in left:
        click.echo(leftover_line(one), err=as_json)
    removed = bool(left) and (yes or click.confirm("remove these?", default=False, err=as_json))
    for one in left if removed else ():
        remove(one)
    if as_json:
        print_json(leftovers_json(left, removed=removed))
    elif not left:
        click.echo("nothing is left of a crash")
    else:
        click.echo(f"removed {len(left)}" if removed else "nothing was removed")
