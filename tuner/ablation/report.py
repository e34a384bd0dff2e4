"""What an ablation found, as data: what the terminal prints, a page draws and `--json` writes. Shapes only.

Numbers are in the units that people read (ms, shares of 1). An effect is a ratio: by what a number is
multiplied. `OutcomeReport.better` says whether more or less of that number is better, so ×1.2 of a rate is
a gain and ×1.2 of a latency a loss. None means that it cannot be told from these runs, and `cannot` says
why. Cells are named by `CellReport.name`, factors by `FactorReport.name`, and tuples keep the order in
which they are to be shown.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from search_spaces.values import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Verdict = Literal["keep", "drop", "trade", "cannot tell"]
"""`trade`: told to help one number and to harm another, so it is the reader's choice."""

CellState = Literal["measured", "failed", "refused beforehand", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectReport:
    """By what a number is multiplied."""

    ratio: float
    low: float | None
    """Ends of the 95 % interval; None where nothing was measured twice."""
    high: float | None
    told: bool
    """Whether the interval leaves out 1: told from no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasReport:
    """Another term that an estimate holds a share of."""

    factors: tuple[str, ...]
    share: float
    """1 or -1: the two cannot be told apart at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorEffectReport:
    """What one factor does to one number."""

    factor: str
    isolated: EffectReport | None
    """It alone, against none on."""
    in_company: EffectReport | None
    """All on, against all on but it."""
    average: EffectReport | None
    """On against off, averaged over the other factors."""
    mixed_with: tuple[tuple[str, ...], ...] = ()
    """Terms that the average cannot be told from with the cells there are; then there is none."""
    aliases: tuple[AliasReport, ...] = ()
    """Terms that the fraction left out of the fit and the average holds a share of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionReport:
    """What two factors do together beyond the product of what each does, averaged over the others."""

    pair: tuple[str, str]
    effect: EffectReport | None
    contend: bool | None
    """Told to be worse together than the product; False: told to be better; None: neither is told."""
    mixed_with: tuple[tuple[str, ...], ...] = ()
    aliases: tuple[AliasReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReport:
    """One number over the whole design."""

    metric: str
    """As people read it: `goodput_rps`, `ttft_mean_ms`."""
    title: str
    """Few words for a heading: "goodput", "TTFT, mean"."""
    unit: str
    better: Literal["more", "less"]
    informative: bool
    """False: it is pinned by the load that was offered, so effects on it say nothing."""
    cells: Mapping[str, EffectReport]
    """Each measured cell against none on, which is itself 1."""
    factors: tuple[FactorEffectReport, ...]
    interactions: tuple[InteractionReport, ...]
    product: EffectReport | None
    """Product of the isolated effects: what adding up the claims would promise."""
    combination: EffectReport | None
    """What was measured with all factors on."""
    shortfall: EffectReport | None
    """The combination over the product. None for a single factor, which is its own product."""
    sentence: str
    """The product against the combination in words, and which factors contend."""
    noise: float | None
    """Standard deviation of one run's logarithm within a cell and block."""
    degrees_of_freedom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingReport:
    """One engine setting that differs. None: left to the engine."""

    setting: str
    """`model`, an argument by its dotted name, or `environment NAME`."""
    off: Json
    on: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorReport:
    """Settings that are switched together."""

    name: str
    settings: tuple[SettingReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanReport:
    """A metric of a cell over its runs."""

    mean: float
    least: float
    most: float
    runs: int
    """Runs in which it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run of a cell."""

    number: int
    """Of its folder under trials/."""
    block: int
    state: Literal["measured", "failed"]
    cause: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReport:
    """One combination: everything that was measured of it, together."""

    name: str
    """"control" (or "base", where `--factors` left some on), "all", else its factors joined by " + "."""
    on: tuple[str, ...]
    state: CellState
    why: str | None
    """Why it was not measured."""
    runs: tuple[RunReport, ...]
    metrics: Mapping[str, MeanReport]
    """By the metric's name as people read it; those that were measured only. Among them, where counted:
    `accepted_tokens_per_target_step`, `batch_mean`, `batch_occupancy`, `kv_occupancy`, `prefix_hit_rate`,
    `preemptions`, `bytes_per_token`, `flops_per_token` (output tokens, which are the accepted ones), and
    `step_ms`: TPOT mean × accepted tokens per target step."""
    accepted_per_position: tuple[float, ...] | None
    """Share of drafts whose token at each position was accepted, mean over runs; None without speculation."""
    draft_share: float | None
    """Share of the step time that is not there in the same cell without speculation: drafting, and verifying
    more tokens. None where there is no such pair, or the two had different batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """Whether a factor earns its place with all others on."""

    factor: str
    verdict: Verdict
    why: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutReport:
    """The config without the factors to drop."""

    dropped: tuple[str, ...]
    """Empty: there is nothing to drop, and the config is the trial's own."""
    cell: str | None
    """The cell that it is; None where it is none of the design's."""
    against_all: Mapping[str, EffectReport]
    """By metric, that cell against all on; empty where it was not measured."""
    config: Mapping[str, Json] | None
    """By the space's paths; None where it is no point of the space."""
    trial: int | None
    """The study's trial with these very settings, if it has one."""
    command: str
    """The line that serves it."""
    next: tuple[str, ...]
    """Commands of the tuner that come next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReport:
    """A plain question, and its answer from these runs."""

    question: str
    known: bool
    """False: it cannot be told from these runs, and the answer says why."""
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """How far the ablation is, in runs."""

    planned: int
    """Refused cells left out."""
    done: int
    failed: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReport:
    """On what, with what and when the finished runs were measured; more than one entry where they differ."""

    model: str
    """The space's own; a factor may serve another in its place."""
    engine: tuple[str, ...]
    """With its version: "vllm 0.32.0". Empty while nothing ran."""
    hardware: tuple[str, ...]
    nodes: tuple[str, ...]
    gpus: int | None
    """That a trial may use; 0 on a CPU, None where nothing limits it."""
    traffic: tuple[str, ...]
    """The trace by name and digest, then its figures."""
    slo: str | None
    """None where there is no limit."""
    begun: str | None
    """First start and last end of a run, to the minute, UTC; None while nothing ran."""
    ended: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An ablation, whole or as far as it is."""

    study: str
    trial: int
    title: str
    """The trial in few words."""
    simulated: bool
    """Then nothing was measured, and every place that shows a number says so."""
    load: str
    """What was replayed, in words."""
    setup: SetupReport
    base: str
    """What "none on" is, in words."""
    fraction: Literal["full", "V", "IV"]
    progress: ProgressReport
    factors: tuple[FactorReport, ...]
    same: tuple[SettingReport, ...]
    """Settings that differ between trial and control and are the same in every cell: asked for otherwise but
    equal in effect, or of factors that `--factors` left on."""
    outcomes: tuple[OutcomeReport, ...]
    """The rate first, then TTFT, TPOT and E2E."""
    cells: tuple[CellReport, ...]
    """None on first, all on second."""
    summary: tuple[str, ...]
    """What it shows, in plain sentences, the most important first."""
    drops: tuple[DropReport, ...]
    without: WithoutReport | None
    """None while the combination, or what it would be judged by, is not measured."""
    answers: tuple[AnswerReport, ...]
    cannot: tuple[str, ...]
    """What cannot be estimated, and why."""
    notes: tuple[str, ...] = field(default=())
    """What a reader must know of how this was measured."""
    version: int = 1
    """Of this shape."""


def report_json(report: "DataclassInstance") -> dict[str, Json]:
    """A report, of an ablation or a cost surface, as JSON takes it: what is not finite is null."""
    found: dict[str, Json] = _plain(asdict(report))
    return found


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
