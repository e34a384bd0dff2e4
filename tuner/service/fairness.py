"""Whose turn it is. Pure.

Users take turns: first comes who has the fewest jobs running, then who has waited longest since a job of
theirs was last started (who never had one before all others), then who submitted first. Within a user the
oldest job comes first. So nobody waits for more than one job of each other user, however many they queue.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tuner.service.jobs import Job

_NEVER = datetime.min.replace(tzinfo=UTC)


def in_turn(
    waiting: Sequence[Job], running: Sequence[Job], last_started: Mapping[str, datetime]
) -> tuple[Job, ...]:
    """The jobs that may start next, one a user, the first in turn first.

    Args:
        waiting: queued jobs, in any order.
        running: those that hold a place of the kind in question.
        last_started: when a job of the kind was last started, by user; users without one are left out.
    """
    busy = Counter(job.user for job in running)
    oldest: dict[str, Job] = {}
    for job in sorted(waiting, key=lambda job: (job.queued, job.sequence)):
        oldest.setdefault(job.user, job)
    return tuple(
        sorted(
            oldest.values(),
            key=lambda job: (busy[job.user], last_started.get(job.user, _NEVER), job.queued, job.sequence),
        )
    )
