"""Open-loop replay: requests leave when they are due, whatever the server does, and each becomes a Record.

Why our own: exact open loop, abort in mid-replay and the time of every token decide every result. The
client shares its machine with the engine, so it also watches itself, and calls its own replay void where it
was late. It knows nothing of configs, trials or what the numbers are for.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from cluster.node.client import Call, Client, connected
from cluster.node.misses import Misses
from cluster.node.validity import void
from cluster.node.watch import Stop, Stopped, Watch, Watcher
from cluster.settled_memory import settled_memory
from cluster.traffic.workload import Prompt
from objectives.allowance import CUT, Allowance
from objectives.measurement import Record
from objectives.statistics import quantile

LEAD_S = 0.05
"""From the clock's start to its zero, so that a first request due at zero is not late."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One replay as the client saw it."""

    records: tuple[Record, ...]
    """One a prompt, in the prompts' order, those that never left included."""
    zero_s: float
    """Where `time.perf_counter` stood at zero of the records' clock."""
    invalid: str | None
    """Why the client's own lateness or lack of CPU makes this replay void; None if it does not."""
    lateness_p99_s: float
    """Of the sends; NaN where none left."""
    client_cpu_share: float
    """CPU time of the client's thread over the replay's time: 1 is one core."""
    stopped: Stopped | None = None
    """None if every request was seen through."""
    reason: str | None = None
    """One line on why it was stopped."""
    cut_s: float | None = None
    """When it was cut; None if it was not."""
    inferred: int = 0
    """Answers whose arrivals between the first and the last are left out, their tokens being unknown."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the records must know, one sentence each."""
        if not self.inferred:
            return ()
        return (
            f"{self.inferred} of {len(self.records)} answers carried usage only at their end, and their "
            "chunks are not single tokens: only their first and last arrivals are known.",
        )


async def replay(
    prompts: Sequence[Prompt],
    *,
    base_url: str,
    model: str,
    stuck_s: float,
    alive: Callable[[], str | None],
    temperature: float = 0.0,
    seed: int = 0,
    request_timeout_s: float | None = None,
    allowance: Allowance | None = None,
    key: str | None = None,
) -> ReplayResult:
    """Send every prompt at its due time and see each through.

    A prompt that waits for another is due its think time after that one was answered to its end, or failed.
    One whose turn never came has the replay's end as its due time: it was due no sooner.

    Args:
        prompts: in any order of due times; what one of them waits for is among them.
        base_url: the server's root, without `/v1`.
        stuck_s: with requests in flight and no token for any of them for this long, the replay stops.
        alive: asked four times a second, so quick; a reason why the engine is dead stops the replay at once.
        seed: each request's sampling seed is this plus its index in the trace.
        request_timeout_s: the longest that one request may take from its sending; None: as long as it takes.
        allowance: cut the replay once more requests than this have missed the SLO for certain.
        key: a bearer token that the server asks for; None: it asks for none.

    Raises:
        ValueError: where a prompt waits for one that is not there.
    """
    check_turns(prompts)
    calls = [Call(prompt, model=model, temperature=temperature, seed=seed) for prompt in prompts]
    misses = None if allowance is None else Misses(calls, allowance)
    async with connected(
        base_url, connections=len(calls), request_timeout_s=request_timeout_s, key=key
    ) as client:
        watch = Watch(client, stuck_s=stuck_s, alive=alive, misses=misses)
        return await played(leave_when_due(calls, client), calls, client, watch)


def check_turns(prompts: Sequence[Prompt]) -> None:
    """Raises ValueError where a prompt waits for one that is not there."""
    there = {prompt.request for prompt in prompts}
    if lost := [prompt for prompt in prompts if prompt.after is not None and prompt.after not in there]:
        raise ValueError(f"prompt {lost[0].request} waits for {lost[0].after}, which is not to be played")


async def closed_loop(
    prompts: Sequence[Prompt],
    concurrency: int,
    *,
    base_url: str,
    model: str,
    stuck_s: float,
    alive: Callable[[], str | None],
    temperature: float = 0.0,
    seed: int = 0,
    request_timeout_s: float | None = None,
    key: str | None = None,
) -> ReplayResult:
    """Keep `concurrency` prompts in flight until all are served, in their order.

    A prompt's own due time is not looked at; its record's is when its turn came, so the latencies leave out
    the wait for a turn.
    """
    calls = [Call(prompt, model=model, temperature=temperature, seed=seed) for prompt in prompts]
    async with connected(
        base_url, connections=concurrency, request_timeout_s=request_timeout_s, key=key
    ) as client:
        watch = Watch(client, stuck_s=stuck_s, alive=alive)
        return await played(_leave_in_turn(calls, client, concurrency), calls, client, watch)


