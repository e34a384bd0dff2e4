"""What crosses the network: an Order goes to a node, an Outcome comes back. Frozen data that pickles."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.traffic.workload import Workload
from objectives.answers import Answers, Tokens, Unanswered
from objectives.bar import Bar
from objectives.measurement import LoadPoint, Measurement, Record, Sample
from objectives.slo import Slo
from search_spaces.values import Json


class Cause(enum.StrEnum):
    """Why a trial has no measurement. A closed set."""

    OUT_OF_MEMORY = "out of memory"
    UNSUPPORTED = "unsupported"
    INVALID_ARGUMENT = "invalid argument"
    HANG_AT_START = "hang at start"
    DIED_AT_START = "died at start"
    DIED_UNDER_LOAD = "died under load"
    STUCK = "stuck"
    SETTINGS_DIFFER = "effective settings differ"
    LOST_TWICE = "lost node twice"
    """Two nodes in a row: one may die of anything, a second one of this config."""
    GPU_HELD = "GPU memory held"
    """By somebody else, from before the engine started."""
    CLIENT_LATE = "client late"
    LOST_NODE = "lost node"
    CANCELLED = "cancelled"

    @property
    def blames_config(self) -> bool:
        """Whether the failure says something about the config (the last four say nothing)."""
        return self not in (Cause.GPU_HELD, Cause.CLIENT_LATE, Cause.LOST_NODE, Cause.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a node waits before it calls a trial failed. Seconds."""

    start_stall_s: float = 180.0
    """No new line in the engine's log and no health for this long: hang at start."""
    stuck_s: float = 60.0
    """No token for any request in flight for this long: stuck."""
    stop_s: float = 20.0
    """From a polite stop to SIGKILL."""
    log_bytes: int = 4_000_000
    """Most of the engine's log that is brought back; the middle is cut out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLoad:
    """Measure at the workload's speed."""

    repeats: int = 1
    """Replays within one engine start, caches emptied between them; their numbers are combined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLoad:
    """Measure at the workload's speed, then find the highest speed at which the SLO holds.

    Speeds are those of `objectives.capacity.SpeedGrid`; docs/measurement.md says how it is found.
    """

    resolution: float = 0.05
    """Ratio of neighbouring speeds, less 1: the capacity is known to this."""
    lowest: float = 0.25
    """Lowest speed tried, times the workload's."""
    highest: float = 16.0
    """Highest speed tried, times the workload's."""
    guess: float | None = None
    """Speed to try first (a speed, as the workload's is one); None: what the first replay suggests."""
    bars: tuple[Bar, ...] = ()
    """What the front had when this was sent out; empty where the capacity is wanted in any case."""
    repeats: int = 1
    """Of the replay at the workload's speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Keep so many requests in flight, whatever their recorded times: no load that any user makes.

    Latency counts from when a request's turn came, so waiting for a turn is not seen.
    """

    concurrency: int


Load = FixedLoad | CapacityLoad | ClosedLoop
"""What a trial measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What to ask the engine for the sake of quality, once its replays are over."""

    prompts: tuple[Tokens, ...]
    tokens: int
    """Longest continuation of each."""
    continuations: tuple[Tokens, ...] | None = None
    """The reference's, prompt by prompt; None where this trial's own are to be the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything a node needs to run one trial."""

    study: str
    number: int
    model: str
    arguments: Mapping[str, Json]
    """Engine arguments by vLLM's own names, underscores, without the model."""
    environment: Mapping[str, str]
    workload: Workload
    slo: Slo
    load: Load = FixedLoad()
    limits: Limits = Limits()
    gpus: int = 0
    cpus: int = 1
    accelerator: str | None = None
    """Ray's name of the accelerator type the trial must run on; None: any."""
    node: str | None = None
    """Name of the node it must run on; None: any."""
    percentiles: tuple[int, ...] = ()
    """Of the latencies, to measure beside the usual ones."""
    gpu_hour_price: float | None = None
    """What one GPU costs for an hour; None: unknown."""
    trust_remote_code: bool = False
    probe: Probe | None = None
    """None where the quality of what it serves is known, or not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What is known of the engine that ran, measured or not. Empty where it never came up."""

    engine: str = ""
    """"vllm" or "simulated"."""
    version: str | None = None
    hardware: str | None = None
    """The accelerator's name, or the CPU's where there is none."""
    node: str | None = None
    command: tuple[str, ...] = ()
    """The rendered command, secrets left out."""
    effective: Mapping[str, Json] = field(default_factory=dict)
    """Settings as the engine reports them: `kv_blocks`, `block_size`, `enable_prefix_caching`, …"""
    log: str = ""
    launch: str = ""
    """"warm", from a launcher that had the engine imported; "cold", or "cold: " and why it was not warm."""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    """Of the start: how long after its beginning the engine's log first told of each stage."""
    start_s: float | None = None
    """Engine start to ready."""
    warm_up_s: float | None = None
    replay_s: float | None = None
    probe_s: float | None = None
    """What asking for the sake of quality took, once the replays were over; None: nothing was asked."""
    stop_s: float | None = None
    """From the last replay's or probe's end until the engine had stopped and given its memory back."""
    total_s: float | None = None
    """Whole trial on the node, engine stopped and memory given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One replay of a trial beside its first: a repeat, or a step on the way to the capacity."""

    point: LoadPoint
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The trial ran and its numbers are valid."""

    measurement: Measurement
    records: tuple[Record, ...]
    """Of the first valid replay at the workload's speed: the ones that trials are compared by."""
    samples: tuple[Sample, ...]
    ran: Ran
    steps: tuple[Step, ...] = ()
    """Further replays, in the order they were played."""
    answers: Answers | Unanswered | None = None
    """To the order's probe; None where it had none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The trial has no measurement. What was seen before it failed is kept for reading, never scored."""

    cause: Cause
    reason: str
    """One line that a person can act on."""
    ran: Ran = Ran()
    records: tuple[Record, ...] = ()
    samples: tuple[Sample, ...] = ()
    steps: tuple[Step, ...] = ()
    """Replays that were over before it failed."""
    begun: bool = True
    """Whether it may have run: one whose node was lost before is sent out again as if it had never been."""


Outcome = Measured | Failed
