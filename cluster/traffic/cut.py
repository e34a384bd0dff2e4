"""Part of a trace, or the trace at another pace: a window, a sample, a rate, a model's context.

Each step tells in a note what it changed, since a cut trace is other traffic.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cluster.traffic.groups import groups
from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.request import Request, TraceError
from cluster.traffic.trace import Trace, assemble

LARGEST_GROUP = 0.1
"""Share of a sample that one prefix may keep together: a larger one is split, or the sample would be it."""


def window(trace: Trace, *, start_s: float = 0.0, end_s: float = math.inf) -> Trace:
    """The requests that arrive from `start_s` up to `end_s`, the latter left out.

    Sessions are cut where the window cuts them.

    Raises:
        TraceError: where nothing arrives in it.
    """
    kept = [request for request in trace.requests if start_s <= request.arrival_s < end_s]
    notes = [f"window from {start_s:g} s to {end_s:g} s: {len(kept)} of {len(trace.requests)} requests"]
    ids = {request.session_id for request in kept if request.session_id is not None}
    whole = Counter(request.session_id for request in trace.requests if request.session_id in ids)
    there = Counter(request.session_id for request in kept if request.session_id in ids)
    severed = sum(there[session] < whole[session] for session in ids)
    if severed:
        notes.append(f"{severed} of {len(ids)} sessions lie partly outside of the window: cut")
    return _changed(trace, kept, notes)


def sample(trace: Trace, share: float, *, seed: int = 0) -> Trace:
    """About this share of the requests, sessions and prefix groups whole, at their recorded times.

    Groups are drawn at random until the share is reached as nearly as their sizes allow. A prefix of more
    than a tenth of the sample's requests is not kept together, but split as it goes on.

    Raises:
        ValueError: for a share that is not above 0 and at most 1.
        TraceError: where the share is less than any group.
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share lies above 0 and is at most 1, got {share}")
    wanted = share * len(trace.requests)
    found = groups(trace.requests, most=max(1, round(LARGEST_GROUP * wanted)))
    random = np.random.Generator(np.random.PCG64(seed))
    places: list[int] = []
    for index in random.permutation(len(found.members)):
        group = found.members[index]
        # Nearer with it than without; one too large for what is left is passed over.
        if len(places) + len(group) - wanted <= wanted - len(places):
            places += group
    kept = [trace.requests[place] for place in sorted(places)]
    before, after = _prefix_share(trace), _prefix_share(replace(trace, requests=tuple(kept)))
    notes = [
        f"sample of {len(kept)} of {len(trace.requests)} requests ({len(kept) / len(trace.requests):.1%}): "
        f"sessions and prefix groups whole, rate less accordingly; prefix share {before:.1%}, now {after:.1%}"
    ]
    if found.split_prefixes:
        notes.append(
            f"{found.split_prefixes} prefixes that too many requests begin with were split as they go on"
        )
    return _changed(trace, kept, notes)


def scale(trace: Trace, *, speed: float | None = None, rate: float | None = None) -> Trace:
    """The trace with its times divided by `speed`, or by what makes its rate `rate` requests per second.

    Time between a session's turns, and how long requests took, are scaled with the rest. One of the two is
    given.

    Raises:
        TraceError: for a factor that is none, or a rate where all requests arrive at once.
    """
    if (speed is None) == (rate is None):
        raise TraceError(["give a speed or a rate, one of them"])
    duration = trace.requests[-1].arrival_s
    recorded = (len(trace.requests) - 1) / duration if duration else None
    if rate is not None:
        if recorded is None:
            raise TraceError(["all requests arrive at once: a rate cannot be made of that"])
        speed = rate / recorded
    if speed is None or not (speed > 0 and math.isfinite(speed)):
        raise TraceError([f"speed and rate must be positive numbers, got {speed if rate is None else rate}"])
    scaled = [
        replace(
            request,
            arrival_s=request.arrival_s / speed,
            duration_s=None if request.duration_s is None else request.duration_s / speed,
        )
        for request in trace.requests
    ]
    now = "" if recorded is None else f": {recorded:.4g} requests/s, now {recorded * speed:.4g}"
    return _changed(trace, scaled, [f"times divided by {speed:.4g}{now}"])


def cap(trace: Trace, context: int) -> Trace:
    """The trace as a model of this context can serve it: prompt and output together at most so long.

    An output keeps its length up to half of the context; the prompt is cut at its end to what that leaves,
    so shared prefixes stay shared. A request with literal text can't be cut without its tokenizer: it goes.

    Raises:
        TraceError: for a context of less than two tokens, or where nothing is left.
    """
    if context < 2:
        raise TraceError([f"a context holds a token of prompt and one of output at least, got {context}"])
    kept: list[Request] = []
    literal = prompts = outputs = 0
    lost = 0
    for request in trace.requests:
        if request.input_length + request.output_length <= context:
            kept.append(request)
        elif request.prompt is not None or request.messages is not None:
            literal += 1
        else:
            shorter = _capped(request, context, trace.block_tokens)
            prompts += shorter.input_length < request.input_length
            outputs += shorter.output_length < request.output_length
            lost += request.input_length - shorter.input_length
            kept.append(shorter)
    total = sum(request.input_length for request in trace.requests)
    notes = [f"context of {context} tokens: all {len(kept)} requests fit as they are"]
    if prompts or outputs or literal:
        notes = [
            f"context of {context} tokens: {prompts} of {len(trace.requests)} prompts cut at their end "
            f"({lost / total:.1%} of all prompt tokens gone), {outputs} outputs shortened, "
            f"{literal} requests with literal text left out"
        ]
    return _changed(trace, kept, notes)


def _capped(request: Request, context: int, block_tokens: int) -> Request:
    output = min(request.output_length, max(context // 2, context - request.input_length))
    length = min(request.input_length, context - output)
    return replace(
        request,
        input_length=length,
        output_length=output,
        hash_ids=request.hash_ids[: math.ceil(length / block_tokens)],
    )


def _prefix_share(trace: Trace) -> float:
    total = sum(request.input_length for request in trace.requests)
    return sum(shared_tokens(trace)) / total if total else 0.0


def _changed(trace: Trace, requests: Iterable[Request], notes: Iterable[str]) -> Trace:
    kept = tuple(requests)
    if not kept:
        raise TraceError(["nothing is left of the trace: " + "; ".join(notes)])
    return assemble(kept, block_tokens=trace.block_tokens, notes=(*trace.notes, *notes))
