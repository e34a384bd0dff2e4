"""The shapes of the service's answers, for its OpenAPI document."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cluster.phase import PhaseName
from tuner.service.jobs import Kind, State


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(_Answer):
    """Whatever went wrong."""

    error: str = Field(description="What, and what to do; a line for each fault where there are several.")
    id: str = Field(description="Of the request, as the service's log has it.")


class Health(_Answer):
    """That the service answers."""

    status: Literal["ok"]


class TraceTold(_Answer):
    """An uploaded trace."""

    trace: str = Field(description="To be named in a submission; equal traces have equal ones.")
    notes: list[str]
    figures: dict[str, JsonValue]


class RunningTold(_Answer):
    """A trial under way."""

    trial: int
    node: str | None = Field(description="Where it runs; null where nodes are not told apart.")
    phase: PhaseName
    stage: str | None = Field(description="Of the engine's start, as far as its log tells.")
    replay: int | None = Field(description="Which replay of the trial, from 1.")
    speed: float | None = Field(description="Of the replay.")
    since: str = Field(description="When it entered this phase.")


class JobTold(_Answer):
    """A study or an ablation as it stands."""

    id: str
    kind: Kind
    study: str
    user: str
    state: State
    becomes: State | None = Field(description="What it is once its process has ended, where it is stopping.")
    simulated: bool
    gpus: int = Field(description="Most GPUs of one of its trials.")
    place: str | None = Field(description="Where it runs, or ran last.")
    queued: str
    started: str | None
    ended: str | None
    reason: str | None = Field(description="Why it ended.")
    deaths: int = Field(description="How often its process died since it last finished a trial.")
    running: list[RunningTold] = Field(
        description="A study's trials under way; none where it does not run, and none of an ablation's."
    )
    request: dict[str, JsonValue]


class Jobs(_Answer):
    """Several of them, in order of submission."""

    jobs: list[JobTold]


class AblationTold(JobTold):
    """An ablation, with what it shows."""

    report: dict[str, JsonValue] | None = Field(
        description="As `tuner ablate --json` prints it; null until the ablation is done."
    )


class TrialTold(_Answer):
    """A finished trial as it was measured."""

    number: int
    state: str
    is_control: bool
    repeats: int | None = Field(description="The trial whose config it measured again.")
    config: dict[str, JsonValue] | None
    objectives: dict[str, JsonValue]
    on_front: bool
    cause: str | None
    reason: str | None
    simulated: bool
    attempts: int
    started: str
    finished: str


class Trials(_Answer):
    """All finished trials of a study."""

    trials: list[TrialTold]
