"""What a user can ask of traces. Front ends turn words or HTTP into one of these calls.

Whatever a user got wrong leaves here as a `Mistake`; nothing here prints.
"""

import asyncio
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from cluster.traffic.cut import cap, sample, scale, window
from cluster.traffic.formats.importing import FORMATS, HASHED_BLOCK_TOKENS, MOST_BAD, Report, import_trace
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.pace import Concurrency, Pace, Service, concurrency, pace
from cluster.traffic.prefixes import share_by_block
from cluster.traffic.recording.proxy import Listening, loop_factory, pass_through, served_model
from cluster.traffic.recording.recorder import Recorder
from cluster.traffic.show import (
    Figures,
    Histogram,
    SessionFigures,
    figures,
    histogram,
    hit_share,
    session_figures,
)
from cluster.traffic.split import By, split
from cluster.traffic.spread import quantum
from cluster.traffic.template import load_render
from cluster.traffic.tokenizer import TokenizerError, load_encode
from cluster.traffic.trace import Trace, TraceError, read_trace, write_trace
from cluster.traffic.turns import as_text
from objectives.statistics import CONFIDENCE, requests_needed
from tuner.mistakes import Mistake

ENGINE_BLOCKS = (16, 32, 64, 128)
"""Cache blocks that engines use, in tokens; 16 is vLLM's on a GPU."""

BLOCKS_SHOWN = 64
"""Places of a prompt at which the shared part is told: beyond them it changes little."""

PAIR_SD = 0.2
"""Assumed standard deviation of a metric's per-request log-ratio between two configs on the same requests.

Simulated pairs at 1.5 times the recorded load had it near this; measured pairs tell better.
"""

DIFFERENCE = 0.03
"""Between configs that a replay is to tell apart, where nothing else is asked for."""

POWER = 0.8
"""Chance that a difference that is there is seen."""


