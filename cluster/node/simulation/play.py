"""Continuous batching in virtual time, as vLLM V1's scheduler does it (v1/core/sched/scheduler.py, 0.32).

Each step schedules the running requests in the order they were admitted, then admits waiting ones, first
come first served, while batch slots, token budget and KV blocks last. Prompts are prefilled in chunks of
what the budget leaves. A running request that finds no block preempts the youngest running one, which is
computed again later; nothing is admitted in such a step.

Between two events (a finish, an admission, a preemption) every step is alike but for the contexts, which
are known ahead. So each request adds its future contexts and blocks to two arrays indexed by step, and a
stretch of decode steps is one array operation. What differs from vLLM:

- a sequence for which the token budget has no room for its whole draft waits, where vLLM cuts its draft;
- scheduling is synchronous; what overlapping hides belongs in the accelerator's constants.
"""

import heapq
import itertools
import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from cluster.node.engine import EngineFailure
from cluster.node.simulation.arrivals import Comings
from cluster.node.simulation.kv_pool import KvPool, Span
from cluster.node.simulation.served import Job, Log, Served
from cluster.node.simulation.settings import Settings
from cluster.node.simulation.speculation import Plan
from cluster.node.simulation.step_time import PrefillWork, StepTime
from cluster.order import Cause

_NO_PREFILL = PrefillWork()

_LOOK_AHEAD = 4096
"""Most steps computed at once: an arrival may cut the stretch, and what follows would be wasted."""


