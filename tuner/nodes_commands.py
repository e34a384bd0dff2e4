"""`tuner nodes`: words to its use case."""

import click

from tuner.options import JSON, print_json


@click.command()
@click.option("--ray", "address", help="Address of a Ray cluster (default: this machine).")
@click.option("--space", "space", help="Tell whether a trial of this space could run on each node.")
@JSON
def nodes(address: str | None, space: str | None, as_json: bool) -> None:
    """Tell what each node has: accelerators, CPUs, memory, versions, and a space's models."""
    from tuner.nodes_usecases import nodes as ask
    from tuner.nodes_usecases import nodes_json, nodes_lines

    seen = ask(address, space, lambda line: click.echo(line, err=True))
    if as_json:
        print_json(nodes_json(seen))
        return
    for line in nodes_lines(seen):
        click.echo(line)
