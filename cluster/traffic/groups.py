"""Requests that belong together: of one session, or with a prefix in common that few others have.

A prefix that many requests begin with (a product's system prompt) would make one group of the whole trace.
So a prefix of more than a given number of requests is split into the groups that go on from it alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from cluster.traffic.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """A partition of a trace's requests."""

    members: tuple[tuple[int, ...], ...]
    """Each group's requests by their places in the trace, ascending; groups in order of their first."""
    split_prefixes: int
    """Prefixes that more than `most` requests have in common, and that were split."""


def groups(requests: Sequence[Request], *, most: int) -> Groups:
    """Sessions and prefix groups, each whole.

    Args:
        requests: a trace's.
        most: requests that a prefix may keep together. A session is kept together whatever its size.
    """
    together = _Together(len(requests))
    sessions: dict[str, int] = {}
    for place, request in enumerate(requests):
        if request.session_id is not None:
            together.join(place, sessions.setdefault(request.session_id, place))
    split = 0
    order = sorted(range(len(requests)), key=lambda place: requests[place].hash_ids)
    pending = [(order, 0)]
    while pending:
        alike, depth = pending.pop()
        with_block = [place for place in alike if len(requests[place].hash_ids) > depth]
        for _, run in groupby(with_block, key=lambda place: requests[place].hash_ids[depth]):
            branch = list(run)
            if len(branch) <= most:
                together.join_all(branch)
            else:
                split += 1
                pending.append((branch, depth + 1))
    return Groups(members=together.members(), split_prefixes=split)


class _Together:
    """Disjoint sets of places (R. Tarjan, JACM 22(2), 1975), with paths halved."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self._root(one), self._root(other)))
        self._above[high] = low

    def join_all(self, places: Iterable[int]) -> None:
        first, *rest = places
        for place in rest:
            self.join(first, place)

    def members(self) -> tuple[tuple[int, ...], ...]:
        found: dict[int, list[int]] = {}
        for place in range(len(self._above)):
            found.setdefault(self._root(place), []).append(place)
        return tuple(tuple(group) for group in found.values())

    def _root(self, place: int) -> int:
        while self._above[place] != place:
            self._above[place] = self._above[self._above[place]]
            place = self._above[place]
        return place
