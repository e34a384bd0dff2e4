"""`tuner trace …`: words to the use cases of traces."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from tuner.options import JSON, Finite, print_json

_FILE = click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
_OUT = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write."
)
_POSITIVE = Finite(min=0, min_open=True)

_RECIPE: dict[str, tuple[type, int | float | None, str]] = {
    "requests": (int, None, "How many."),
    "rate": (float, None, "Requests a second."),
    "burstiness": (float, 1.0, "Shape of the gamma gaps: 1 is Poisson, less is burstier."),
    "input_mean": (float, None, "Mean prompt in tokens."),
    "input_cv": (float, 0.5, "Variation of prompts: standard deviation over mean."),
    "input_max": (int, 2**24, "Longest prompt in tokens."),
    "output_mean": (float, None, "Mean output in tokens."),
    "output_cv": (float, 0.5, "Variation of outputs."),
    "output_max": (int, 2**24, "Longest output in tokens."),
    "shared_prefix": (float, 0.0, "Share of all prompt tokens that sessions have in common, 0 to 1."),
    "prefixes": (int, 1, "How many different shared prefixes."),
    "turns": (float, 1.0, "Mean requests of a session."),
    "think_s": (float, 10.0, "Mean seconds from one turn's arrival to the next one's."),
    "block_tokens": (int, 512, "Tokens in one block: what is shared is told in whole blocks."),
    "seed": (int, 0, "Of every draw."),
}
"""Every figure of a recipe: its type, what it is where not given (None: it must be), what it means.

The recipe itself checks them, with all faults at once; a test holds this table to it.
"""


def _recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each figure."""
    for name, (kind, default, meaning) in reversed(_RECIPE.items()):
        command = click.option(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=default,
            required=default is None,
            show_default=True,
            help=meaning,
        )(command)
    return command


@click.group()
def trace() -> None:
    """Recorded traffic: make, import, look at, cut, split and record it."""


@trace.command()
@_OUT
@_recipe_options
@JSON
def make(out: Path, as_json: bool, **recipe: Any) -> None:
    """Make a trace from a few figures."""
    from tuner import trace_usecases
    from tuner.trace_words import written_lines

    _say(trace_usecases.make(recipe, out), written_lines, as_json)


