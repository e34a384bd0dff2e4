"""Continuous batching played the slow way, one step and one block at a time, as vLLM's scheduler reads.

The simulated engine's play is checked against this. It shares the step durations and the acceptance plan
with it, and nothing else: blocks have identities, reference counts, hashes and a queue here, and every
step loops over every request.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from cluster.node.simulation.served import Job
from cluster.node.simulation.settings import Settings
from cluster.node.simulation.step_time import PrefillWork, StepTime

Hash = tuple[object, ...]


@dataclass(eq=False)
class Block:
    users: int = 0
    hash: Hash | None = None


@dataclass(eq=False)
class Slow:
    """One request."""

    job: Job
    gains: deque[int]
    """Tokens of each decode step to come."""
    due_s: float
    """Infinite until the request that it waits for has ended."""
    delivered: int = 0
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    cached: int | None = None
    decodes: bool = False
    """All but its last token is computed, and a draft may be there."""

    @property
    def tokens(self) -> int:
        return self.job.prompt + self.delivered


class SlowScheduler:
    def __init__(self, settings: Settings, jobs: list[Job], gains: list[list[int]], trace_block: int) -> None:
        self.settings, self.trace_block = settings, trace_block
        self.time = StepTime(settings)
        self.queue = deque(Block() for _ in range(settings.kv_blocks - 1))
        self.cache: dict[Hash, Block] = {}
        self.all = [
            Slow(job, deque(gain), job.due_s if job.after is None else math.inf)
            for job, gain in zip(jobs, gains, strict=True)
        ]
        drafting = settings.drafting
        self.depth = drafting.depth if drafting else 0
        self.slots = drafting.slots if drafting else 0
        self.lookahead = drafting.lookahead if drafting else 0
        self.drops = bool(drafting and drafting.drops_last_hit)
        self.preemptions = 0

    def hashes(self, slow: Slow, tokens: int) -> list[Hash]:
        """Of the full blocks in the first `tokens` tokens: what they and all before them hold."""
        size = self.settings.block_size
        known = slow.job.prompt if slow.job.prompt < len(slow.job.hash_ids) * self.trace_block else 0
        known = known or len(slow.job.hash_ids) * self.trace_block
        found: list[Hash] = []
        for end in range(size, tokens + 1, size):
            if end <= known:
                found.append((end, *slow.job.hash_ids[: -(-end // self.trace_block)]))
            else:
                found.append((end, "own", slow.job.request))
        return found

    def allocate(self, slow: Slow, upto: int, computed: int, found: tuple[Block, ...] = ()) -> bool:
        """Blocks for `upto` tokens, of which the first `computed` can be cached; `found` by a lookup."""
        size = self.settings.block_size
        wanted = -(-min(upto + self.lookahead, self.settings.max_model_len) // size)
        hashes = self.hashes(slow, computed) if self.settings.prefix_caching else []
        # A full block whose twin is cached is that twin.
        twins = [self.cache.get(h) for h in hashes]
        blocks: list[Block | None] = [*slow.blocks, *found]
        blocks += [None] * (wanted - len(blocks))
        released: list[Block] = []
        for i, twin in enumerate(twins):
            mine = blocks[i]
            if twin is not None and twin is not mine:
                if mine is not None:
                    released.append(mine)
                blocks[i] = twin
        held = set(map(id, slow.blocks))
        fresh = sum(block is None for block in blocks)
        touched = [b for b in blocks if b is not None and id(b) not in held and b.users == 0]
        if fresh + len(touched) > len(self.queue) + len(released):
            return False
        for block in released:
            block.users = 0
            self.queue.appendleft(block)
        for kept in blocks:
            if kept is not None and id(kept) not in held:
                if kept.users == 0:
                    self.queue.remove(kept)
                kept.users += 1
        for i, kept in enumerate(blocks):
            if kept is None:
                oldest = self.queue.popleft()
                if oldest.hash is not None:
                    del self.cache[oldest.hash]
                    oldest.hash = None
                oldest.users = 1
                blocks[i] = oldest
        slow.blocks = [block for block in blocks if block is not None]
        for block, h in zip(slow.blocks, hashes, strict=False):
            if block.hash is None:
                block.hash = h
                self.cache[h] = block
        return True

    def free(self, slow: Slow) -> None:
        for block in reversed(slow.blocks):
            block.users -= 1
            if block.users == 0:
                if block.hash is None:
                    self.queue.appendleft(block)
                else:
                    self.queue.append(block)
        slow.blocks = []

    def hit(self, slow: Slow) -> list[Block]:
        if not self.settings.prefix_caching:
            return []
        found = []
        for h in self.hashes(slow, slow.tokens - 1):
            if h not in self.cache:
                break
            found.append(self.cache[h])
        return found[:-1] if self.drops else found

    def run(self) -> None:
        settings, size = self.settings, self.settings.block_size
        now, coming = 0.0, self.all
        waiting: deque[Slow] = deque()
        running: list[Slow] = []
        for _ in range(1_000_000):
            arrived = [slow for slow in coming if slow.due_s <= now]
            waiting.extend(sorted(arrived, key=lambda slow: slow.due_s))
            coming = [slow for slow in coming if slow.due_s > now]
            if not running and not waiting:
                if not coming:
                    return
                now = min(slow.due_s for slow in coming)
                continue
            budget = settings.max_num_batched_tokens
            work, ends, decoding, preempted = PrefillWork(), [], [], False
            at = 0
            while at < len(running):
                slow = running[at]
                if slow.decodes:
                    wanted = 1 + self.depth
                    if budget < wanted + self.slots:
                        break  # the simulated engine's own rule: no room for the whole draft, no step
                    computed = slow.tokens
                else:
                    wanted = min(slow.tokens - slow.computed, budget - self.slots)
                    if wanted <= 0:
                        break
                    computed = slow.computed + wanted
                while not (fits := self.allocate(slow, slow.computed + wanted, computed)):
                    victim = running.pop()
                    self.free(victim)
                    victim.computed, victim.decodes = 0, False
                    waiting.appendleft(victim)
                    self.preemptions += 1
                    preempted = True
                    if victim is slow:
                        break
                if not fits:
                    break
                budget -= wanted + self.slots
                if slow.decodes:
                    decoding.append(slow)
                else:
                    work.add(slow.computed, wanted, finishes=computed == slow.tokens)
                    slow.computed = computed
                    if computed == slow.tokens:
                        ends.append(slow)
                at += 1
            stalled = at < len(running)
            while not preempted and not stalled and waiting and budget > self.slots:
                if len(running) >= settings.max_num_seqs:
                    break
                slow = waiting[0]
                blocks = self.hit(slow)
                found = len(blocks) * size
                if not settings.chunked_prefill and slow.tokens - found > budget - self.slots:
                    break
                whole = -(-slow.tokens // size) - len(blocks) + sum(b.users == 0 for b in blocks)
                if whole > len(self.queue):
                    break
                chunk = min(slow.tokens - found, budget - self.slots)
                if not self.allocate(slow, found + chunk, found + chunk, tuple(blocks)):
                    break
                waiting.popleft()
                running.append(slow)
                if slow.cached is None:
                    slow.cached = found
                slow.computed = found + chunk
                work.add(found, chunk, finishes=slow.computed == slow.tokens)
                if slow.computed == slow.tokens:
                    ends.append(slow)
                budget -= chunk + self.slots
            assert decoding or work.tokens or preempted, "stuck"
            if not decoding and not work.tokens:
                continue
            now += self.time.mixed_s(len(decoding), float(sum(slow.tokens for slow in decoding)), work)
            for slow in ends:
                self.emit(slow, 1, now)
            for slow in decoding:
                self.emit(slow, slow.gains.popleft(), now)
            for slow in [*decoding, *ends]:
                slow.computed, slow.decodes = slow.tokens - 1, True
                if slow.delivered == slow.job.output:
                    running.remove(slow)
                    self.free(slow)
                    for other in self.all:
                        if other.job.after == slow.job.request:
                            other.due_s = now + other.job.think_s
        raise AssertionError("does not end")

    def emit(self, slow: Slow, count: int, now: float) -> None:
        slow.delivered = min(slow.delivered + count, slow.job.output)
        slow.chunk_s.append(now)
        slow.chunk_tokens.append(slow.delivered)
