"""How a study came to its best: each objective's best value after each finished trial. Pure.

Repeats are no new configs. A config counts with what its first measurement showed, as the search saw it then;
what is promised of it is the front's.
"""

from dataclasses import dataclass

from objectives.metrics import METRICS
from tuner.front import FrontView, losses
from tuner.records import StoredTrial

PREFIX = "best/"
"""Of the metrics' names in MLflow, which puts the charts of one prefix together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The study after one more trial."""

    done: int
    """Finished trials, this one included, whatever became of them."""
    trial: StoredTrial
    value: float | None
    """What it showed, in people's units; None where it has no score."""
    best: float | None
    """Of all so far; None before the first score."""


def history(view: FrontView, name: str) -> tuple[Moment, ...]:
    """Moment by moment, of the objective of that name; trials in the order of their numbers."""
    objective = next(one for one in view.goal.objectives if one.name == name)
    better = max if objective.direction == "maximise" else min
    best: float | None = None
    found = []
    for done, trial in enumerate(view.trials, 1):
        value = None
        if trial.repeats is None and trial.measurement is not None and losses(view.goal, trial) is not None:
            value = METRICS[objective.metric].factor * trial.measurement.metrics[objective.metric].value
            best = value if best is None else better(best, value)
        found.append(Moment(done=done, trial=trial, value=value, best=best))
    return tuple(found)


def best_so_far(view: FrontView) -> dict[str, float]:
    """Each objective's best by MLflow's name of it, `best/capacity_rps`; empty before the first score."""
    found = {}
    for objective in view.goal.objectives:
        moments = history(view, objective.name)
        if moments and moments[-1].best is not None:
            found[f"{PREFIX}{METRICS[objective.metric].shown}"] = moments[-1].best
    return found
