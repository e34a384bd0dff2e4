"""What a sampler may go by beside its study's trials: a prediction of any config, and how far to trust it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What is predicted of some configs, before any of them is measured."""

    metrics: Mapping[str, NDArray[np.float64]]
    """By a metric's name inside (`goodput_rps`, `tpot_p95_s`), (n,) each, in its own direction. NaN: nothing
    is predicted of that config. A metric that is missing is not predicted at all."""
    fits: NDArray[np.bool_]
    """(n,) whether the config is expected to start: its memory fits and nothing in it is refused."""
    violations: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By the constraint's name as it is told (`slo_attainment`), (n,) each; at most 0 is feasible."""
    best: Mapping[str, float] = field(default_factory=dict)
    """By metric, the best value that any config can have: no more requests are served than come. The same for
    all configs; a metric that is missing has no such bound."""


Predict: TypeAlias = Callable[[Sequence[Config]], Foresight]
"""Must give the same for the same configs, each on its own: what it gives is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """What the sampler `ehvi` goes by beside the trials. The others read `first` alone.

    `tuner.sampler.prior.predictor` makes the prediction from a space, its traffic and its SLO. A benchmark
    that wants a wrong one wraps it; switches below take one ingredient away, to see what it is worth.
    """

    predict: Predict | None = None
    """None: no prior, as with `weight="none"` and `warm_start=False`."""
    weight: Literal["gated", "full", "none"] = "gated"
    """How much of the prediction is the mean of the models that are fitted: as much as the trials so far bear
    out, all of it, or nothing."""
    warm_start: bool = True
    """Whether the first trials are spread over the predicted front; else they are drawn by chance."""
    failures: bool = True
    """Whether failed trials and predicted misfits lower a config's chance."""
    constraints: bool = True
    """Whether told violations do."""
    first: tuple[Config, ...] = ()
    """What is tried before anything else, in this order: an earlier study's best."""