def run_loop(main: Coroutine[object, object, Result]) -> Result:
    """Run to the end on the fastest event loop there is, from code that has none."""
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(main)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # the standard loop costs about twice the CPU a chunk, and is everywhere
        return asyncio.new_event_loop
    fastest: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return fastest


async def leave_when_due(calls: Sequence[Call], client: Client) -> None:
    """Send each call at its due time, in a task of its own so that none waits for another unasked."""
    first = [call for call in calls if call.after is None]
    turns: dict[int, list[Call]] = {}
    """By the request that they wait for."""
    for call in calls:
        if call.after is not None:
            turns.setdefault(call.after, []).append(call)

    async with asyncio.TaskGroup() as group:

        def release(next_turns: Sequence[Call], at_s: float) -> None:
            for turn in next_turns:
                turn.due_s = at_s + turn.think_s
                group.create_task(leave(turn))

        async def leave(turn: Call) -> None:
            await client.until(turn.due_s)
            await client.send(turn)

        for call in calls:
            if call.request in turns:
                call.on_end = partial(release, turns[call.request])
        for call in sorted(first, key=lambda call: call.due_s):
            await client.until(call.due_s)
            group.create_task(client.send(call))


async def _leave_in_turn(calls: Sequence[Call], client: Client, concurrency: int) -> None:
    """Send the next call whenever one of so many has ended."""
    turn = iter(calls)

    async def worker() -> None:
        for call in turn:
            call.due_s = client.now()
            await client.send(call)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


async def _soon() -> float:
    return time.perf_counter() + LEAD_S


async def played(
    play: Coroutine[object, object, None],
    calls: Sequence[Call],
    client: Client,
    watch: Watcher,
    zero: Callable[[], Awaitable[float]] = _soon,
) -> ReplayResult:
    """Play to the end or until the watch stops it, and say how it went.

    `zero` is asked once all is ready: where `time.perf_counter` stands at zero of the records' clock.
    """
    with settled_memory():
        client.zero_s = await zero()
        cpu_s = time.thread_time()
        started_s = client.now()
        async with running(play) as playing, running(watch.run()) as watching:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            share = (time.thread_time() - cpu_s) / (client.now() - started_s)
            # The watch comes first: connections of a dead engine may all have ended in the same moment.
            stop = watching.result() if watching.done() else None
            if stop is None:
                playing.result()
                stop = await watch.last_look(
                    max((call.broken_s or -math.inf for call in calls), default=-math.inf)
                )
    ended_s = client.now()
    for call in calls:
        if call.due_s == math.inf:
            call.due_s = ended_s
    records = tuple(call.record(_unfinished(stop)) for call in calls)
    return ReplayResult(
        records=records,
        zero_s=client.zero_s,
        invalid=void(
            records,
            lags_s=watch.lags_s,
            cpu_share=share,
            faults=[call.client_fault for call in calls if call.client_fault is not None],
        ),
        lateness_p99_s=lateness_p99_s(records),
        client_cpu_share=share,
        stopped=None if stop is None else stop.kind,
        reason=None if stop is None else stop.reason,
        cut_s=stop.at_s if stop is not None and stop.kind is Stopped.CUT else None,
        inferred=sum(call.inferred for call in calls),
    )


def lateness_p99_s(records: Sequence[Record]) -> float:
    """Of the sends; NaN where none left."""
    late_s = [record.lateness_s for record in records if record.sent_s is not None]
    return quantile(np.array(late_s), 0.99) if late_s else math.nan


def _unfinished(stop: Stop | None) -> str:
    """The error of a request that nothing else ended."""
    if stop is None:
        return "the replay ended first"
    return CUT if stop.kind is Stopped.CUT else f"the replay was stopped: {stop.reason}"


@asynccontextmanager
async def running(work: Coroutine[object, object, Result]) -> AsyncIterator[asyncio.Task[Result]]:
    """A task that does not outlive the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
