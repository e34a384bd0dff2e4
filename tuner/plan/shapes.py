"""What a plan holds, as data: what the terminal prints and `--json` writes. Shapes only."""

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.values import Scalar
from tuner.trace_usecases import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSize:
    """How many configs there are."""

    valid: int | None
    """None: a continuum of them."""
    exact: bool
    """False: estimated from configs drawn by chance."""
    points: int | None
    """Of the bare tree, valid or not; None: a continuum."""

    @property
    def valid_share(self) -> float | None:
        """Valid over all points; None where that is not known."""
        return None if self.valid is None or not self.points else self.valid / self.points


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitReport:
    """Configs that are expected not to start for the same reason."""

    reason: str
    configs: int
    """Of those looked at."""
    example: str
    """One of them in few words, and what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """How a choice fares that some misfits have made."""

    path: str
    choice: str
    configs: int
    """Of those looked at."""
    misfits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What starts, by the first-order model's count of bytes."""

    accelerator: str | None
    """None: there are no figures for it, and nothing is told."""
    looked_at: int
    """Valid configs that were looked at."""
    every: bool
    """Whether those are all; else they were drawn by chance."""
    unknown: int
    """Of these, without figures for the model or a draft."""
    misfits: tuple[MisfitReport, ...]
    """The commonest first."""
    choices: tuple[ChoiceReport, ...]
    """The worst share first."""
    short_of_kv: int
    """Configs that start, but whose KV pool holds fewer sequences than the traffic has under way at once and
    than there are slots: requests wait for KV blocks."""
    kv_sequences: tuple[float, float] | None
    """Least and most sequences that a KV pool holds; None where no config is known to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What the first-order model expects of a config."""

    title: str
    config: Mapping[str, Scalar] | None
    """None: the control."""
    objectives: Mapping[str, float]
    """In people's units."""
    holds: bool
    """Whether the SLO is expected to hold at the speed that every config is played at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationReport:
    """What a search would take."""

    trials: int
    start_s: float
    start_from: str
    """Where that number comes from."""
    replay_s: float | None
    """None: nothing says."""
    replay_from: str
    gpus: int
    """Of one trial."""

    @property
    def trial_s(self) -> float | None:
        return None if self.replay_s is None else self.start_s + self.replay_s

    @property
    def whole_s(self) -> float | None:
        """One trial after the other."""
        return None if self.trial_s is None else self.trials * self.trial_s

    @property
    def gpu_hours(self) -> float | None:
        return None if self.whole_s is None else self.whole_s * self.gpus / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A search, before it."""

    space: str
    model: str
    measured: str
    """What a trial would measure, in words."""
    objectives: tuple[tuple[str, str], ...]
    """Name and unit."""
    size: SpaceSize
    fit: FitReport
    control: Foreseen | None
    """None where nothing is predicted of it."""
    front: tuple[Foreseen, ...]
    """Predicted, the best by the first objective first."""
    duration: DurationReport
    trace: Shown
    remarks: tuple[str, ...]
    """What to change before it is searched, the most important first."""
