"""`tuner report`: words to a use case and back."""

from pathlib import Path

import click

from tuner.mistakes import Mistake
from tuner.options import JSON, RUNS, print_json


@click.command()
@click.argument("study", required=False)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="HTML file to write.")
@RUNS
@JSON
def report(study: str | None, out: Path | None, runs: Path, as_json: bool) -> None:
    """Write STUDY (default: the latest) as one HTML file that can be sent: no script, no network needed."""
    from tuner.report.write import as_json as to_json
    from tuner.report.write import report as make

    if out is None and not as_json:
        raise Mistake("nowhere to write: give --out report.html, --json, or both")
    found = make(study, runs, out)
    if as_json:
        print_json(to_json(found))
    else:
        click.echo(
            f"wrote {out}: {found.study}, {len(found.configs)} configs, {len(found.front)} on the front"
        )
