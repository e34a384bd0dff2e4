"""What a cost surface shows, as data: what the terminal prints and `--json` writes. Shapes only.

Ratios are against the trial without speculation. None means that it cannot be told from these runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from objectives.break_even import Pays
from tuner.ablation.report import (
    CellState,
    EffectReport,
    MeanReport,
    ProgressReport,
    RunReport,
    SetupReport,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceCellReport:
    """One depth at one acceptance, or no speculation (neither)."""

    name: str
    depth: int | None
    acceptance: float | None
    """Constant: of a draft's token, given that those before it were accepted."""
    state: CellState
    why: str | None
    """Why it was not measured."""
    runs: tuple[RunReport, ...]
    metrics: Mapping[str, MeanReport]
    """By name as people read it, as an ablation's cell has them: `accepted_tokens_per_target_step`,
    `batch_mean`, `step_ms` among them."""
    ratios: Mapping[str, EffectReport]
    """By name as people read it: `tpot_mean_ms`, `step_ms` and the rate; empty without speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenReport:
    """At which acceptance a depth begins to pay, by one number."""

    depth: int
    metric: str
    title: str
    pays: Pays
    acceptance: float | None
    """Given where it pays from an acceptance on."""
    low: float | None
    """Where the ends of the ratio's interval cross 1; None where they do so at none between those tried."""
    high: float | None
    batch: float | None
    """Mean batch without speculation, in the replay that the number is of: a capacity's own, at it."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """What the trial's own draft was measured to accept in the study."""

    depth: int
    per_position: tuple[float, ...]
    """Share of drafts accepted up to and with each position."""
    constant: float
    """The constant acceptance with as many accepted tokens a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceReport:
    """A cost surface, whole or as far as it is."""

    study: str
    trial: int
    title: str
    simulated: bool
    """Then nothing was measured, and every place that shows a number says so."""
    load: str
    setup: SetupReport
    base: str
    method: str
    """Of speculation: how drafts are made."""
    depths: tuple[int, ...]
    acceptances: tuple[float, ...]
    progress: ProgressReport
    rate: str | None
    """The rate among the ratios, by name as people read it; None where no cell has one."""
    reference: SurfaceCellReport
    cells: tuple[SurfaceCellReport, ...]
    """By depth, then acceptance."""
    break_even: tuple[BreakEvenReport, ...]
    """By depth: of TPOT, and of the rate where it says something."""
    draft: DraftReport | None
    """None where the trial measured none, or its acceptance was synthetic."""
    summary: tuple[str, ...]
    cannot: tuple[str, ...]
    notes: tuple[str, ...]
    version: int = 1
    """Of this shape."""