@contextmanager
def users_mistakes() -> Iterator[None]:
    """What the traffic house raises for bad input, as a Mistake."""
    try:
        yield
    except (TraceError, TokenizerError) as error:
        raise Mistake(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """How much of a trace a replay needs for something."""

    what: str
    requests: int
    seconds: float | None
    """At the speed asked for; None where the trace is too short for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything that is told of a trace, times at the speed asked for."""

    path: str
    digest: str
    notes: tuple[str, ...]
    speed: float
    figures: Figures
    """At recorded speed."""
    pace: Pace
    prompts: Histogram
    outputs: Histogram
    share_by_block: tuple[float, ...]
    hit_share: Mapping[int, float]
    """By tokens in one block of an engine's cache; of a cache that never forgets."""
    sessions: SessionFigures | None
    service: Service | None
    concurrency: Concurrency | None
    enough: tuple[Enough, ...]
    pair_sd: float
    """Assumed or measured, for telling configs apart."""

    def to_json(self) -> dict[str, Any]:
        """As data; units are in the names."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A trace that was written, and what it is like."""

    path: str
    digest: str
    notes: tuple[str, ...]
    figures: Figures

    def to_json(self) -> dict[str, Any]:
        """As data; units are in the names."""
        return asdict(self)


def make(recipe: Mapping[str, object], out: Path) -> Written:
    """Make a trace from a recipe's figures and write it."""
    with users_mistakes():
        return _written(make_trace(recipe_from(recipe)), out)


def show(
    path: Path,
    *,
    speed: float = 1.0,
    service: Service | None = None,
    difference: float = DIFFERENCE,
    pair_sd: float = PAIR_SD,
) -> Shown:
    """Everything there is to tell of a trace's file.

    Args:
        path: the file.
        speed: arrival times are divided by this.
        service: how long a request is assumed to take; None: concurrency is not told.
        difference: relative difference between configs that a replay is to tell apart.
        pair_sd: standard deviation of a metric's paired log-ratios, if it was measured.
    """
    with users_mistakes():
        trace = read_trace(path)
    return shown(trace, str(path), speed=speed, service=service, difference=difference, pair_sd=pair_sd)


def shown(
    trace: Trace,
    origin: str,
    *,
    speed: float = 1.0,
    service: Service | None = None,
    difference: float = DIFFERENCE,
    pair_sd: float = PAIR_SD,
) -> Shown:
    """The same of a trace that may lie in no file; `origin`: where it came from, in words."""
    return Shown(
        path=origin,
        digest=trace.digest,
        notes=(*trace.notes, *_rounded(trace)),
        speed=speed,
        figures=figures(trace),
        pace=pace(trace, speed=speed),
        prompts=histogram([request.input_length for request in trace.requests]),
        outputs=histogram([request.output_length for request in trace.requests]),
        share_by_block=share_by_block(trace, blocks=BLOCKS_SHOWN),
        hit_share={block: hit_share(trace, engine_block=block) for block in ENGINE_BLOCKS},
        sessions=session_figures(trace),
        service=service,
        concurrency=None if service is None else concurrency(trace, service, speed=speed),
        pair_sd=pair_sd,
        enough=(
            *(_enough(trace, speed, f"P{q}", requests_needed(q / 100)) for q in (90, 95, 99)),
            _enough(
                trace,
                speed,
                f"a difference of {difference * 100:g} % between configs",
                requests_to_tell_apart(difference, pair_sd=pair_sd),
            ),
        ),
    )


def _rounded(trace: Trace) -> Iterator[str]:
    arrivals = [request.arrival_s for request in trace.requests]
    step = quantum(arrivals)
    if step is not None:
        yield (
            f"arrivals were rounded by their recorder ({len(arrivals)} requests on {len(set(arrivals))} "
            f"timestamps, steps of {step:g} s): replayed so they are bursts; tuner trace import spreads them"
        )


def requests_to_tell_apart(difference: float, *, pair_sd: float = PAIR_SD) -> int:
    """Paired requests after which a relative difference is seen, at `POWER` and `CONFIDENCE`.

    The sample size of a paired test of means, on log-ratios: ((z_confidence + z_power) · sd / log(1 + d))².
    """
    z = float(ndtri((1 + CONFIDENCE) / 2) + ndtri(POWER))
    return math.ceil((z * pair_sd / math.log1p(difference)) ** 2)


def _enough(trace: Trace, speed: float, what: str, requests: int) -> Enough:
    there = requests <= len(trace.requests)
    seconds = trace.requests[requests - 1].arrival_s / speed if there else None
    return Enough(what=what, requests=requests, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A trace that was made of a recorder's file, and what became of the file's rows."""

    written: Written
    report: Report

    def to_json(self) -> dict[str, Any]:
        """As data; units are in the names."""
        return self.written.to_json() | {"report": asdict(self.report)}


def formats() -> tuple[str, ...]:
    """Names of the formats that can be imported, in the order in which they are guessed."""
    return tuple(FORMATS)


def import_file(
    path: Path,
    out: Path,
    *,
    format: str | None = None,
    model: str | None = None,
    rate: float | None = None,
    keep_text: bool = False,
    block_tokens: int = HASHED_BLOCK_TOKENS,
    most_bad: float = MOST_BAD,
    seed: int = 0,
) -> Imported:
    """Make a trace of recorded traffic and write it.

    Args:
        path: the recorder's file.
        out: the trace's.
        format: one of `formats()`; None: guessed.
        model: hub id or folder whose tokenizer counts and hashes text.
        rate: Poisson arrivals at so many requests per second, for formats without times.
        keep_text: whether text and session ids stay in the trace.
        block_tokens: tokens in a block of hashed text.
        most_bad: share of bad rows up to which a file is imported.
        seed: of arrivals that are drawn or spread.
    """
    with users_mistakes():
        trace, report = import_trace(
            path,
            format=format,
            encode=None if model is None else load_encode(model),
            render=as_text if model is None else load_render(model) or as_text,
            rate=rate,
            keep_text=keep_text,
            block_tokens=block_tokens,
            most_bad=most_bad,
            seed=seed,
        )
        return Imported(written=_written(trace, out), report=report)


def cut(
    path: Path,
    out: Path,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    share: float | None = None,
    context: int | None = None,
    speed: float | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> Written:
    """Write part of a trace, or the trace at another pace: what is given is done, in this order.

    Args:
        path: the trace's file.
        out: the new one's.
        start_s, end_s: window of arrivals.
        share: sample of so many of the requests, 0 to 1.
        context: tokens that prompt and output may take together.
        speed: times are divided by this; or
        rate: requests per second that come out.
        seed: of the sample.
    """
    if speed is not None and rate is not None:
        raise Mistake("speed and rate both scale time: give one of them")
    if all(asked is None for asked in (start_s, end_s, share, context, speed, rate)):
        raise Mistake("nothing to cut: give a window, a sample, a context, a speed or a rate")
    with users_mistakes():
        trace = read_trace(path)
        if start_s is not None or end_s is not None:
            trace = window(trace, start_s=start_s or 0.0, end_s=math.inf if end_s is None else end_s)
        if share is not None:
            trace = sample(trace, share, seed=seed)
        if context is not None:
            trace = cap(trace, context)
        if speed is not None or rate is not None:
            trace = scale(trace, speed=speed, rate=rate)
        return _written(trace, out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A trace that was split, and what its parts have in common. They share no session."""

    search: Written
    held_out: Written
    shared_prefixes: int
    """Requests held out whose prompt begins like one searched on, by a block at least."""
    shared_tokens: float
    """Share of the held-out prompt tokens that such beginnings have, 0 to 1."""

    def to_json(self) -> dict[str, Any]:
        """As data; units are in the names."""
        return asdict(self)


def split_file(
    path: Path, search: Path, held_out: Path, *, share: float, by: str = "time", seed: int = 0
) -> Parts:
    """Split a trace into a part to search on and one to verify on, that share no session.

    Args:
        path: the trace's file.
        search, held_out: the parts'.
        share: of the requests to hold out, about.
        by: "time" (later sessions are held out) or "session" (drawn over the whole time).
        seed: of the draw.
    """
    with users_mistakes():
        parts = split(read_trace(path), held_out=share, by=By(by), seed=seed)
        return Parts(
            search=_written(parts.search, search),
            held_out=_written(parts.held_out, held_out),
            shared_prefixes=parts.shared_prefixes,
            shared_tokens=parts.shared_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a recording left."""

    path: str
    counts: Mapping[str, int]
    """Requests by what became of them."""

    def to_json(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)


def record(
    listening: Listening,
    out: Path,
    *,
    model: str | None = None,
    keep_text: bool = False,
    block_tokens: int = HASHED_BLOCK_TOKENS,
    say: Callable[[str], None],
) -> Recorded:
    """Stand before a server and write the trace of what passes, until interrupted (SIGINT or SIGTERM).

    Args:
        listening: where to listen, and the server to pass to.
        out: the trace's file, which must not be there yet.
        model: hub id or folder whose tokenizer counts and hashes; None: what the server says it serves.
        keep_text: whether text and session ids stay in the trace.
        block_tokens: tokens in a block.
        say: told, once, where clients are to go.
    """
    with users_mistakes():
        served = asyncio.run(served_model(listening.server)) if model is None else model
        encode = load_encode(served)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            recorder = Recorder(
                out,
                encode,
                block_tokens=block_tokens,
                render=load_render(served) or as_text,
                keep_text=keep_text,
            )
            runner.run(_record(listening, recorder, lambda at: say(_pointing(at, listening, out, served))))
    if (error := recorder.error) is not None:
        raise Mistake(f"{out}: cannot be written on: {error.strerror or error}; what it has is a whole trace")
    return Recorded(path=str(out), counts=dict(recorder.counts))


async def _record(listening: Listening, recorder: Recorder, ready: Callable[[str], None]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    recorder.on_failure(lambda: loop.call_soon_threadsafe(stop.set))
    with recorder:
        await pass_through(listening, recorder, stop=stop, ready=ready)


def _pointing(address: str, listening: Listening, out: Path, model: str) -> str:
    return f"point clients at {address}: it passes to {listening.server} and records to {out} ({model})"


def _written(trace: Trace, out: Path) -> Written:
    write_trace(trace, out)
    return Written(path=str(out), digest=trace.digest, notes=trace.notes, figures=figures(trace))
