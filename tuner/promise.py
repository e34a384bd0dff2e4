"""What a config is judged by, from all its trials. Pure.

Trials that look best are those that were also lucky, so what they showed when they were chosen is left out of
what is promised: once a config was measured again, its number is the mean of the fresh measurements. The
intervals hold what differs from run to run, as far as repeats of any config of the study have shown it. For
that the first measurements count as well: among the best of several they lie further from their mean than
chance alone puts them, so intervals err on the wide side.

A config that failed when it was measured again, by a cause that is its own, or that gave no score, is one
that failed: it is on no front, whatever its other trials showed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from objectives.measurement import Measurement
from objectives.repeats import Spread, combine, spreads
from tuner.records import State, StoredTrial

TOLD_FROM = 3
"""Degrees of freedom from which intervals of configs measured once take in what differs from run to run. With
fewer, Student's quantile says little more than that nobody knows yet, and would blur a whole small study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One config and all that its trials say of it."""

    first: StoredTrial
    """The trial that it was chosen by."""
    again: tuple[StoredTrial, ...]
    """Those that measured it again, by number, whatever became of them."""
    standing: StoredTrial
    """The first, with what the config is judged by in place of its own state and measurement."""

    @property
    def fresh(self) -> tuple[StoredTrial, ...]:
        """Those of `again` that were measured and have a score."""
        return tuple(trial for trial in self.again if trial.state is State.MEASURED)


def promises(trials: Iterable[StoredTrial]) -> tuple[Promise, ...]:
    """One for each config, by the number of its first trial. A repeat of no trial given stands for itself."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    known = {trial.number for trial in ordered}
    again: dict[int, list[StoredTrial]] = {}
    firsts = []
    for trial in ordered:
        if trial.repeats is not None and trial.repeats in known:
            again.setdefault(trial.repeats, []).append(trial)
        else:
            firsts.append(trial)
    groups = [(first, tuple(again.get(first.number, ()))) for first in firsts]
    spread = spreads([_measured((first, *more)) for first, more in groups if more])
    return tuple(
        Promise(first=first, again=more, standing=_standing(first, more, spread)) for first, more in groups
    )


def _standing(first: StoredTrial, again: Sequence[StoredTrial], spread: Mapping[str, Spread]) -> StoredTrial:
    for trial in again:
        if trial.state is State.FAILED and trial.cause is not None and trial.cause.blames_config:
            reason = f"failed when it was measured again (trial {trial.number}): {trial.reason}"
            return replace(first, state=State.FAILED, cause=trial.cause, reason=reason, measurement=None)
        if trial.state is State.UNSCORED:
            reason = f"had no score when it was measured again (trial {trial.number}): {trial.reason}"
            return replace(first, state=State.UNSCORED, reason=reason)
    if first.state is not State.MEASURED or first.measurement is None:
        return first
    if fresh := _measured(again):
        return replace(first, measurement=combine(fresh, spread))
    told = {name: one for name, one in spread.items() if one.freedom >= TOLD_FROM}
    return replace(first, measurement=combine([first.measurement], told))


def _measured(trials: Iterable[StoredTrial]) -> list[Measurement]:
    return [trial.measurement for trial in trials if trial.state is State.MEASURED and trial.measurement]
