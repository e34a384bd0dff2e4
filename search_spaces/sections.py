"""The flat sections of a space: resources, traffic, budget, quality. Read from text, so strict."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class Section(BaseModel):
    """A mapping of known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Resources(Section):
    """What one trial may take of a node."""

    gpus: int | None = Field(default=None, ge=0)
    """Most GPUs of one trial; 0: served by CPU; None: as many as its parallel sizes ask for."""
    cpus: int = Field(default=1, ge=1)
    accelerator: str | None = None
    """Ray's name of the accelerator type the trial must run on; None: any."""
    gpu_hour_price: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What one GPU costs for an hour, in whatever money; None: costs are not told."""


class SpaceTraffic(Section):
    """What every config is played."""

    trace: str | None = None
    """Path of a recorded trace, from where the user stands."""
    make: Mapping[str, JsonValue] | None = None
    """Figures to make a trace from; `tuner trace make` has the list."""
    speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Arrival times are divided by this."""
    sessions: Literal["recorded", "causal"] = "recorded"
    """When a session's later turns leave: at their recorded times, or once the turn before was answered."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.trace is not None and self.make is not None:
            raise ValueError("takes a trace or the figures to make one, not both")
        return self


class Quality(Section):
    """How far a config's answers may lie from the reference's, and how closely that is looked at."""

    max_nll_increase: float = Field(default=0.02, ge=0, allow_inf_nan=False)
    """Nats a token by which the reference's own words may be less likely to it."""
    max_kl: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Nats a token by which next tokens may diverge; None: as far as the other limits let them."""
    min_agreement: float = Field(default=0.9, ge=0, le=1, allow_inf_nan=False)
    """Least share of the reference's greedy tokens that must be its own most likely ones."""
    prompts: int = Field(default=32, ge=10, le=1000)
    """Held-out prompts; below 10 no interval could be given."""
    tokens: int = Field(default=32, ge=1, le=1024)
    """Longest continuation of each."""


class Budget(Section):
    """How much a study may spend."""

    trials: int | None = Field(default=None, ge=1)
    """Measured trials, the control included; None: the command line says."""
