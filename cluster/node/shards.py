"""One replay played by several client processes, where one would be too slow for its traffic.

Each process plays its share of the prompts (`cluster.node.shard`) on one clock. The watch over the engine,
over the tokens' flow and over the SLO's misses sees them as one client. Where one process will do, none is
started.
"""

import asyncio
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from cluster.node.board import Board
from cluster.node.guarded import PACKAGE_ROOT
from cluster.node.replay import (
    LEAD_S,
    ReplayResult,
    check_turns,
    lateness_p99_s,
    replay,
    running,
)
from cluster.node.shard import Job
from cluster.node.watch import Stop, Stopped, Watch
from cluster.traffic.workload import Prompt
from objectives.allowance import Allowance, cut_records
from objectives.measurement import Record

CHUNK_S = 20e-6
REQUEST_S = 500e-6
"""CPU that a streamed chunk costs the client, and what a request with a connection of its own costs beside
its chunks: about the most that benchmarks/replay.py found on slow and busy cores (docs/replay.md)."""
SHARE = 0.4
"""Share of one core that a process is given to do. Tokens come in bursts, one a sequence and step, and at
half of a core a burst waits as long again as it takes; `cluster.node.validity` calls 85 % void."""
_WINDOW_S = 10.0
"""Bursts shorter than this are spread over it, as the engine's own batch spreads them."""

_START_S = 120.0
_END_S = 60.0
"""How long processes may take to be ready, and to hand over their records once they were told to stop."""


class ClientLost(Exception):
    """A client process ended without its result. The message is one line."""


