"""`tuner tasks`: words to lm-eval's tasks, run against servers that are there."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.mistakes import Mistake
from tuner.options import JSON, print_json

if TYPE_CHECKING:
    from tuner.quality_tasks import Served, TaskScore

EXIT_WORSE = 3
"""A score is worse than the other server's."""


@click.command()
@click.argument("names", metavar="TASK[,TASK…]")
@click.option("--endpoint", required=True, help="Root URL of a server that is running.")
@click.option("--beside", help="Root URL of another one, the control say, that scores are compared with.")
@click.option("--tokenizer", required=True, help="Name or folder of the model's tokenizer.")
@click.option("--may-load", is_flag=True, help="Your word that these servers may be asked.")
@click.option("--limit", type=click.IntRange(min=1), help="Examples of each task (default: all).")
@click.option(
    "--include",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of task files beside lm-eval's own.",
)
@click.option("--key-variable", help="Environment variable that holds the servers' key.")
@JSON
def tasks(
    names: str,
    endpoint: str,
    beside: str | None,
    tokenizer: str,
    may_load: bool,
    limit: int | None,
    include: Path | None,
    key_variable: str | None,
    as_json: bool,
) -> None:
    """Run TASKs of lm-eval against a server, one request at a time, and say where it is worse than another.

    Exit code 3: a score is worse than the other server's by more than chance.
    """
    from tuner.quality_tasks import run_tasks, worse

    if not may_load:
        raise Mistake(f"{endpoint} is in use for all that is known: --may-load says that it may be asked")
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise Mistake("no task is named; give names of lm-eval's, comma-separated")
    key = _key(key_variable)

    def scores(url: str) -> "tuple[TaskScore, ...]":
        return run_tasks(wanted, _served(url, key), tokenizer=tokenizer, limit=limit, folder=include)

    found = scores(endpoint)
    reference = () if beside is None else scores(beside)
    told = worse(found, reference)
    if as_json:
        print_json(
            {
                "scores": [asdict(one) for one in found],
                "beside": [asdict(one) for one in reference],
                "worse": list(told),
            }
        )
    else:
        for line in _lines(found, reference):
            click.echo(line)
        for line in told:
            click.echo(f"worse: {line}")
    if told:
        click.get_current_context().exit(EXIT_WORSE)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise Mistake(f"--key-variable {variable}: no such variable in the environment, or empty")
    return key


def _served(url: str, key: str | None) -> "Served":
    from cluster.node.running_server import NoServer, RunningServer
    from tuner.quality_tasks import Served
    from tuner.verify_endpoint import root_of

    root = root_of(url)
    try:
        return Served(url=root, model=RunningServer(url=root, key=key).check(), key=key)
    except NoServer as error:
        raise Mistake(str(error)) from error


def _lines(found: "tuple[TaskScore, ...]", reference: "tuple[TaskScore, ...]") -> list[str]:
    known = {(one.task, one.metric): one for one in reference}
    lines = []
    for one in found:
        other = known.get((one.task, one.metric))
        beside = "" if other is None else f", beside {_score(other)}"
        lines.append(f"{one.task} {one.metric}: {_score(one)}{beside}")
    return lines


def _score(one: "TaskScore") -> str:
    return f"{one.value:.4g}" + ("" if one.stderr is None else f" ± {one.stderr:.2g}")
