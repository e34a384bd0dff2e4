"""One verification of one config, as it is stored and shown. Shapes only.

Numbers are in the units that people read (ms, requests/s, shares of 1). docs/verify.md says how a promise is
judged.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from objectives.measurement import Estimate

Source = Literal["study", "folder", "endpoint"]
"""Started from a study's trial, from an exported folder's own files, or found running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One promise, and what became of it."""

    name: str
    """An objective's as the space has it (`capacity`, `tpot_p95`), or a limit's (`ttft_p95_ms`)."""
    kind: Literal["objective", "limit"]
    unit: str
    better: Literal["more", "less"]
    promised: Estimate | None
    """An objective's value in the study; of a limit, the share of requests that is to meet it."""
    verified: Estimate | None
    """The same on the held-out traffic, with its 95 % interval over runs; None where it was not measured."""
    control: Estimate | None
    """The control beside it on the same traffic; None where there was none, and of limits."""
    ratio: Estimate | None
    """Of an objective: what was verified over what was promised, both over the control where there is one,
    with a 95 % interval. 1: as promised."""
    against_control: bool
    """Whether `ratio` is over the control."""
    bound: float | None
    """The end of `ratio` (of a limit: of `verified`) that decides, at the level of `Verification.level`: not
    held where it is on the wrong side of 1 (of the limit's share). None: not enough runs to tell anything."""
    noticed: float | None
    """What `ratio` (of a limit: the share) would have had to be, with runs differing as they did, to be told
    not held. How much a "held" says."""
    held: bool
    why: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The traffic of a verification."""

    words: str
    """Where it came from and how it differs from what was searched on."""
    held_out: bool
    """Whether no request of it was seen by the search."""
    digests: tuple[str, ...]
    """Of the traces, one a pair."""
    speed: float | None
    """Times as fast as recorded; None in a closed loop."""
    requests: int
    """Of one replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The quality verdict of the config's artefact at the time."""

    passed: bool | None
    """None: not checked, which is a failure for everything that is not simulated."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stress:
    """How one kind of harder traffic went. Nothing is promised there: it never decides."""

    name: Literal["permuted arrivals", "burst"]
    metrics: dict[str, Estimate]
    """The config's, by the name and in the unit that people read."""
    control: dict[str, Estimate]
    """The control's on the same."""
    slo_held: bool | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether what was promised of a config holds, and on what that rests."""

    study: str
    trial: int
    """Number of the config's first trial."""
    source: Source
    held: bool
    """Every promise held, the config could be run, and its quality passed."""
    why: str
    """One sentence: the first thing that failed, or that all held."""
    promises: tuple[Kept, ...]
    not_judged: tuple[str, ...]
    """What could be asked of it and was not promised, or cannot be told this way; one sentence each."""
    level: float
    """Chance of a false "not held" of one promise: the whole's over the number of promises."""
    rate: float
    """Most that a verification in which every promise is true fails by chance."""
    pairs: int
    """Runs of the config that were measured, each beside one of the control's where there was one."""
    quality: Quality
    stress: tuple[Stress, ...]
    traffic: Played
    engine: str
    """"vllm" or "simulated"."""
    version: str | None
    hardware: str | None
    simulated: bool
    started: datetime
    finished: datetime
    tuner_version: str
    notes: tuple[str, ...] = ()
    """What a reader must know of how this was measured."""

    @property
    def of(self) -> dict[str, Estimate]:
        """What was verified, by promise: the numbers that a recommendation carries."""
        return {kept.name: kept.verified for kept in self.promises if kept.verified is not None}
