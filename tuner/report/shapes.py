"""What a report holds, as data: what the page draws and `--json` writes. Shapes only.

Numbers are in the units that people read (ms, shares of 1). Configs go by the number of their first trial.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from search_spaces.values import Json

Check = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberReport:
    """An estimate."""

    value: float
    low: float | None
    """Ends of the 95 % interval; None for one that is not known."""
    high: float | None
    text: str
    """As people read it: `18.2 (17.5 to 19.1)`, `at least 24 (23.1 to ?)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveReport:
    """What the study improves."""

    name: str
    unit: str
    better: Literal["more", "less"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointReport:
    """One replay of a config's curve."""

    rps: float
    """Offered, requests per second."""
    held: bool
    """Whether the SLO held."""
    cut: bool
    """Ended as soon as its verdict was certain: it has no latencies, since its requests did not all end."""
    at_capacity: bool
    """The highest rate at which the SLO held."""
    most_met: float
    """The most that can have met the SLO, as a share."""
    metrics: Mapping[str, NumberReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Whether something beside the measurement holds of a config."""

    state: Check
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """A config with a score."""

    number: int
    title: str
    """Few words; the control's are "the engine's defaults"."""
    is_control: bool
    on_front: bool
    recommended: bool
    config: Mapping[str, Json] | None
    """By the space's paths; None for a control that is no point of the space."""
    objectives: Mapping[str, NumberReport]
    against_control: Mapping[str, float]
    """By objective, its number over the control's; empty for the control, and where that has none."""
    measured_again: int
    """Fresh measurements that its numbers are of; 0: it was measured once."""
    alike: tuple[int, ...]
    """Others on the front whose intervals overlap with its own in every objective."""
    quality: CheckReport
    verified: CheckReport
    doubts: tuple[str, ...]
    """Where client and engine disagree."""
    warnings: tuple[str, ...]
    curve: tuple[PointReport, ...]
    """By ascending rate; empty where there are no two rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """Trials that failed alike."""

    cause: str
    trials: tuple[int, ...]
    example: str
    """The first one's config and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeReport:
    """What the trials took. Seconds, all trials added up."""

    trials: int
    start_s: float
    """Engines starting."""
    replay_s: float
    rest_s: float
    """Warm-up, checks, stopping, and all of trials that failed before they were timed."""
    elapsed_s: float | None
    """First start to last end, pauses of a study that was resumed among it; None while nothing finished."""
    gpu_hours: float
    """Trials' time times the GPUs that each held."""
    start_median_s: float | None
    trial_median_s: float | None
    replays: str
    """How many, and what cutting them saved, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationReport:
    """What one ablation of the study showed."""

    name: str
    """Of its folder under the study's `ablations`."""
    summary: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReport:
    """The recommended config, to copy."""

    trial: int
    yaml: str
    """For `vllm serve --config`. What speaks against using it stands in it as comments."""
    environment: str
    """`NAME=value` lines; empty where there are none."""
    secrets: tuple[str, ...]
    """What was secret when it was measured, and has to be set before it starts."""
    beware: tuple[str, ...]
    """What speaks against using it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A study."""

    study: str
    simulated: bool
    """Then nothing was measured, and every place that shows a number says so."""
    summary: tuple[str, ...]
    """The most important first."""
    facts: Mapping[str, str]
    """What was searched, on what, by what; by heading."""
    objectives: tuple[ObjectiveReport, ...]
    limits: Mapping[str, float]
    """The SLO by metric as people read it: `ttft_p95_ms`; `slo_attainment` is the share that must meet it."""
    configs: tuple[ConfigReport, ...]
    """Every config with a score, by number."""
    chosen: tuple[int, ...]
    """The few to compare: the control, what is recommended, then the front, the best first."""
    front: tuple[int, ...]
    """The best first."""
    recommended: int | None
    failures: tuple[FailureReport, ...]
    time: TimeReport
    ablations: tuple[AblationReport, ...]
    launch: LaunchReport | None
    """None where nothing has a score."""
    version: int = 1
    """Of this shape."""

    def config(self, number: int) -> ConfigReport:
        """The config of that number. Raises KeyError where it has no score."""
        for config in self.configs:
            if config.number == number:
                return config
        raise KeyError(number)
