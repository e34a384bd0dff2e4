"""What may be asked of the service, as pydantic reads it; and what it makes of that for a job's process."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from search_spaces.values import Json
from tuner.ablation.plan import Asked
from tuner.ablation.surface.plan import AskedSurface

STUDY_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
DIGEST = r"^[0-9a-f]{64}$"
ID = r"^[0-9a-f]{12}$"
IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,128}$"

MOST_TRIALS = 10_000
_Number = Annotated[int, Field(ge=0, le=10**9)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Submission(_Asked):
    """A study to be searched. What is left out, the space says."""

    space: str | None = Field(default=None, max_length=256 << 10, description="The space, as YAML text.")
    shipped: str | None = Field(
        default=None, max_length=100, description="Instead of that, a shipped one: spaces/8b.yaml."
    )
    name: str | None = Field(
        default=None, pattern=STUDY_NAME, description="Of the study; left out, it is given one."
    )
    trace: str | None = Field(
        default=None, pattern=DIGEST, description="An uploaded trace, as its upload was answered."
    )
    make: dict[str, JsonValue] | None = Field(
        default=None, description="Instead of that, figures to make one from, as `tuner trace make` has them."
    )
    trials: int | None = Field(
        default=None, ge=1, le=MOST_TRIALS, description="Finished trials in all, the control included."
    )
    stop_when_stable: bool = Field(
        default=False, description="End before that once the front and the recommendation are settled."
    )
    engine: Literal["vllm", "simulated"] = "vllm"
    sampler: str | None = Field(default=None, max_length=40)
    seed: _Number | None = None
    speed: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    sessions: Literal["recorded", "causal"] | None = None
    measure: str | None = Field(default=None, max_length=40, description="capacity, fixed or closed:N.")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.space is None) == (self.shipped is None):
            raise ValueError("give the space's text as `space`, or a shipped one as `shipped`")
        if self.trace is not None and self.make is not None:
            raise ValueError("takes an uploaded trace or figures to make one, not both")
        return self


class AblationSubmission(_Asked):
    """A trial to be taken apart: by its factors, or, with `acceptances`, what its speculation costs."""

    trial: _Number
    factors: tuple[Annotated[str, Field(max_length=200)], ...] | None = Field(
        default=None, min_length=1, max_length=32, description="To be switched; all where left out."
    )
    fraction: Literal["full", "V", "IV"] | None = None
    replicates: int | None = Field(default=None, ge=2, le=100)
    acceptances: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(
        default=None, min_length=1, max_length=32
    )
    depths: tuple[Annotated[int, Field(ge=1, le=64)], ...] | None = Field(
        default=None, min_length=1, max_length=32
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.acceptances is None and self.depths is not None:
            raise ValueError("depths go with acceptances")
        if self.acceptances is not None and (self.factors is not None or self.fraction is not None):
            raise ValueError("factors and fraction do not go with acceptances")
        return self


def ablation_asked(request: Mapping[str, Any]) -> Asked | AskedSurface:
    """The use case's own request, from what a job keeps of an `AblationSubmission`."""
    depths, acceptances, factors = (request[name] for name in ("depths", "acceptances", "factors"))
    if acceptances is not None:
        return AskedSurface(
            trial=request["trial"],
            acceptances=tuple(acceptances),
            depths=None if depths is None else tuple(depths),
            replicates=request["replicates"],
        )
    return Asked(
        trial=request["trial"],
        factors=None if factors is None else tuple(factors),
        replicates=request["replicates"],
        fraction=request["fraction"],
    )


def plain(asked: BaseModel, *left_out: str) -> dict[str, Json]:
    """As JSON keeps it."""
    kept: dict[str, Json] = asked.model_dump(mode="json", exclude=set(left_out))
    return kept
