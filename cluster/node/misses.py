"""How many requests of a replay under way have missed the SLO for certain, at little cost a look."""

import math
from collections.abc import Sequence

from cluster.node.client import Call
from objectives.allowance import Allowance, deadline_s


class Misses:
    """Counts misses as they become certain. A call is looked at until it is decided, then never again."""

    def __init__(self, calls: Sequence[Call], allowance: Allowance) -> None:
        self._waiting = [call for call in calls if call.due_s == math.inf]
        """Turns that another call's end is yet to make due."""
        known = (call for call in calls if call.due_s < math.inf)
        self._undecided = sorted(known, key=lambda call: call.due_s)
        self._allowance = allowance
        self.count = 0

    def too_many(self, now_s: float) -> bool:
        """Whether more have missed by now, on the replay's clock, than may."""
        if released := [call for call in self._waiting if call.due_s <= now_s]:
            self._waiting = [call for call in self._waiting if call.due_s > now_s]
        undecided: list[Call] = []
        open_calls = released + self._undecided
        for at, call in enumerate(open_calls):
            if call.due_s > now_s:
                undecided += open_calls[at:]
                break
            missed = self._missed(call, now_s)
            if missed is None:
                undecided.append(call)
            else:
                self.count += missed
        self._undecided = undecided
        return self.count > self._allowance.misses

    def _missed(self, call: Call, now_s: float) -> bool | None:
        """None while it is open."""
        slo = self._allowance.slo
        if call.over:
            return not slo.met_by(call.record(""))
        certain_s = deadline_s(
            slo,
            due_s=call.due_s,
            first_s=call.first_s,
            first_tokens=call.first_tokens,
            asked=call.asked,
        )
        return True if now_s > certain_s else None
