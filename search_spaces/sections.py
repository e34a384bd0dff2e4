"""The flat sections of a space: resources, traffic, budget. Read from text, so strict: no unknown keys."""

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


class Budget(Section):
    """How much a study may spend."""

    trials: int | None = Field(default=None, ge=1)
    """Measured trials, the control included; None: the command line says."""
