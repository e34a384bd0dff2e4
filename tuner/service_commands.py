"""`tuner serve`, and the commands that talk to a service: words to its HTTP."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tuner.mistakes import Mistake
from tuner.options import JSON, RUNS, Finite, print_json

RETRIES = 5
"""Times in a row that a stream which was cut off is taken up again."""


def _service(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which service, and who asks."""
    for option in (
        click.option(
            "--token-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File that holds the token (default: the environment's TUNER_TOKEN).",
        ),
        click.option(
            "--service",
            "url",
            envvar="TUNER_SERVICE",
            default="http://127.0.0.1:8470",
            show_default=True,
            help="The service, also by TUNER_SERVICE.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen: this machine only.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="0: any free one."
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Who may ask: a YAML file of names and SHA-256 of tokens (default: the environment's TUNER_TOKENS).",
)
@click.option(
    "--allow-list",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What spaces may ask for beyond tuning: a YAML file (default: nothing).",
)
@click.option("--gpus", multiple=True, help="A set of GPUs that one study at a time has: 0,1; give several.")
@click.option(
    "--simulated",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Simulated studies at a time.",
)
@click.option("--ray", "address", help="Address of a Ray cluster (default: a Ray of this machine's own).")
@click.option("--tracking-uri", help="MLflow to log to (default: SQLite under --runs).")
@RUNS
def serve(**asked: Any) -> None:
    """Serve studies over HTTP for a team: submit, queue, follow, pause, read. Studies outlive the service."""
    from tuner.service.serve import ServeRequest
    from tuner.service.serve import serve as run

    run(ServeRequest(**asked), click.echo)


@click.command()
@click.argument("name")
@JSON
def token(name: str, as_json: bool) -> None:
    """Make a token for NAME: the token itself, for them, and its line for the service's file."""
    from tuner.service.tokens import digest, new_token

    made = new_token(name)
    if as_json:
        print_json({"name": name, "token": made, "sha256": digest(made)})
        return
    click.echo(f"token, for {name} alone: {made}")
    click.echo(f"line for the --tokens file: {name}: {digest(made)}")


@click.command()
@click.argument("space")
@click.option("--study", "name", help="Name of the study (default: the space's name and the time).")
@click.option("--trials", type=click.IntRange(min=1), help="Finished trials in all, the control included.")
@click.option("--stop-when-stable", is_flag=True, help="End before that, once the front has settled.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Trace to upload and replay.")
@click.option("--engine", type=click.Choice(["vllm", "simulated"]), default="vllm", show_default=True)
@click.option("--sampler", help="As tuner search takes it.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the search (default: 0).")
@click.option("--speed", type=Finite(min=0, min_open=True), help="Play the trace this much faster.")
@click.option("--sessions", type=click.Choice(["recorded", "causal"]))
@click.option("--measure", help="capacity, fixed or closed:N, instead of what the space says.")
@_service
@JSON
def submit(
    space: str, trace: Path | None, url: str, token_file: Path | None, as_json: bool, **asked: Any
) -> None:
    """Submit a study of SPACE, a file or a shipped one, to a service."""
    import secrets

    from tuner.service.client import Client, read_token

    client = Client(url, read_token(token_file))
    body = {name: value for name, value in asked.items() if value not in (None, False)} | _space(space)
    if trace is not None:
        body["trace"] = client.upload(trace)["trace"]
    # Asked again after an answer was lost, it makes no second study.
    key = secrets.token_hex(16)
    told = _again(lambda: client.post("/v1/studies", body, Idempotency_Key=key))
    if as_json:
        print_json(told)
    else:
        click.echo(f"study {told['study']} is {told['state']}; follow it with: tuner logs {told['study']} -f")


@click.command()
@click.argument("study", required=False)
@_service
@JSON
def status(study: str | None, url: str, token_file: Path | None, as_json: bool) -> None:
    """Tell where STUDY is, or all studies of a service."""
    from tuner.service.client import Client, read_token, study_path

    client = Client(url, read_token(token_file))
    told = client.get("/v1/studies" if study is None else study_path(study))
    if as_json:
        print_json(told)
        return
    jobs = told["jobs"] if study is None else [told]
    for job in jobs:
        click.echo(_line(job))
        for trial in job["running"]:
            click.echo(f"  {_running_line(trial)}")
    if not jobs:
        click.echo("no study was submitted yet")


@click.command()
@click.argument("study")
@click.option("-f", "--follow", is_flag=True, help="Wait for more until the study is over.")
@_service
@JSON
def logs(study: str, follow: bool, url: str, token_file: Path | None, as_json: bool) -> None:
    """Print what happened in STUDY so far; with -f, as it happens. JSON is one event a line."""
    import json

    from tuner.service.client import Client, Unreachable, read_token, study_path

    client = Client(url, read_token(token_file))
    last: str | None = None
    lost = 0
    while True:
        try:
            for event in client.events(study_path(study, "events"), last, follow=follow):
                last, lost = event.id, 0
                if as_json:
                    click.echo(json.dumps({"id": event.id, "event": event.name, **event.data}))
                elif event.data.get("text"):
                    click.echo(event.data["text"])
            return
        except Unreachable:
            # A service that is started again goes on with the study, and with its events.
            lost += 1
            if last is None or lost > RETRIES:
                raise
            time.sleep(2.0**lost / 2)


@click.command()
@click.argument("study")
@_service
@JSON
def pause(study: str, url: str, token_file: Path | None, as_json: bool) -> None:
    """Pause STUDY: what runs is ended, what was measured is kept."""
    _change(study, "pause", url, token_file, as_json)


@click.command()
@click.argument("study")
@_service
@JSON
def resume(study: str, url: str, token_file: Path | None, as_json: bool) -> None:
    """Queue STUDY again, paused or failed; it goes on from what was measured."""
    _change(study, "resume", url, token_file, as_json)


@click.command()
@click.argument("study")
@_service
@JSON
def cancel(study: str, url: str, token_file: Path | None, as_json: bool) -> None:
    """Cancel STUDY for good; what was measured is kept."""
    _change(study, "cancel", url, token_file, as_json)


COMMANDS = (serve, token, submit, status, logs, pause, resume, cancel)


def _change(study: str, what: str, url: str, token_file: Path | None, as_json: bool) -> None:
    from tuner.service.client import Client, read_token, study_path

    told = Client(url, read_token(token_file)).post(study_path(study, what))
    if as_json:
        print_json(told)
    else:
        click.echo(_line(told))


def _again(ask: Callable[[], Any]) -> Any:
    """Ask, and once more where the answer was lost."""
    from tuner.service.client import Unreachable

    try:
        return ask()
    except Unreachable:
        time.sleep(1.0)
        return ask()


def _space(reference: str) -> dict[str, str]:
    """The space's text where there is such a file; else a shipped one's name, which the service knows."""
    path = Path(reference)
    if not path.is_file():
        return {"shipped": reference}
    try:
        return {"space": path.read_text(encoding="utf-8-sig")}
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{os.fspath(path)}: cannot be read as text") from error


def _running_line(trial: dict[str, Any]) -> str:
    from cluster.phase import Phase, PhaseName

    phase = Phase(
        name=PhaseName(trial["phase"]), stage=trial["stage"], replay=trial["replay"], speed=trial["speed"]
    )
    where = f" on {trial['node']}" if trial["node"] else ""
    return f"trial {trial['trial']}{where}: {phase.text}, since {trial['since'][:19]}"


def _line(job: dict[str, Any]) -> str:
    state = job["state"] if job["becomes"] is None else f"{job['state']}, to be {job['becomes']}"
    where = f" on {job['place']}" if job["state"] in ("running", "stopping") and job["place"] else ""
    why = f": {job['reason']}" if job["reason"] else ""
    return f"{job['study']}  {state}{where}{why}  ({job['user']}, queued {job['queued'][:16]})"
