"""When an engine that starts reached which stage, by its own log as it is looked at.

Read so often as the start is watched, so a stamp is late by as much as that takes.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

STAGES: Final = {
    "server imported": re.compile(rb"\(APIServer pid="),
    "core imported": re.compile(rb"\(EngineCore\w* pid="),
    "worker imported": re.compile(rb"\((?:Vllm)?Worker\S* pid="),
    "weights begun": re.compile(rb"Starting to load model"),
    "weights loaded": re.compile(rb"Loading weights took"),
    "compilation begun": re.compile(rb"Starting torch\.compile"),
    "capture begun": re.compile(rb"Capturing CUDA graphs"),
    "engine made": re.compile(rb"init engine \("),
    "server made": re.compile(rb"Starting vLLM (?:API )?server"),
}
"""Stages in the order that they come in, and what the log of vLLM (0.32) has then for the first time: the
first line of each process, which it writes once it has imported what it runs, then what its loader, its
engine core and its server say. An engine without workers of their own skips theirs, and an eager one does not
compile."""

READY: Final = "ready"
"""The stage after all of these: the server answers."""

_UNDER_WAY = {
    "": "importing",
    "server imported": "importing",
    "core imported": "initialising",
    "worker imported": "initialising",
    "weights begun": "loading weights",
    "weights loaded": "profiling memory",
    "compilation begun": "compiling",
    "capture begun": "capturing graphs",
    "engine made": "starting the server",
    "server made": "starting the server",
    READY: "reading back its settings",
}
"""What goes on once a stage was reached, and before the first."""

_AT_MOST = 4096
"""Bytes of a line whose rest is still to come that are kept: longer than any marker."""


class StartStages:
    """Stamps of one start.

    Args:
        log: what the engine writes, which may grow at any time.
        now: a clock that never goes back, seconds.
    """

    def __init__(self, log: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._began_s = now()
        self._read = 0
        self._rest = b""
        self._stamps: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """By stage, since this was made; only what was seen."""
        return dict(self._stamps)

    @property
    def under_way(self) -> str:
        """What the start is at, by the last stage that it reached."""
        return _UNDER_WAY[next((stage for stage in reversed(_UNDER_WAY) if stage in self._stamps), "")]

    def look(self) -> None:
        """Read what the log has got meanwhile."""
        waited = STAGES.keys() - self._stamps.keys()
        if not waited:
            return
        with self._log.open("rb") as log:
            log.seek(self._read)
            more = log.read()
        self._read += len(more)
        text = self._rest + more
        for stage in STAGES:
            if stage in waited and STAGES[stage].search(text):
                self.reached(stage)
        self._rest = text[text.rfind(b"\n") + 1 :][-_AT_MOST:]

    def reached(self, stage: str) -> None:
        """Stamp a stage now."""
        self._stamps[stage] = self._now() - self._began_s
