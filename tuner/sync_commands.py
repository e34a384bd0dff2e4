"""`tuner sync`: words to the use case."""

from pathlib import Path

import click

from tuner.options import JSON, RUNS, print_json

_EXIT_UNWRITTEN = 1


@click.command()
@click.argument("study", required=False)
@click.option("--tracking-uri", help="MLflow to write to (default: where each study is logged).")
@RUNS
@JSON
@click.pass_context
def sync(ctx: click.Context, study: str | None, tracking_uri: str | None, runs: Path, as_json: bool) -> None:
    """Write to MLflow what it lacks of STUDY (default: of all), once each; exit 1 where it cannot be."""
    from tuner.sync_usecases import sync as write
    from tuner.sync_usecases import sync_json, sync_lines

    synced = write(study, runs, tracking_uri)
    if as_json:
        print_json(sync_json(synced))
    else:
        for line in sync_lines(synced):
            click.echo(line)
    if any(one.why_not is not None for one in synced):
        ctx.exit(_EXIT_UNWRITTEN)
