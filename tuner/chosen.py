"""The few of a study's configs that are drawn and told beside each other, spread over its front. Pure."""

import numpy as np

from tuner.front import FrontView
from tuner.records import State

CHOSEN = 6
"""Configs drawn over each other, the control among them: more lines than that are not told apart."""


def chosen_few(seen: FrontView) -> tuple[int, ...]:
    """The control, what is recommended, then the front's ends and configs evenly between them.

    Evenly by the first objective: a front may crowd where it was searched longest.
    """
    control = [trial.number for trial in seen.control if trial.state is State.MEASURED][:1]
    best = [] if seen.recommended is None else [seen.recommended.number]
    aim = seen.goal.names[0]
    left = {
        trial.number: seen.objective_values(trial)[aim].value
        for trial in seen.best_first
        if trial.number not in (*control, *best)
    }
    room = min(CHOSEN - len({*control, *best}), len(left))
    ends = [*left.values()][:: max(len(left) - 1, 1)]
    between = []
    for wanted in np.linspace(ends[0], ends[-1], room).tolist() if room else []:
        nearest = min(left, key=lambda one: abs(left[one] - wanted))
        between.append(nearest)
        del left[nearest]
    order = {trial.number: place for place, trial in enumerate(seen.best_first)}
    return tuple(dict.fromkeys([*control, *best, *sorted(between, key=order.__getitem__)]))
