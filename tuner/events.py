"""What a search tells as it goes: one frozen value an event, for whoever shows it. Imports no study."""

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.order import Outcome
from cluster.phase import Phase
from search_spaces.values import Scalar
from tuner.front import FrontView


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A trial was sent out."""

    number: int
    config: Mapping[str, Scalar] | None
    """By path; None: the control, whose place in the space is known when it has run."""
    is_control: bool
    repeats: int | None = None
    """The trial whose config it measures again, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A trial under way is in this phase, or this far in it. Nodes tell it, not the search."""

    number: int
    node: str | None
    """Where it runs; None where nodes are not told apart."""
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Nothing has finished for a while: what is running, and how far the search is."""

    running_s: Mapping[int, float]
    """Seconds since it was sent out, by the number of each trial under way."""
    view: FrontView
    """The trials finished so far."""
    total: int
    eta_s: float | None
    """As in `Finished`; None before the first trial has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """A trial was sent out again, for something that says nothing about its config."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something happened to a node, in one sentence."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trial has an outcome, and it is on disk."""

    number: int
    config: Mapping[str, Scalar] | None
    is_control: bool
    outcome: Outcome
    unscored: str | None
    """Why a measured trial has no score; None if it has one, or failed."""
    on_front: bool
    """Whether its config is."""
    untrusted: str | None = None
    """What is known of its quality where that keeps it from being recommended; None where nothing does."""
    repeats: int | None = None
    """The trial whose config it measured again, if it did."""
    objectives: tuple[str, ...]
    """Names of the objectives' metrics, as people are shown them."""
    done: int
    total: int
    eta_s: float | None
    """Until the search is done, by the median of what trials took; None while there is nothing to go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMoved:
    """Other trials are on the front than before."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The search has ended by itself."""

    view: FrontView
    exhausted: str | None
    """Why it ended before the total: there was nothing new to try; None if it did not."""
    why: str
    """Why it ended, and how sure the recommendation is."""
    logged: bool
    """Whether MLflow has everything."""


Event = Started | UnderWay | Waiting | Retried | Noted | Finished | FrontMoved | Done
