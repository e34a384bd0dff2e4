"""Which request comes when: at its own time, some time after another one has ended, or in its turn."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from cluster.node.simulation.served import Job


class Comings(Protocol):
    """Jobs as they come."""

    refused: list[Job]

    @property
    def next_s(self) -> float: ...
    def pop(self) -> tuple[int, Job]: ...
    def ended(self, request: int, at_s: float) -> None: ...


class InTurn:
    """A closed loop: so many jobs at once, and the next one whenever one has ended."""

    def __init__(self, jobs: Sequence[Job], concurrency: int) -> None:
        """`jobs`: in the order of their turns."""
        self.refused: list[Job] = []
        """Jobs that the server answered with an error in their turn."""
        self._left = deque(jobs)
        self._coming: deque[tuple[int, Job]] = deque()
        """Those whose turn has come, with their place among all that are served."""
        self._served = 0
        for _ in range(concurrency):
            self._next_turn(0.0)

    @property
    def next_s(self) -> float:
        """When the next one comes; infinite where none does before another one ends."""
        return self._coming[0][1].due_s if self._coming else math.inf

    def pop(self) -> tuple[int, Job]:
        """The next one's place among all that are served, and the job."""
        return self._coming.popleft()

    def ended(self, request: int, at_s: float) -> None:
        """An answer is complete, whichever: the next job's turn comes."""
        self._next_turn(at_s)

    def _next_turn(self, at_s: float) -> None:
        while self._left:
            job = replace(self._left.popleft(), due_s=at_s)
            if job.refusal is None:
                self._coming.append((self._served, job))
                self._served += 1
                return
            self.refused.append(job)  # it ends as it comes


class Arrivals:
    """Jobs in the order in which they come, as far as that is known yet."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """`jobs`: in order of due time; those that wait for another one have its request in `after`."""
        self.refused: list[Job] = []
        """Jobs that the server answered with an error as they came."""
        self._coming: list[tuple[float, int, int, Job]] = []
        """A heap of time, place among all jobs, and place among those that are served."""
        self._waiting: dict[int, list[tuple[int, int, Job]]] = {}
        """By the request that they wait for: both places, and the job."""
        first: list[tuple[int, int, Job]] = []
        served = 0
        for place, job in enumerate(jobs):
            of_those = first if job.after is None else self._waiting.setdefault(job.after, [])
            of_those.append((place, served, job))
            served += job.refusal is None
        for place, served, job in first:  # only now, since a refused one ends as it comes
            self._come(job.due_s, place, served, job)

    @property
    def next_s(self) -> float:
        """When the next one comes; infinite where none is known to."""
        return self._coming[0][0] if self._coming else math.inf

    def pop(self) -> tuple[int, Job]:
        """The next one's place among all that are served, and the job."""
        _, _, served, job = heapq.heappop(self._coming)
        return served, job

    def ended(self, request: int, at_s: float) -> None:
        """Its answer is complete: those that wait for it come when their time to think has passed."""
        for place, served, job in self._waiting.pop(request, ()):
            due_s = at_s + job.think_s
            self._come(due_s, place, served, replace(job, due_s=due_s))

    def _come(self, due_s: float, place: int, served: int, job: Job) -> None:
        if job.refusal is None:
            heapq.heappush(self._coming, (due_s, place, served, job))
            return
        # A refused request ends as it comes, and so may a whole session of them: no recursion.
        refused = [job]
        while refused:
            over = refused.pop()
            self.refused.append(over)
            for place, served, job in self._waiting.pop(over.request, ()):
                after = replace(job, due_s=over.due_s + job.think_s)
                if after.refusal is None:
                    heapq.heappush(self._coming, (after.due_s, place, served, after))
                else:
                    refused.append(after)