def processes_for(prompts: Sequence[Prompt], *, cores: int) -> int:
    """How many client processes these prompts need, and at most half of the cores: the engine needs some.

    What counts is the busiest span of the traffic as it is offered. An engine that falls behind streams
    less than that, never more.
    """
    due = sorted(prompts, key=lambda prompt: prompt.due_s)
    busiest_s = spent_s = 0.0
    first = 0
    for prompt in due:
        spent_s += _cost_s(prompt)
        while due[first].due_s <= prompt.due_s - _WINDOW_S:
            spent_s -= _cost_s(due[first])
            first += 1
        busiest_s = max(busiest_s, spent_s)
    # Sums of floats: a share that is exactly one process's must not round up to two.
    needed = math.ceil(busiest_s / _WINDOW_S / SHARE - 1e-9)
    return max(1, min(needed, cores // 2))


def _cost_s(prompt: Prompt) -> float:
    return REQUEST_S + CHUNK_S * prompt.max_tokens


def split(prompts: Sequence[Prompt], processes: int) -> tuple[tuple[Prompt, ...], ...]:
    """The prompts dealt out in turn by due time, turns with the one that they wait for.

    Each share keeps the prompts' order. There are fewer shares where there is not one prompt for each.
    """
    by_request = {prompt.request: prompt for prompt in prompts}
    roots: dict[int, int] = {}

    def root_of(prompt: Prompt) -> int:
        chain = [prompt]
        while chain[-1].after is not None and chain[-1].request not in roots:
            chain.append(by_request[chain[-1].after])
        root = roots.get(chain[-1].request, chain[-1].request)
        roots.update((link.request, root) for link in chain)
        return root

    due = sorted({root_of(prompt) for prompt in prompts}, key=lambda root: by_request[root].due_s)
    share = {root: turn % processes for turn, root in enumerate(due)}
    shares: list[list[Prompt]] = [[] for _ in range(min(processes, len(due)))]
    for prompt in prompts:
        shares[share[root_of(prompt)]].append(prompt)
    return tuple(tuple(one) for one in shares)


@contextmanager
def ready(
    prompts: Sequence[Prompt],
    *,
    processes: int,
    base_url: str,
    model: str,
    stuck_s: float,
    alive: Callable[[], str | None],
    temperature: float = 0.0,
    seed: int = 0,
    request_timeout_s: float | None = None,
    allowance: Allowance | None = None,
) -> Iterator[Callable[[], Coroutine[object, object, ReplayResult]]]:
    """`cluster.node.replay.replay` by so many processes, started and ready on entering.

    Yields what plays, once. On leaving no process is left. With one process it is `replay` itself.

    Raises:
        ValueError: where a prompt waits for one that is not there.
        ClientLost: where a process could not start.
    """
    check_turns(prompts)
    shares = split(prompts, processes)
    if len(shares) < 2:
        yield partial(
            replay,
            prompts,
            base_url=base_url,
            model=model,
            stuck_s=stuck_s,
            alive=alive,
            temperature=temperature,
            seed=seed,
            request_timeout_s=request_timeout_s,
            allowance=allowance,
        )
        return
    with ExitStack() as stack:
        board = Board.new(len(shares))
        stack.callback(board.close)
        threads = stack.enter_context(ThreadPoolExecutor(len(shares), "replay"))
        shards = []
        for place, share in enumerate(shares):
            job = Job(
                prompts=share,
                base_url=base_url,
                model=model,
                temperature=temperature,
                seed=seed,
                request_timeout_s=request_timeout_s,
                allowance=allowance,
            )
            shards.append(stack.enter_context(_shard(job, board, place, threads)))
        _wait_until_ready(board, shards)
        yield partial(_play, prompts, shards, board, stuck_s=stuck_s, alive=alive, allowance=allowance)


@dataclass(frozen=True, slots=True)
class _Shard:
    job: Job
    name: str
    """As people read it."""
    process: subprocess.Popen[bytes]
    said: Future[tuple[bytes, bytes]]
    """Its standard output and error, once it has ended."""

    def result(self) -> ReplayResult:
        """What it measured. Raises ClientLost."""
        output, errors = self.said.result()
        if self.process.wait() == 0:
            result: ReplayResult = pickle.loads(output)  # our own child's, over our own pipe
            return result
        lines = errors.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        raise ClientLost(f"{self.name} ended with status {self.process.returncode}: {last}")


@contextmanager
def _shard(job: Job, board: Board, place: int, threads: ThreadPoolExecutor) -> Iterator[_Shard]:
    """A process that plays this job; killed on leaving, unless it has ended."""
    arguments = [str(number) for number in (board.descriptor, board.processes, place, os.getpid())]
    with subprocess.Popen(
        [sys.executable, "-m", "cluster.node.shard", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(board.descriptor,),
        cwd=PACKAGE_ROOT,
        process_group=0,  # Ctrl-C is the parent's to answer
    ) as process:
        said = threads.submit(process.communicate, pickle.dumps(job, pickle.HIGHEST_PROTOCOL))
        try:
            name = f"client process {place + 1} of {board.processes}"
            yield _Shard(job=job, name=name, process=process, said=said)
        finally:
            process.kill()
            said.exception()  # its pipes are the thread's until it has ended


def _wait_until_ready(board: Board, shards: Sequence[_Shard]) -> None:
    deadline = time.monotonic() + _START_S
    while not board.ready:
        for shard in shards:
            if shard.said.done():
                shard.result()
        if time.monotonic() > deadline:
            raise ClientLost(f"{board.processes} client processes were not ready within {_START_S:g} s")
        time.sleep(0.005)


class _Crowd:
    """All processes' requests as one flow, and their misses as one count.

    A request that leaves while its process has no other counts as progress, as with one process, so a
    stuck engine is found later by as much as a process waits for its first request.
    """

    def __init__(self, board: Board, zero_s: float, allowance: Allowance | None) -> None:
        self._board = board
        self._zero_s = zero_s
        self._allowed = math.inf if allowance is None else allowance.misses

    def now(self) -> float:
        return time.perf_counter() - self._zero_s

    @property
    def in_flight(self) -> int:
        return self._board.in_flight

    @property
    def progress_s(self) -> float:
        return self._board.progress_s

    @property
    def count(self) -> int:
        return self._board.misses

    def too_many(self, now_s: float) -> bool:
        return self._board.misses > self._allowed


async def _play(
    prompts: Sequence[Prompt],
    shards: Sequence[_Shard],
    board: Board,
    *,
    stuck_s: float,
    alive: Callable[[], str | None],
    allowance: Allowance | None,
) -> ReplayResult:
    """Let them begin, watch over them, and put together what they saw."""
    board.zero_s = zero_s = time.perf_counter() + LEAD_S
    crowd = _Crowd(board, zero_s, allowance)
    watch = Watch(crowd, stuck_s=stuck_s, alive=alive, misses=crowd)
    try:
        async with running(_results(shards)) as playing, running(watch.run()) as watching:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            stop: Stop | None
            if watching.done():
                board.stop = stop = watching.result()
                results = await asyncio.wait_for(asyncio.shield(playing), _END_S)
            else:
                results = playing.result()
                stop = await watch.last_look(board.broken_s)
    except (ClientLost, TimeoutError) as lost:
        return _lost(prompts, zero_s, str(lost) or "the client processes did not stop when told to")
    return _together(prompts, shards, results, stop, zero_s)


async def _results(shards: Sequence[_Shard]) -> tuple[ReplayResult, ...]:
    """Every process's, or ClientLost as soon as one has none."""
    waiting = {asyncio.wrap_future(shard.said) for shard in shards}
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        ended = [shard for shard in shards if shard.said.done()]
        for shard in ended:
            if shard.process.wait() != 0:
                shard.result()
    return tuple(shard.result() for shard in shards)


def _together(
    prompts: Sequence[Prompt],
    shards: Sequence[_Shard],
    results: Sequence[ReplayResult],
    stop: Stop | None,
    zero_s: float,
) -> ReplayResult:
    """One result of all, records in the prompts' order. Processes are judged singly: one void, all void."""
    by_request = {record.request: record for result in results for record in result.records}
    records = tuple(by_request[prompt.request] for prompt in prompts)
    cut_s = stop.at_s if stop is not None and stop.kind is Stopped.CUT else None
    if cut_s is not None:  # they stopped a moment later, each at its own
        records = cut_records(records, cut_s)
    voids = (
        f"{shard.name}: {result.invalid}"
        for shard, result in zip(shards, results, strict=True)
        if result.invalid is not None
    )
    return ReplayResult(
        records=records,
        zero_s=zero_s,
        invalid=next(voids, None),
        lateness_p99_s=lateness_p99_s(records),
        client_cpu_share=max(result.client_cpu_share for result in results),
        stopped=None if stop is None else stop.kind,
        reason=None if stop is None else stop.reason,
        cut_s=cut_s,
        inferred=sum(result.inferred for result in results),
    )


def _lost(prompts: Sequence[Prompt], zero_s: float, reason: str) -> ReplayResult:
    """A void replay: what the other processes saw is of no use without this one's."""
    records = tuple(
        Record(
            request=prompt.request,
            due_s=prompt.due_s,
            sent_s=None,
            tokens_in=prompt.input_length,
            tokens_asked=prompt.max_tokens,
            error=f"its record was lost: {reason}",
        )
        for prompt in prompts
    )
    return ReplayResult(
        records=records,
        zero_s=zero_s,
        invalid=reason,
        lateness_p99_s=math.nan,
        client_cpu_share=math.nan,
    )