class Play:
    """One replay. Build it, `run` it, read `served` and `log`."""

    def __init__(
        self,
        settings: Settings,
        pool: KvPool,
        arrivals: Comings,
        plan: Plan,
        *,
        noise: np.random.Generator | None = None,
        run_factor: float = 1.0,
        step_noise: float = 0.0,
    ) -> None:
        """`plan`: of the jobs that are served, by their places in `arrivals`."""
        drafting = settings.drafting
        depth = drafting.depth if drafting else 0
        self._settings, self._pool, self._plan = settings, pool, plan
        self._arrivals = arrivals
        self._time = StepTime(settings)
        self._noise, self._run_factor, self._step_noise = noise, run_factor, step_noise
        self._slots = drafting.slots if drafting else 0
        self._queries = 1 + depth
        self._lookahead = drafting.lookahead if drafting else 0
        self._drops_last_hit = bool(drafting and drafting.drops_last_hit)
        self._per_decode = self._queries + self._slots
        """Token budget that one decoding sequence takes."""
        self._most_decoding = settings.max_num_batched_tokens // self._per_decode

        self._now = 0.0
        self._step = 0
        self._waiting: deque[Served] = deque()
        self._running: dict[int, Served] = {}
        """In order of admission."""
        self._prefilling: Served | None = None
        """The one request whose prompt did not fit into the budget: always the last admitted."""
        self._decoding = 0
        self._standby: deque[Served] = deque()
        """Running requests with no room in the token budget."""
        self._ends: list[tuple[int, int, Served]] = []
        self._count = itertools.count()
        self._admitted = 0
        self._decode_blocks_taken = 0
        """Blocks that the pool has given to decoding requests so far."""

        self.served: list[Served] = []
        size = 1024
        self._contexts = np.zeros(size)
        self._blocks = np.zeros(size, dtype=np.int64)
        self._end_s = np.zeros(size)
        self.log = Log(step_end_s=self._end_s)

    def run(self) -> None:
        """Play until the last request is finished.

        Raises:
            EngineFailure: stuck, where a request can never be scheduled.
        """
        arrivals = self._arrivals
        while True:
            while arrivals.next_s <= self._now:
                self._arrive()
            if self._running or self._waiting:
                self._schedule()
            elif arrivals.next_s < math.inf:
                self._now = arrivals.next_s
            else:
                break
        count = self._step
        log = self.log
        log.step_end_s, log.decode_blocks = self._end_s[:count], self._blocks[:count]
        log.contexts = self._contexts[:count]

    @property
    def refused(self) -> list[Job]:
        """Jobs that were answered with an error, with the times when they came."""
        return self._arrivals.refused

    def _arrive(self) -> None:
        at, job = self._arrivals.pop()
        caching = self._settings.prefix_caching
        covered = min(job.prompt, len(job.hash_ids) * self._pool.trace_block) if caching else 0
        served = Served(
            job=job,
            place=at,
            plan=self._plan.delivered[at],
            path=self._pool.path(job.hash_ids) if covered else [],
            shareable=covered // self._settings.block_size,
            target=job.prompt,
        )
        self.served.append(served)
        self._waiting.append(served)

    def _schedule(self) -> None:
        """One step, or as many decode steps as pass without an event."""
        preempted = self._make_room()
        budget = self._settings.max_num_batched_tokens - self._decoding * self._per_decode
        work = PrefillWork()
        ending: list[Served] = []
        if not self._standby:  # it comes first, and has no room already
            if self._prefilling is not None and budget > self._slots:
                budget, preempted = self._continue_prefill(self._prefilling, budget, work, ending, preempted)
            if self._prefilling is None and not preempted:
                self._admit(budget, work, ending)
        if work.tokens:
            self._mixed_step(work, ending)
        elif self._decoding:
            self._decode_steps(at_most=1 if preempted else _LOOK_AHEAD)
        elif not preempted:
            raise EngineFailure(
                Cause.STUCK,
                f"request {self._waiting[0].job.request} needs more than the {self._pool.blocks} KV blocks",
            )

    def _make_room(self) -> bool:
        """Give decoding requests their blocks for the next step; preempt the youngest until they fit."""
        preempted = False
        while True:
            wanted = int(self._blocks[self._step]) - self._decode_blocks_taken
            if wanted <= self._pool.free:
                break
            self._preempt(self._running.popitem()[1])
            preempted = True
        if wanted > 0:
            self._pool.take(wanted)
            self._decode_blocks_taken += wanted
        return preempted

    def _continue_prefill(
        self, served: Served, budget: int, work: PrefillWork, ending: list[Served], preempted: bool
    ) -> tuple[int, bool]:
        """Schedule the next chunk of the prompt under way. Returns the budget left, and whether any
        request was preempted."""
        chunk = min(served.target - served.computed, budget - self._slots)
        if not self._allocate(served, served.computed + chunk):
            self._running.popitem()  # it is the youngest, so it preempts itself
            self._preempt(served)
            return budget, True
        self._schedule_chunk(served, chunk, work, ending)
        return budget - chunk - self._slots, preempted

    def _admit(self, budget: int, work: PrefillWork, ending: list[Served]) -> None:
        settings, pool = self._settings, self._pool
        most = settings.max_num_seqs
        while self._waiting and budget > self._slots and len(self._running) < most:
            served = self._waiting[0]
            hit = self._hit(served)
            found = hit * settings.block_size
            if not settings.chunked_prefill and served.target - found > budget - self._slots:
                break
            chunk = min(served.target - found, budget - self._slots)
            # vLLM admits a request only if its whole prompt has blocks (scheduler_reserve_full_isl).
            shared = min(hit, served.shareable)
            of_own = hit - shared
            whole = pool.cost(served.path, 0, shared) + self._blocks_for(served.target, 0) - shared
            if whole > pool.free or self._needed(served, found + chunk, shared) > pool.free:
                break
            pool.hold(served.path, 0, shared)
            served.held = shared
            if served.own is not None:
                pool.revive(served.own, of_own)
                pool.forget(served.own)
                served.private, served.own = of_own, None
            self._allocate(served, found + chunk)
            self._waiting.popleft()
            self._running[served.job.request] = served
            self._admitted += 1
            served.computed = found
            if served.first_scheduled_s < 0:
                served.first_scheduled_s = self._now
                served.cached_tokens = found
                if settings.prefix_caching:
                    self.log.lookups.append((self._step, served.target, found))
            self._schedule_chunk(served, chunk, work, ending)
            budget -= chunk + self._slots

    def _hit(self, served: Served) -> int:
        """Leading blocks found in the prefix cache. The last token is always computed."""
        if not self._settings.prefix_caching:
            return 0
        hit = min(self._pool.cached(served.path), served.shareable)
        if served.own is not None and hit == served.shareable:
            hit += served.own.cached
        hit = min(hit, (served.target - 1) // self._settings.block_size)
        return hit - 1 if self._drops_last_hit and hit else hit

    def _blocks_for(self, tokens: int, extra: int) -> int:
        return -(-min(tokens + extra, self._settings.max_model_len) // self._settings.block_size)

    def _shared(self, served: Served, upto: int, held: int) -> int:
        """Leading blocks of its path that a request holds once `upto` tokens are computed."""
        return max(min(upto // self._settings.block_size, served.shareable), held)

    def _needed(self, served: Served, upto: int, held: int) -> int:
        """Free blocks that the first `upto` tokens take, of a request that holds nothing yet."""
        shared = self._shared(served, upto, held)
        return self._pool.cost(served.path, 0, shared) + self._blocks_for(upto, self._lookahead) - shared

    def _allocate(self, served: Served, upto: int) -> bool:
        """Blocks for the first `upto` tokens of a prefill; False, and none taken, if there are too few."""
        pool = self._pool
        shared = self._shared(served, upto, served.held)
        private = self._blocks_for(upto, self._lookahead) - shared
        extra = private - served.private
        if pool.cost(served.path, served.held, shared) + extra > pool.free:
            return False
        if extra < 0:
            pool.give(-extra)
        pool.hold(served.path, served.held, shared)
        if extra > 0:
            pool.take(extra)
        served.held, served.private = shared, private
        return True

    def _schedule_chunk(self, served: Served, chunk: int, work: PrefillWork, ending: list[Served]) -> None:
        ends = served.computed + chunk == served.target
        work.add(served.computed, chunk, finishes=ends)
        served.computed += chunk
        self._prefilling = None if ends else served
        if ends:
            ending.append(served)

    def _mixed_step(self, work: PrefillWork, ending: list[Served]) -> None:
        """Prefill chunks beside one decode step of everything that decodes."""
        step = self._step
        used = self._decoding * self._per_decode + work.tokens + work.sequences * self._slots
        self.log.most_tokens = max(self.log.most_tokens, used)
        context = float(self._contexts[step])
        duration = self._time.mixed_s(self._decoding, context, work)
        self.log.prefills.append((step, work.tokens, work.finishing, work.read, work.pairs))
        if self._noise is not None:
            duration *= self._run_factor * float(self._factors(1)[0])
        self._now += duration
        self._end_s[step] = self._now
        self._step += 1
        self._grow(self._step)
        self._finish_decodes()
        for served in ending:
            self._emit_first(served, step)
        self._note(step)

    def _decode_steps(self, at_most: int) -> None:
        """Decode steps up to the next finish, shortage of blocks, or arrival that could be admitted."""
        first = self._step
        self._note(first)
        while self._ends[0][-1].decode_end != self._ends[0][0]:
            heapq.heappop(self._ends)  # preempted since
        arrival = self._next_admissible_s()
        if arrival < math.inf:
            # No later step is shorter than this one (but for noise, after which the rest is played next).
            step_s = self._time.mixed_s(self._decoding, float(self._contexts[first]), _NO_PREFILL)
            at_most = min(at_most, int((arrival - self._now) / (step_s * self._run_factor)) + 2)
        last = min(self._ends[0][0], first + at_most)
        spare = self._pool.free + self._decode_blocks_taken
        if self._blocks[last - 1] > spare:
            last = first + int(np.searchsorted(self._blocks[first:last], spare, side="right"))
        contexts = self._contexts[first:last]
        durations = self._time.decode_s(self._decoding, contexts)
        if self._noise is not None:
            durations *= self._factors(last - first)
            durations *= self._run_factor
        ends = self._end_s[first:last]
        np.cumsum(durations, out=ends)
        ends += self._now
        if arrival <= ends[-1]:
            last = first + int(np.searchsorted(ends, arrival)) + 1
        self.log.most_tokens = max(self.log.most_tokens, self._decoding * self._per_decode)
        self._step = last
        self._now = float(self._end_s[last - 1])
        grown = int(self._blocks[last - 1]) - self._decode_blocks_taken
        if grown:
            self._pool.take(grown)
            self._decode_blocks_taken += grown
        if self._ends[0][0] == last:
            self._finish_decodes()
            self._note(last - 1)
        self._grow(last)

    def _next_admissible_s(self) -> float:
        """When the next request comes that need not wait; infinite where it must, or none comes."""
        must_wait = self._waiting or self._standby or len(self._running) >= self._settings.max_num_seqs
        return math.inf if must_wait else self._arrivals.next_s

    def _emit_first(self, served: Served, step: int) -> None:
        """The prefill that ended in this step gave one token: decode on from it."""
        if served.chunks == 0:
            prompt = served.job.prompt
            self.log.prefilled.append((step, prompt, prompt - served.cached_tokens))
        elif len(self._plan.accepted):
            # What a draft would have added in this step is lost: the rest of the plan moves on by one token.
            done = served.plan[served.chunks - 1]
            gained = np.diff(served.plan[served.chunks - 1 :], append=served.plan[-1])
            gained[0], gained[1:] = 1, gained[:-1].copy()
            rest = np.minimum(done + np.cumsum(gained), served.job.output)
            rest = rest[: int(np.searchsorted(rest, served.job.output)) + 1]
            served.plan = np.concatenate([served.plan[: served.chunks], rest])
            served.undrafted.append(served.chunks)
        served.chunks += 1
        served.steps.append((step, 1))
        if served.chunks == len(served.plan):
            self._finish(served, step)
        elif self._decoding < self._most_decoding:
            self._start_decode(served)
        else:
            self._standby.append(served)

    def _start_decode(self, served: Served) -> None:
        first, left = self._step, len(served.plan) - served.chunks
        end = first + left
        self._grow(end)
        contexts = served.plan[served.chunks - 1 : -1] + served.job.prompt
        self._contexts[first:end] += contexts
        self._blocks[first:end] += self._private_blocks(served, contexts)
        served.decode_from, served.decode_end = first, end
        heapq.heappush(self._ends, (end, next(self._count), served))
        self._decoding += 1
        self._decode_blocks_taken += served.private

    def _private_blocks(self, served: Served, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Blocks beside the shared ones, at steps where the sequence has these contexts."""
        settings = self._settings
        slots = contexts + (self._queries - 1 + self._lookahead)
        if slots[-1] > settings.max_model_len:
            slots = np.minimum(slots, settings.max_model_len)
        blocks: NDArray[np.int64] = (slots + (settings.block_size - 1)) // settings.block_size - served.held
        return blocks

    def _finish_decodes(self) -> None:
        """Requests whose last step is the one before `_step`."""
        ends = self._ends
        while ends and ends[0][0] <= self._step:
            end, _, served = heapq.heappop(ends)
            if served.decode_end != end:
                continue  # preempted since
            self._stop_decode(served)
            self._finish(served, end - 1)

    def _stop_decode(self, served: Served) -> None:
        """Take a request out of the decode batch before `_step`; its blocks become its private ones."""
        first, end, now = served.decode_from, served.decode_end, self._step
        done = now - first
        if now < end:
            contexts = served.plan[served.chunks - 1 + done : -1] + served.job.prompt
            self._contexts[now:end] -= contexts
            self._blocks[now:end] -= self._private_blocks(served, contexts)
        if done:
            served.steps.append((first, done))
            served.chunks += done
            # vLLM hashes the blocks of a step when it schedules it: accepted drafts are not among them yet.
            served.computed = served.job.prompt + int(served.plan[served.chunks - 2])
            served.private = (
                self._blocks_for(served.computed, self._queries - 1 + self._lookahead) - served.held
            )
        self._decode_blocks_taken -= served.private
        self._decoding -= 1
        served.decode_from = served.decode_end = -1
        while self._standby and self._decoding < self._most_decoding:
            self._start_decode(self._standby.popleft())

    def _finish(self, served: Served, step: int) -> None:
        served.finished_step = step
        del self._running[served.job.request]
        self._give_up_blocks(served)
        self._arrivals.ended(served.job.request, self._now + self._settings.api_s)

    def _preempt(self, served: Served) -> None:
        """Free the youngest running request's blocks and let it wait, first in line, to be computed again."""
        if served.decode_from >= 0:
            self._stop_decode(served)
        elif served in self._standby:
            self._standby.remove(served)
        elif served is self._prefilling:
            self._prefilling = None
        generated = int(served.plan[served.chunks - 1]) if served.chunks else 0
        if self._settings.prefix_caching:
            served.own = Span(served.shareable, self._settings.kv_blocks)
        self._give_up_blocks(served)
        served.target, served.computed = served.job.prompt + generated, 0
        self._waiting.appendleft(served)
        self._admitted -= 1
        self.log.preempted.append(self._step)

    def _give_up_blocks(self, served: Served) -> None:
        """Full blocks stay cached until evicted; of those beside its hash ids only it can make use."""
        pool, hashed = self._pool, 0
        if self._settings.prefix_caching:
            full = served.computed // self._settings.block_size
            hashed = max(min(full - served.held, served.private), 0)
        pool.give(served.private - hashed)
        pool.retire(hashed, served.own if served.held == served.shareable else None)
        pool.release(served.path, served.held)
        served.held = served.private = 0

    def _note(self, step: int) -> None:
        used = self._pool.used - int(self._blocks[step])
        self.log.state.append((step, len(self._running), self._admitted, used))

    def _factors(self, count: int) -> NDArray[np.float64]:
        if self._noise is None or not self._step_noise:
            return np.ones(count)
        return np.exp(self._noise.normal(0.0, self._step_noise, count))

    def _grow(self, step: int) -> None:
        """Room in the arrays for `step` and one more."""
        size = len(self._contexts)
        if step + 1 < size:
            return
        more = max(size, step + 2 - size)
        self._contexts = np.concatenate([self._contexts, np.zeros(more)])
        self._blocks = np.concatenate([self._blocks, np.zeros(more, dtype=np.int64)])
        self._end_s = np.concatenate([self._end_s, np.zeros(more)])
