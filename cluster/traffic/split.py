"""Two parts of a trace: one to search on, one held out to verify on. No session is in both.

What was tuned on the search part and holds on the other was not tuned to its requests. The two may still
share prefixes, as tomorrow's traffic does with today's: how far is told, not prevented.
"""

import enum
from dataclasses import dataclass

import numpy as np

from cluster.traffic.prefixes import PrefixTree, tokens_shared_with
from cluster.traffic.request import TraceError
from cluster.traffic.trace import Trace, assemble


class By(enum.StrEnum):
    """How requests are dealt out."""

    TIME = "time"
    """What begins first is searched on, what begins later is held out: as in use."""
    SESSION = "session"
    """Sessions, and requests without one, at random over the whole time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The two parts, each counting from its own first request."""

    search: Trace
    held_out: Trace
    shared_prefixes: int
    """Requests held out whose prompt begins with at least a block of some prompt searched on."""
    shared_tokens: float
    """Share of the held-out prompt tokens that stand at the beginning of a prompt searched on, 0 to 1."""


def split(trace: Trace, *, held_out: float, by: By = By.TIME, seed: int = 0) -> Split:
    """A trace's two parts.

    Args:
        trace: what to split.
        held_out: share of the requests to hold out, about; whole sessions are moved.
        by: how sessions are dealt out.
        seed: of the draw by session.

    Raises:
        ValueError: for a share that is not between 0 and 1.
        TraceError: where a part would be empty: there are too few sessions.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"a share lies between 0 and 1, got {held_out}")
    sessions: dict[str, list[int]] = {}
    for place, request in enumerate(trace.requests):
        own = f"/{place}" if request.session_id is None else f"s{request.session_id}"
        sessions.setdefault(own, []).append(place)
    dealt = list(sessions.values())  # by first arrival
    if by is By.SESSION:
        dealt = [dealt[i] for i in np.random.Generator(np.random.PCG64(seed)).permutation(len(dealt))]
    wanted = (1 - held_out) * len(trace.requests)
    searched: set[int] = set()
    for places in dealt:
        # By time nothing is passed over: the first session that does not fit ends the search part.
        if len(searched) + len(places) - wanted > wanted - len(searched):
            if by is By.TIME:
                break
            continue
        searched.update(places)
    parts = [
        [request for place, request in enumerate(trace.requests) if (place in searched) is whether]
        for whether in (True, False)
    ]
    if not all(parts):
        raise TraceError(
            [f"{len(sessions)} sessions of {len(trace.requests)} requests cannot be split: one part is empty"]
        )
    search, rest = (
        assemble(part, block_tokens=trace.block_tokens, notes=(*trace.notes, f"{name} part, by {by.value}"))
        for name, part in zip(("search", "held-out"), parts, strict=True)
    )
    tree = PrefixTree(trace.block_tokens)
    for request in search.requests:
        tree.add(request)
    begun = sum(
        tree.shared(request) >= min(trace.block_tokens, request.input_length) for request in rest.requests
    )
    total = sum(request.input_length for request in rest.requests)
    common = tokens_shared_with(rest.requests, search.requests, block_tokens=trace.block_tokens)
    return Split(search=search, held_out=rest, shared_prefixes=begun, shared_tokens=common / total)
