"""What prompts have in common at their beginning: the tree of all prefixes, block by block.

Blocks are compared by id from the first on. A partial last block is the beginning of its id's text, so it
is shared as far as the shorter of two reaches.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cluster.traffic.request import Request
from cluster.traffic.trace import Trace


class PrefixTree:
    """All prompts so far, as a tree of blocks. Memory goes with the different prefixes, not the prompts."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._children: dict[tuple[int, int], int] = {}
        """(node, block id) → node; the root is 0."""
        self._covered = [0]
        """Tokens of each node's block that some prompt has had."""

    def shared(self, request: Request) -> int:
        """Leading prompt tokens that some prompt of the tree begins with too."""
        node, shared = 0, 0
        for place, hash_id in enumerate(request.hash_ids):
            child = self._children.get((node, hash_id))
            if child is None:
                break
            tokens = self._tokens(request, place)
            shared += min(tokens, self._covered[child])
            if self._covered[child] < tokens:
                break
            node = child
        return shared

    def add(self, request: Request) -> None:
        """Take a prompt in."""
        node = 0
        for place, hash_id in enumerate(request.hash_ids):
            child = self._children.setdefault((node, hash_id), len(self._covered))
            if child == len(self._covered):
                self._covered.append(0)
            self._covered[child] = max(self._covered[child], self._tokens(request, place))
            node = child

    def _tokens(self, request: Request, place: int) -> int:
        return min(self._block_tokens, request.input_length - place * self._block_tokens)


def shared_tokens(trace: Trace) -> tuple[int, ...]:
    """For each request, the leading prompt tokens that some earlier request's prompt begins with too."""
    tree = PrefixTree(trace.block_tokens)
    found: list[int] = []
    for request in trace.requests:
        found.append(tree.shared(request))
        tree.add(request)
    return tuple(found)


def tokens_shared_with(requests: Iterable[Request], others: Iterable[Request], *, block_tokens: int) -> int:
    """Prompt tokens of `requests` that stand at the beginning of one of the others' prompts."""
    tree = PrefixTree(block_tokens)
    for other in others:
        tree.add(other)
    return sum(tree.shared(request) for request in requests)


def share_by_block(trace: Trace, *, blocks: int) -> tuple[float, ...]:
    """How much of the prompts' k-th blocks is shared with an earlier prompt, for k from the first.

    Args:
        blocks: how many places to tell of; fewer come back where no prompt is so long.

    Returns:
        Shares of the tokens that stand at a place, 0 to 1.
    """
    lengths = np.array([request.input_length for request in trace.requests])
    shared = np.array(shared_tokens(trace))
    longest = -(-int(lengths.max(initial=0)) // trace.block_tokens)
    return tuple(
        float(_at(shared, place, trace.block_tokens) / _at(lengths, place, trace.block_tokens))
        for place in range(min(blocks, longest))
    )


def _at(tokens: NDArray[np.int64], place: int, block: int) -> int:
    """Tokens that stand in the block at a place, summed over prompts of which the first `tokens` count."""
    return int(np.clip(tokens - place * block, 0, block).sum())
