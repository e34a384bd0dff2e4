"""The KV block pool: reference counts, prefix reuse and eviction, as vLLM V1's block pool has them.

vLLM keeps one queue of free blocks. Blocks that can never match again go to its front and are reused
first; cached blocks go to its end, the tail of a prompt before its head, so that eviction is least
recently used and takes the longest prefixes first (`BlockPool.free_blocks`, vLLM 0.32).

Because of that order, what is cached of a span of blocks (those that end in one block of the trace) is
always a leading part of it, and so is what is in use. So a span needs two counts where vLLM has a list.
One difference: a block computed again while its twin is cached (the last one of a fully cached prompt)
is counted once, where vLLM holds both until the request ends.
"""

from collections import deque


class Span:
    """Consecutive KV blocks of one prefix: those whose last token lies in one trace block.

    `held <= cached <= size` counts leading blocks: in use by any request, and found by a lookup.
    """

    __slots__ = ("after", "cached", "free", "held", "holders", "size", "start")

    def __init__(self, start: int, size: int) -> None:
        """`start` is the index of its first block in the prompt."""
        self.start, self.size = start, size
        self.cached = self.held = 0
        self.holders: dict[int, int] = {}
        """How many requests hold each leading part."""
        self.free: list[_Run] = []
        """Its cached blocks in the free queue."""
        self.after: dict[int, Span] | None = None
        """The spans that follow it, by hash id; None where none does yet."""


class _Run:
    """Blocks `low` to `high` of a span (None: they match nothing), neighbours in the free queue."""

    __slots__ = ("high", "low", "span")

    def __init__(self, span: Span | None, low: int, high: int) -> None:
        self.span, self.low, self.high = span, low, high


class KvPool:
    """All blocks of the engine. Counts only: no block has an identity."""

    def __init__(self, blocks: int, block_size: int, trace_block: int) -> None:
        """`blocks` usable (vLLM's null block already left out); `trace_block` tokens an id stands for."""
        self.blocks = blocks
        self.free = blocks
        self._block_size = block_size
        self.trace_block = trace_block
        self._blank = blocks
        """Free blocks that match nothing: the front of the queue."""
        self._queue: deque[_Run] = deque()
        self._root = Span(0, 0)

    @property
    def used(self) -> int:
        return self.blocks - self.free

    def path(self, hash_ids: tuple[int, ...]) -> list[Span]:
        """The spans of a prompt with these ids, made where no request had them yet."""
        spans: list[Span] = []
        here = self._root
        for hash_id in hash_ids:
            if here.after is None:
                here.after = {}
            there = here.after.get(hash_id)
            if there is None:
                tokens = len(spans) * self.trace_block
                start = tokens // self._block_size
                size = (tokens + self.trace_block) // self._block_size - start
                there = here.after[hash_id] = Span(start, size)
            spans.append(there)
            here = there
        return spans

    def cached(self, path: list[Span]) -> int:
        """Leading blocks of a path that a lookup finds."""
        found = 0
        for span in path:
            found += span.cached
            if span.cached < span.size:
                break
        return found

    def cost(self, path: list[Span], low: int, high: int) -> int:
        """Free blocks that holding blocks `low` to `high` of a path takes: those nobody holds."""
        taken = 0
        for span in path:
            if span.start >= high:
                break
            reach = min(high - span.start, span.size)
            if reach > span.held and span.start + span.size > low:
                taken += reach - span.held
        return taken

    def hold(self, path: list[Span], low: int, high: int) -> None:
        """Extend a request's hold from its first `low` blocks to its first `high`; cache the new ones."""
        for span in path:
            if span.start >= high:
                break
            reach = min(high - span.start, span.size)
            before = max(low - span.start, 0)
            if reach <= before:
                continue
            if reach > span.held:
                if span.cached > span.held:
                    self._touch(span, min(reach, span.cached))
                if reach > span.cached:
                    self.take(reach - span.cached)
                    span.cached = reach
                span.held = reach
            span.holders[reach] = span.holders.get(reach, 0) + 1
            if before:
                _drop(span.holders, before)

    def release(self, path: list[Span], high: int) -> None:
        """Give up a request's hold on the first `high` blocks of its path, tail first."""
        for span in reversed(path):
            reach = min(high - span.start, span.size)
            if reach <= 0:
                continue
            _drop(span.holders, reach)
            left = max(span.holders, default=0)
            if left < span.held:
                self._append(span, left, span.held)
                span.held = left

    def take(self, count: int) -> None:
        """Take free blocks: blank ones first, then the least recently used cached ones, which are evicted."""
        self.free -= count
        blank = min(count, self._blank)
        self._blank -= blank
        count -= blank
        while count:
            run = self._queue[0]
            taken = min(count, run.high - run.low)
            run.high -= taken
            count -= taken
            if run.span is not None and taken:
                run.span.cached = run.high
            if run.high == run.low:
                self._queue.popleft()
                if run.span is not None and run in run.span.free:
                    run.span.free.remove(run)

    def give(self, blank: int) -> None:
        """Free private blocks that no later request can match and vLLM has not hashed."""
        self.free += blank
        self._blank += blank

    def retire(self, count: int, own: Span | None = None) -> None:
        """Free private blocks that are hashed, so evicted in their turn; only `own`'s request can match."""
        if count:
            if own is not None:
                own.cached = count
            self._append(own, 0, count)

    def revive(self, own: Span, count: int) -> None:
        """Take the first `count` retired blocks of a request's own span back into private use."""
        self._touch(own, count)

    def forget(self, own: Span) -> None:
        """What is still cached of a request's own span matches nothing any more."""
        for run in own.free:
            run.span = None
        own.free.clear()
        own.cached = 0

    def _append(self, span: Span | None, low: int, high: int) -> None:
        run = _Run(span, low, high)
        self._queue.append(run)
        if span is not None:
            span.free.append(run)
        self.free += high - low

    def _touch(self, span: Span, reach: int) -> None:
        """Take the cached blocks below `reach` out of the free queue."""
        for run in list(span.free):
            if run.low >= reach:
                continue
            upto = min(run.high, reach)
            self.free -= upto - run.low
            run.low = upto
            if run.low == run.high:
                # It stays in the queue, empty, and is dropped when it comes to the front.
                span.free.remove(run)


def _drop(holders: dict[int, int], reach: int) -> None:
    if holders[reach] == 1:
        del holders[reach]
    else:
        holders[reach] -= 1
