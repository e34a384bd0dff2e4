"""What an engine was seen to refuse at start, so that it is not proposed again and again.

A failure at start names no culprit. Two things can be said soundly, and only they are:

- A choice that no trial was ever measured with, alone unexplained in a config that was refused, is the
  culprit. One failure is enough where the engine called the config unsupported; where it called an
  argument invalid, or ran with other settings, a number may be at fault, so two configs must have failed.
- Where several choices are unexplained, or none is, the combination is at fault and only it is avoided.

Numbers are never judged: the sampler's model and the space's constraints are for those. Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.order import Cause
from search_spaces.values import Scalar

Pick = tuple[str, Scalar]
"""A categorical parameter's key, and the value it had."""

Picks = frozenset[Pick]
"""Every choice that a config made, parameters with one value left out: nothing else can be tried there."""

_PROOF = {Cause.UNSUPPORTED: 1, Cause.INVALID_ARGUMENT: 2, Cause.SETTINGS_DIFFER: 2}
"""Failures that it takes to condemn a choice, by their cause. Other causes condemn nothing."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Choices, and combinations of choices, to stay away from while there are others."""

    choices: Picks = frozenset()
    combinations: frozenset[Picks] = field(default_factory=frozenset)

    def forbid(self, picks: Picks) -> bool:
        """Whether a config with these choices would be refused, as far as is known."""
        return bool(picks & self.choices) or any(combination <= picks for combination in self.combinations)


def refusals(accepted: Iterable[Picks], refused: Iterable[tuple[Picks, Cause]]) -> Refusals:
    """What these trials tell.

    Args:
        accepted: choices of the configs that an engine served.
        refused: choices of those it did not start with, and why.
    """
    proven = frozenset[Pick]().union(*accepted)
    open_cases = [(picks, _PROOF[cause]) for picks, cause in refused if cause in _PROOF]
    condemned = frozenset[Pick]()
    while True:
        # Each choice condemned explains the failures it is in, which may leave another one alone elsewhere
        # only by being proven innocent, so one case is never counted against two choices.
        open_cases = [(picks, needed) for picks, needed in open_cases if not picks & condemned]
        alone = [(picks - proven, needed) for picks, needed in open_cases if len(picks - proven) == 1]
        counts = Counter(suspect for suspects, _ in alone for suspect in suspects)
        enough = {s for suspects, needed in alone for s in suspects if counts[s] >= needed}
        if not enough:
            break
        condemned |= enough
    return Refusals(
        condemned,
        frozenset(picks - proven if len(picks - proven) > 1 else picks for picks, _ in open_cases),
    )
