"""`tuner export`: words to the use case."""

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from tuner.options import JSON, RUNS, print_json

_TARGETS = (
    "vllm",
    "docker-compose",
    "systemd",
    "kubernetes",
    "helm-values",
    "kserve",
    "llm-d",
    "ray-serve",
)
"""Those of `tuner.export.targets`, which is loaded only when it is needed; a test holds them together."""


@click.command()
@click.argument("study")
@click.option("--trial", "number", type=click.IntRange(min=0), required=True)
@click.option("--to", "target", type=click.Choice(_TARGETS), required=True, help="What is to run it.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--allow-simulated", is_flag=True, help="Export a simulated trial, marked as such.")
@click.option("--allow-unverified", is_flag=True, help="Export one that was not verified, marked.")
@click.option("--allow-not-held", is_flag=True, help="Export one whose verification failed, marked.")
@click.option(
    "--allow-quality",
    type=click.Choice(["unchecked", "failed"]),
    help="Export one whose quality was not checked, or failed, marked.",
)
@click.option("--register", is_flag=True, help="Record it in MLflow's model registry, under --alias.")
@click.option("--alias", default="production", show_default=True, help="Alias of the registered version.")
@click.option("--tracking-uri", help="MLflow to register it in (default: the study's).")
@RUNS
@JSON
def export(
    study: str,
    number: int,
    target: str,
    out: Path,
    allow_simulated: bool,
    allow_unverified: bool,
    allow_not_held: bool,
    allow_quality: str | None,
    register: bool,
    alias: str,
    tracking_uri: str | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Write one trial of STUDY as files that start in production, with what is promised of it."""
    from tuner import export_usecases
    from tuner.export.refusals import Mark

    allowed = {
        Mark.SIMULATED: allow_simulated,
        Mark.UNVERIFIED: allow_unverified,
        Mark.NOT_HELD: allow_not_held,
        Mark.QUALITY_UNCHECKED: allow_quality == "unchecked",
        Mark.QUALITY_FAILED: allow_quality == "failed",
    }
    done = export_usecases.export(
        study,
        number,
        target,
        out,
        runs=runs,
        allowed=[mark for mark, yes in allowed.items() if yes],
        alias=alias if register else None,
        tracking_uri=tracking_uri,
    )
    registered = done.registered
    if as_json:
        print_json(
            {
                "folder": str(done.folder),
                "study": done.study,
                "trial": done.trial,
                "target": done.target,
                "files": list(done.files),
                "marks": [mark.value for mark in done.marks],
                "start": done.line,
                "registered": None if registered is None else asdict(registered),
            }
        )
        return
    for mark in done.marks:
        click.echo(f"! {mark.sentence}")
    start = (
        f"start it with: {done.line}" if done.line else f"{shlex.quote(f'{out}/README.md')} says how to start"
    )
    click.echo(f"wrote {out}/; {start}")
    if registered is not None:
        was = "" if registered.before is None else f"; {registered.alias} was version {registered.before}"
        click.echo(f"registered as version {registered.version}, {registered.uri}{was}")
