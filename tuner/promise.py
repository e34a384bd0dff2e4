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
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """What all trials of a study promise together."""

    promises: tuple[Promise, ...] = ()
    """One for each config, by the number of its first trial."""
    spread: Mapping[str, Spread] = field(default_factory=dict)
    """How single runs of one config differ, by metric."""


NOTHING = Promised()


def promised(trials: Iterable[StoredTrial], before: Promised = NOTHING) -> Promised:
    """What these trials promise. A repeat of no trial given stands for itself.

    Args:
        before: of most of these trials. What has not changed since is taken from there: in a study of
            thousands of trials working all of it out anew after each takes longer than a second.
    """
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
    was = {promise.first.number: promise for promise in before.promises}
    repeated = [group for group in groups if group[1]]
    if len(repeated) == sum(bool(promise.again) for promise in before.promises) and all(
        _is_of(was.get(first.number), first, more) for first, more in repeated
    ):
        spread = before.spread
    else:
        was, spread = {}, spreads([_measured((first, *more)) for first, more in repeated])
    told = {name: one for name, one in spread.items() if one.freedom >= TOLD_FROM}
    found = []
    for first, more in groups:
        promise = was.get(first.number)
        if promise is None or not _is_of(promise, first, more):
            promise = Promise(first=first, again=more, standing=_standing(first, more, spread, told))
        found.append(promise)
    return Promised(promises=tuple(found), spread=spread)


def promises(trials: Iterable[StoredTrial]) -> tuple[Promise, ...]:
    """One for each config of these trials, by the number of its first one."""
    return promised(trials).promises


def _is_of(promise: Promise | None, first: StoredTrial, again: Sequence[StoredTrial]) -> bool:
    """Whether a promise was made of these very trials."""
    if promise is None or promise.first is not first or len(promise.again) != len(again):
        return False
    return all(one is other for one, other in zip(promise.again, again, strict=True))


def _standing(
    first: StoredTrial,
    again: Sequence[StoredTrial],
    spread: Mapping[str, Spread],
    told: Mapping[str, Spread],
) -> StoredTrial:
    """The first trial with what its config is judged by.

    Args:
        spread: how single runs differ.
        told: the same of the metrics of which enough is known for configs measured once.
    """
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
    return replace(first, measurement=combine([first.measurement], told)) if told else first


def _measured(trials: Iterable[StoredTrial]) -> list[Measurement]:
    return [trial.measurement for trial in trials if trial.state is State.MEASURED and trial.measurement]
