"""One of several client processes of a replay: plays its share of the prompts on the clock of all.

    python -m cluster.node.shard DESCRIPTOR PROCESSES PLACE PARENT    (started by cluster.node.shards only)

The job comes in on standard input, and its result goes out on standard output, both pickled by this program
itself. What the replay stops for is decided by the parent, who sees every process.
"""

import asyncio
import math
import os
import pickle
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.node.board import Board
from cluster.node.client import Call, Client, connected
from cluster.node.guard import die_with_parent
from cluster.node.misses import Misses
from cluster.node.replay import ReplayResult, leave_when_due, played, run_loop
from cluster.node.watch import COUNT_EVERY_S, LAG_EVERY_S, Stop
from cluster.traffic.workload import Prompt
from objectives.allowance import Allowance

_BEGIN_EVERY_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process plays; the fields are those of `cluster.node.replay.replay`."""

    prompts: tuple[Prompt, ...]
    base_url: str
    model: str
    temperature: float
    seed: int
    request_timeout_s: float | None
    allowance: Allowance | None
    """Of the whole replay."""


class Reporter:
    """Tells the parent how this process stands, and is told when to stop. A Watcher."""

    def __init__(self, client: Client, board: Board, place: int, misses: Misses | None) -> None:
        self._client = client
        self._board = board
        self._place = place
        self._misses = misses
        self.lags_s = array("d")

    async def zero(self) -> float:
        """Say that this process is ready, and wait for the replay's zero."""
        self._board.be_ready(self._place)
        while (zero_s := self._board.zero_s) is None:  # noqa: ASYNC110 - no event reaches from the parent
            await asyncio.sleep(_BEGIN_EVERY_S)
        return zero_s

    async def run(self) -> Stop:
        """Returns when the parent has stopped the replay."""
        now = self._client.now
        count_s = -math.inf
        while (stop := self._board.stop) is None:
            wake_s = now() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            at_s = now()
            self.lags_s.append(max(0.0, at_s - wake_s))
            if self._misses is not None and at_s >= count_s:
                count_s = at_s + COUNT_EVERY_S
                self._misses.too_many(at_s)
            self._report()
        return stop

    async def last_look(self, broken_s: float) -> Stop | None:
        """None: the parent looks for all."""
        if broken_s > -math.inf:
            self._board.report_broken(self._place, broken_s)
        self._report()
        return None

    def _report(self) -> None:
        self._board.report(
            self._place,
            in_flight=self._client.in_flight,
            progress_s=self._client.progress_s,
            misses=0 if self._misses is None else self._misses.count,
        )


async def play(job: Job, board: Board, place: int) -> ReplayResult:
    """This process's part of the replay."""
    calls = [
        Call(prompt, model=job.model, temperature=job.temperature, seed=job.seed) for prompt in job.prompts
    ]
    misses = None if job.allowance is None else Misses(calls, job.allowance)
    async with connected(
        job.base_url, connections=len(calls), request_timeout_s=job.request_timeout_s
    ) as client:
        reporter = Reporter(client, board, place, misses)
        return await played(leave_when_due(calls, client), calls, client, reporter, reporter.zero)


def main(arguments: Sequence[str]) -> None:
    descriptor, processes, place, parent = (int(argument) for argument in arguments)
    die_with_parent(parent)
    answer = os.dup(1)
    os.dup2(2, 1)  # nothing but the result may get into it
    job = pickle.load(sys.stdin.buffer)
    result = run_loop(play(job, Board(descriptor, processes), place))
    with os.fdopen(answer, "wb") as out:
        pickle.dump(result, out, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(sys.argv[1:])