@trace.command()
@_FILE
@click.option("--speed", type=_POSITIVE, default=1.0, show_default=True, help="Play it this much faster.")
@click.option("--ttft-ms", type=Finite(min=0), help="Assumed time to a request's first token.")
@click.option("--tpot-ms", type=Finite(min=0), help="Assumed time for each further token.")
@click.option(
    "--tell-apart",
    "percent",
    type=_POSITIVE,
    default=3.0,
    show_default=True,
    help="Difference between configs, in %, that a replay is to show.",
)
@click.option("--pair-sd", type=_POSITIVE, help="How a metric's paired log-ratios vary, where measured.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it too: a .html or .png file."
)
@JSON
def show(
    path: Path,
    speed: float,
    ttft_ms: float | None,
    tpot_ms: float | None,
    percent: float,
    pair_sd: float | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Print what a trace is like: rates, burstiness, lengths, shared prefixes, sessions, concurrency."""
    from cluster.traffic.pace import Service
    from tuner import trace_usecases
    from tuner.trace_words import shown_lines

    if (ttft_ms is None) != (tpot_ms is None):
        raise click.UsageError("--ttft-ms and --tpot-ms go together: what a request takes")
    service = (
        None if ttft_ms is None or tpot_ms is None else Service(ttft_s=ttft_ms / 1000, tpot_s=tpot_ms / 1000)
    )
    shown = trace_usecases.show(
        path,
        speed=speed,
        service=service,
        difference=percent / 100,
        pair_sd=pair_sd or trace_usecases.PAIR_SD,
    )
    if picture is not None:
        from tuner.trace_picture import draw

        draw(shown, picture)
    _say(shown, shown_lines, as_json)
    if picture is not None and not as_json:
        click.echo(f"wrote {picture}")


@trace.command("import")
@_FILE
@_OUT
@click.option("--format", help="Its format (default: guessed); a wrong name lists those there are.")
@click.option("--model", help="Hub id or folder of the served model: its tokenizer counts and hashes text.")
@click.option("--rate", type=_POSITIVE, help="Draw Poisson arrivals, requests a second (no times recorded).")
@click.option(
    "--keep-text", is_flag=True, help="Keep prompts and session ids; else only keyed hashes remain."
)
@click.option(
    "--block-tokens", type=click.IntRange(min=1), default=16, show_default=True, help="Of hashed text."
)
@click.option(
    "--most-bad",
    type=Finite(0, 100),
    default=1.0,
    show_default=True,
    help="Bad rows in %, over which the import stops.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of drawn arrivals.")
@JSON
def import_(path: Path, out: Path, most_bad: float, as_json: bool, **asked: Any) -> None:
    """Make a trace of recorded traffic: public traces, vLLM's and gateways' logs, OpenTelemetry spans."""
    from tuner import trace_usecases
    from tuner.trace_words import imported_lines

    _say(trace_usecases.import_file(path, out, most_bad=most_bad / 100, **asked), imported_lines, as_json)


@trace.command()
@_FILE
@_OUT
@click.option("--from", "start_s", type=Finite(min=0), help="Seconds after the first request.")
@click.option("--until", "end_s", type=_POSITIVE, help="Seconds after the first request, left out.")
@click.option(
    "--sample",
    "percent",
    type=Finite(0, 100, min_open=True),
    help="Keep so many % of the requests: sessions and prefix groups whole.",
)
@click.option("--context", type=click.IntRange(min=2), help="Cap prompt and output together, in tokens.")
@click.option("--speed", type=_POSITIVE, help="Divide times by this.")
@click.option("--rate", type=_POSITIVE, help="Scale times to so many requests a second.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the sample.")
@JSON
def cut(path: Path, out: Path, percent: float | None, as_json: bool, **asked: Any) -> None:
    """Write part of a trace: a window, then a sample, then a context, then another pace."""
    from tuner import trace_usecases
    from tuner.trace_words import written_lines

    share = None if percent is None else percent / 100
    _say(trace_usecases.cut(path, out, share=share, **asked), written_lines, as_json)


@trace.command()
@_FILE
@click.option(
    "--search", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to search on."
)
@click.option(
    "--held-out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to verify on."
)
@click.option(
    "--share",
    "percent",
    type=Finite(0, 100, min_open=True, max_open=True),
    default=30.0,
    show_default=True,
    help="Requests to hold out, in %.",
)
@click.option("--by", type=click.Choice(["time", "session"]), default="time", show_default=True)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draw by session."
)
@JSON
def split(path: Path, search: Path, held_out: Path, percent: float, as_json: bool, **asked: Any) -> None:
    """Split a trace into a part to search on and one to verify on, which share no session."""
    from tuner import trace_usecases
    from tuner.trace_words import parts_lines

    parts = trace_usecases.split_file(path, search, held_out, share=percent / 100, **asked)
    _say(parts, parts_lines, as_json)


@trace.command()
@click.option("--to", "server", required=True, help="The server: http://host:port.")
@_OUT
@click.option("--model", help="Hub id or folder for the tokenizer (default: what the server says it serves).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen: this machine only.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0: any free one."
)
@click.option(
    "--session-header", default="X-Session-Id", show_default=True, help="Names a request's session."
)
@click.option(
    "--keep-text", is_flag=True, help="Keep prompts and session ids; else only keyed hashes remain."
)
@click.option("--block-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@JSON
def record(
    server: str, out: Path, host: str, port: int, session_header: str, as_json: bool, **asked: Any
) -> None:
    """Pass requests on to an OpenAI-compatible server and write their trace, until Ctrl-C."""
    from cluster.traffic.recording.proxy import Listening
    from tuner import trace_usecases
    from tuner.trace_words import recorded_lines

    listening = Listening(server=server, host=host, port=port, session_header=session_header)
    said = trace_usecases.record(listening, out, say=lambda line: click.echo(line, err=as_json), **asked)
    _say(said, recorded_lines, as_json)


class _Told(Protocol):
    """What a use case gives back."""

    def to_json(self) -> dict[str, Any]: ...


_T = TypeVar("_T", bound=_Told)


def _say(told: _T, lines: Callable[[_T], Iterable[str]], as_json: bool) -> None:
    if as_json:
        print_json(told.to_json())
        return
    for line in lines(told):
        click.echo(line)
