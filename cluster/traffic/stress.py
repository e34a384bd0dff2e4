"""The same requests, harder: other arrivals than were recorded. Pure.

What these show is how a config takes traffic that it was not chosen for; nothing is promised of it.
"""

from dataclasses import replace

import numpy as np

from cluster.traffic.request import Request
from cluster.traffic.trace import Trace, assemble

BURST_SHARE = 0.2
"""Of the trace's time, about its middle, whose requests arrive as a burst."""
BURST_TIMES = 4.0
"""So many times as fast as recorded."""


def permuted(trace: Trace, *, seed: int) -> Trace:
    """The sessions, and requests without one, at each other's times: when they come is drawn anew.

    The times themselves stay, and so do the gaps between a session's turns. What is gone is whatever the
    order of arrival told: prefixes that were asked for soon after each other, say.
    """
    owners: dict[str, list[int]] = {}
    for place, request in enumerate(trace.requests):
        owners.setdefault(f"/{place}" if request.session_id is None else f"s{request.session_id}", []).append(
            place
        )
    groups = list(owners.values())
    starts_s = [trace.requests[group[0]].arrival_s for group in groups]
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(groups))
    moved: list[Request] = []
    for group, other in zip(groups, drawn, strict=True):
        by_s = starts_s[other] - trace.requests[group[0]].arrival_s
        moved += [
            replace(trace.requests[place], arrival_s=trace.requests[place].arrival_s + by_s)
            for place in group
        ]
    note = f"arrivals of {len(groups)} sessions and single requests permuted"
    return assemble(moved, block_tokens=trace.block_tokens, notes=(*trace.notes, note))


def burst(trace: Trace) -> Trace:
    """The requests about the middle, a fifth of the trace's time, in a quarter of that; nobody in the rest.

    The rate over the whole trace stays what it was.
    """
    end_s = trace.requests[-1].arrival_s
    first_s, last_s = end_s * (1 - BURST_SHARE) / 2, end_s * (1 + BURST_SHARE) / 2
    moved = [
        replace(request, arrival_s=first_s + (request.arrival_s - first_s) / BURST_TIMES)
        if first_s <= request.arrival_s <= last_s
        else request
        for request in trace.requests
    ]
    note = f"requests from {first_s:g} s to {last_s:g} s arrive {BURST_TIMES:g} times as fast"
    return assemble(moved, block_tokens=trace.block_tokens, notes=(*trace.notes, note))
