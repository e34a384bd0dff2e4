"""`tuner verify`: words to the use cases of verification."""

from pathlib import Path

import click

from tuner.interrupts import stops_in_order
from tuner.mistakes import Mistake
from tuner.options import JSON, RUNS, Finite, print_json
from tuner.redaction import without_passwords

EXIT_NOT_HELD = 3
"""A promise did not hold."""


@click.command()
@click.argument("named", metavar="[STUDY | FOLDER]", required=False)
@click.option("--trial", type=click.IntRange(min=0), help="The trial of STUDY to verify.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    help="Traffic like the study's that it did not search on (default: made anew by its recipe).",
)
@click.option(
    "--pairs",
    type=click.IntRange(1, 100),
    default=4,
    show_default=True,
    help="Runs of the config, each with one of the control beside it and traffic of its own.",
)
@click.option(
    "--stress", is_flag=True, help="Also play permuted arrivals and a burst; nothing is promised there."
)
@click.option(
    "--endpoint", help="Root URL of a server that is running, held to the promise in place of a start."
)
@click.option("--may-load", is_flag=True, help="Your word that --endpoint may be played traffic.")
@click.option(
    "--rate",
    type=Finite(0.01, 10_000),
    default=1.0,
    show_default=True,
    help="Requests a second that --endpoint is played at most.",
)
@click.option("--model", help="Name that --endpoint serves under (default: the only one there is).")
@click.option("--key-variable", help="Environment variable that holds the key of --endpoint.")
@click.option("--ray", "address", help="Address of a Ray cluster (default: start a Ray on this machine).")
@click.option("--tracking-uri", help="MLflow to log to (default: the study's).")
@RUNS
@JSON
def verify(
    named: str | None,
    trial: int | None,
    trace: str | None,
    pairs: int,
    stress: bool,
    endpoint: str | None,
    may_load: bool,
    rate: float,
    model: str | None,
    key_variable: str | None,
    address: str | None,
    tracking_uri: str | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Hold a trial of STUDY (default: the latest), or an exported FOLDER, to what was promised of it.

    It is started afresh and played traffic that it was not chosen by, the control beside it.

    Exit code 0: every promise held; 3: one did not. Run again after a stop, it goes on.
    """
    from tuner import verify_usecases
    from tuner.ablation.terminal import Progress
    from tuner.verify.stored import verification_json
    from tuner.verify.words import verification_lines

    show = Progress(say=lambda line: click.echo(line, err=as_json)).show
    folder = Path(named) if trial is None and named is not None and Path(named).is_dir() else None
    if trial is None and folder is None:
        what = f"there is no folder {named}, and no trial is named" if named else "nothing is named"
        raise Mistake(f"{what}: give a study with --trial N, or an exported folder")
    server = None
    if endpoint is not None:
        server = verify_usecases.ServerAsked(
            url=endpoint, may_load=may_load, rate=rate, model=model, key_variable=key_variable
        )
    elif may_load or model or key_variable:
        raise Mistake("--may-load, --model and --key-variable go with --endpoint")
    with stops_in_order():
        done = verify_usecases.verify(
            verify_usecases.VerifyRequest(
                study=None if folder else named,
                trial=trial,
                folder=folder,
                trace=trace,
                pairs=pairs,
                stress=stress,
                server=server,
                address=address,
                tracking_uri=tracking_uri,
                runs=runs,
            ),
            show,
        )
    if as_json:
        print_json(verification_json(done.found))
    else:
        for line in verification_lines(done.found):
            click.echo(line)
        where = "" if not done.logged else f"MLflow has it at {without_passwords(str(done.tracking_uri))}; "
        click.echo(f"{where}it is in {done.folder}")
    if not done.found.held:
        click.get_current_context().exit(EXIT_NOT_HELD)
