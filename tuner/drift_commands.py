"""`tuner drift`: words to a use case and back. Its exit code says what was found."""

import signal
import sys
from pathlib import Path

import click

from tuner.options import JSON, RUNS, print_json

EXIT_MOVED_BUT_STANDS = 3
EXIT_RETUNE = 4


@click.command()
@click.option("--study", help="The study (default: the latest).")
@click.option("--trace", required=True, help="Today's traffic.")
@click.option(
    "--trial", type=click.IntRange(min=0), help="The config in production (default: the recommended)."
)
@click.option("--measure", is_flag=True, help="Measure the control and a few of the front on the new trace.")
@click.option("--retune", is_flag=True, help="Where that is advised, search on the new trace at once.")
@click.option("--ray", "address", help="Address of a Ray cluster, for --measure and --retune.")
@RUNS
@JSON
@click.pass_context
def drift(
    ctx: click.Context,
    study: str | None,
    trace: str,
    trial: int | None,
    measure: bool,
    retune: bool,
    address: str | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Hold today's traffic against what a study was tuned on; tell whether its choice still stands.

    Exit code 0: the traffic has not moved. 3: it has, and the config likely still stands. 4: tune again.
    """
    from tuner.drift.drift import DriftRequest, drift_json
    from tuner.drift.drift import drift as look
    from tuner.drift.drift import retune as search_again
    from tuner.drift.shapes import Verdict
    from tuner.drift.words import drift_lines
    from tuner.live import search_progress

    # A stop from a scheduler is Ctrl-C: what runs is ended, the rest goes on later.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = DriftRequest(study=study, trace=trace, trial=trial, measure=measure, address=address, runs=runs)
    found = look(asked, lambda line: click.echo(line, err=as_json))
    if not as_json:
        for line in drift_lines(found):
            click.echo(line)
    retuned = None
    if retune and found.verdict.retune:
        stream = sys.stderr if as_json else sys.stdout
        with search_progress(stream, lambda line: click.echo(line, err=as_json)) as show:
            retuned = search_again(asked, show)
        click.echo(f"tuned again as study {retuned}; look at it with: tuner front {retuned}", err=as_json)
    if as_json:
        print_json(drift_json(found) | {"retuned": retuned})
    if found.verdict.retune:
        ctx.exit(EXIT_RETUNE)
    if found.verdict is Verdict.STANDS:
        ctx.exit(EXIT_MOVED_BUT_STANDS)
