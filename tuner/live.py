"""A search as it runs, in a terminal: what is under way, the best so far, the front as a plot, the time left.

Lines of what has happened scroll above it, the same as where there is no terminal. A running trial has the
phase that its node last told, since when it is in it, and the time that it has taken beside what trials take.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.order import Measured
from cluster.phase import Phase, PhaseName
from objectives.metrics import METRICS, published
from tuner.events import Done, Event, Finished, FrontMoved, Retried, Started, UnderWay, Waiting
from tuner.live_plot import CONTROL, DOMINATED, FRONT, Place, plot_lines
from tuner.terminal import Progress, about, clock, config_words

_REFRESHES_A_SECOND = 1.0
_PLOT_ROWS = 8
_LOWEST = 24
"""Rows of a terminal below which the plot is left out."""
_WIDEST = 100
_NODE_FROM = 90
"""Columns of a terminal below which the node is left out."""
_BY_SHOWN = {metric.shown: metric for metric in METRICS.values()}


_SENT = Phase(name=PhaseName.SENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    since: float
    what: str
    node: str | None = None
    phase: Phase = _SENT
    phase_since: float

    def told(self, event: UnderWay, at: float) -> "_Running":
        """With what was told of it."""
        since = self.phase_since if self.phase.is_further(event.phase) else at
        return replace(self, node=event.node, phase=event.phase, phase_since=since)


@dataclass(slots=True)
class LiveState:
    """What a search's events have told so far."""

    clock: Callable[[], float] = time.perf_counter
    running: dict[int, _Running] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    """Objectives by the number of each measured trial, repeats left out."""
    controls: set[int] = field(default_factory=set)
    front: tuple[int, ...] = ()
    objectives: tuple[str, ...] = ()
    done: int = 0
    failed: int = 0
    total: int | None = None
    ends_at: float | None = None

    def take(self, event: Event | str) -> None:
        """Take in what has happened."""
        match event:
            case Started():
                again = "" if event.repeats is None else f"trial {event.repeats} again: "
                what = "the engine's defaults" if event.is_control else config_words(event.config)
                now = self.clock()
                self.running[event.number] = _Running(since=now, what=again + what, phase_since=now)
            case UnderWay():
                if event.number in self.running:
                    self.running[event.number] = self.running[event.number].told(event, self.clock())
            case Retried():
                if event.number in self.running:
                    self.running[event.number] = replace(
                        self.running[event.number], phase=_SENT, phase_since=self.clock()
                    )
            case Finished():
                self._finished(event)
            case Waiting():
                self.total = event.total
                if event.eta_s is not None:
                    self.ends_at = self.clock() + event.eta_s
            case FrontMoved():
                self.front = event.numbers
            case Done():
                self.running.clear()
            case _:
                pass

    def _finished(self, event: Finished) -> None:
        was = self.running.pop(event.number, None)
        if was is not None:
            self.took_s.append(self.clock() - was.since)
        self.done, self.total, self.objectives = event.done, event.total, event.objectives
        self.ends_at = None if event.eta_s is None else self.clock() + event.eta_s
        if not isinstance(event.outcome, Measured):
            self.failed += 1
            return
        shown = published(event.outcome.measurement)
        if event.repeats is None and all(name in shown for name in event.objectives):
            self.values[event.number] = {name: shown[name].value for name in event.objectives}
            if event.is_control:
                self.controls.add(event.number)

    @property
    def expected_s(self) -> float | None:
        """What trials took, the median; None before the first."""
        return statistics.median(self.took_s) if self.took_s else None

    @property
    def best(self) -> int | None:
        """Of the front, by the first objective."""
        known = [number for number in self.front if number in self.values]
        if not known or not self.objectives:
            return None
        aim = self.objectives[0]
        more = _BY_SHOWN[aim].direction == 1
        return (max if more else min)(known, key=lambda number: self.values[number][aim])


def picture(state: LiveState, *, width: int, height: int) -> RenderableType:
    """What stands at the foot of the terminal now."""
    parts: list[RenderableType] = [_head(state)]
    if state.running:
        parts.append(_running(state, width=width))
    plot = _plot(state, width=width) if height >= _LOWEST else []
    return Group(*parts, *(Text(line, no_wrap=True) for line in plot))


def _head(state: LiveState) -> Text:
    words = [f"{state.done}{'' if state.total is None else f' of {state.total}'} trials done"]
    if state.failed:
        words.append(f"{state.failed} failed")
    best = state.best
    if best is not None:
        who = "control" if best in state.controls else f"trial {best}"
        told = ", ".join(f"{name} {value:.3g}" for name, value in state.values[best].items())
        words.append(f"best {who}: {told}")
    if state.ends_at is not None and state.done < (state.total or 0):
        words.append(f"about {about(max(state.ends_at - state.clock(), 0.0))} left")
    return Text("  ".join(words), style="bold", no_wrap=True, overflow="ellipsis")


def _running(state: LiveState, *, width: int) -> Table:
    on_nodes = width >= _NODE_FROM and any(one.node is not None for one in state.running.values())
    table = Table(box=None, padding=(0, 1), expand=True)
    table.add_column("running", no_wrap=True)
    table.add_column("for", justify="right", no_wrap=True)
    if on_nodes:
        table.add_column("node", no_wrap=True, overflow="ellipsis", max_width=width // 5)
    table.add_column("phase", no_wrap=True, overflow="ellipsis")
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("config", no_wrap=True, overflow="ellipsis", ratio=1, min_width=10)
    expected, now = state.expected_s, state.clock()
    for number, running in sorted(state.running.items()):
        of = "" if expected is None else f" of about {clock(expected)}"
        phase = (running.phase.text, clock(now - running.phase_since))
        node = [running.node or "?"] if on_nodes else []
        table.add_row(f"trial {number}", clock(now - running.since) + of, *node, *phase, running.what)
    return table


def _plot(state: LiveState, *, width: int) -> list[str]:
    """Of the first two objectives; over the trial's number where there is one."""
    if not state.objectives:
        return []
    first, *others = state.objectives
    places = [
        Place(
            x=float(number) if not others else values[first],
            y=values[others[0] if others else first],
            mark=CONTROL if number in state.controls else FRONT if number in state.front else DOMINATED,
        )
        for number, values in state.values.items()
    ]
    return plot_lines(
        places,
        x_name=first if others else "trial",
        y_name=others[0] if others else first,
        width=min(width, _WIDEST),
        height=_PLOT_ROWS,
    )


@contextmanager
def search_progress(stream: IO[str], say: Callable[[str], None]) -> Iterator[Callable[[Event | str], None]]:
    """What shows a search's events: alive where the stream is a terminal, else a plain line each.

    Args:
        stream: where it is shown.
        say: says a plain line there.
    """
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", None):
        yield Progress(say=say).show
        return
    console = Console(file=stream)
    state, lock = LiveState(), Lock()

    def render() -> RenderableType:
        with lock:
            return picture(state, width=console.width, height=console.height)

    # `print` with markup would take a config's brackets for a style.
    lines = Progress(say=lambda line: console.print(line, markup=False, highlight=False))

    def show(event: Event | str) -> None:
        with lock:
            state.take(event)
        lines.show(event)

    with Live(get_renderable=render, console=console, refresh_per_second=_REFRESHES_A_SECOND, transient=True):
        # A second Ctrl-C ends the process at once, and would leave the terminal without its cursor.
        console.show_cursor(True)
        yield show
