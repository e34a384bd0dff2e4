"""`tuner plan`: words to a use case and back."""

from pathlib import Path

import click

from tuner.options import JSON, RUNS, print_json


@click.command()
@click.option("--space", required=True, help="Space file, or a shipped one such as spaces/8b.yaml.")
@click.option("--trace", help="Trace to plan with instead of the space's own.")
@click.option("--trials", type=click.IntRange(min=1), help="Budget (default: the space's).")
@RUNS
@JSON
def plan(space: str, trace: str | None, trials: int | None, runs: Path, as_json: bool) -> None:
    """Tell before any GPU minute what a search would do: configs, memory, expected front, time, traffic."""
    from tuner.plan.plan import plan as make
    from tuner.plan.plan import plan_json
    from tuner.plan.words import plan_lines

    found = make(space, trace=trace, trials=trials, runs=runs)
    if as_json:
        print_json(plan_json(found))
        return
    for line in plan_lines(found):
        click.echo(line)
