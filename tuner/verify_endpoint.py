"""What can be verified of a server that somebody runs, without loading it more than its user allows. Pure.

A promise is of a load, and a server in use is not to be put under that for the sake of a check. So replays
are short and slow unless a higher rate is allowed, what needs the full load is not judged, and a latency
that held at less load than was promised says so.
"""

from dataclasses import replace
from urllib.parse import urlsplit

from cluster.traffic.trace import Trace, assemble
from cluster.traffic.workload import Workload
from search_spaces.measure import Fixed
from tuner.mistakes import Mistake
from tuner.titles import number
from tuner.verify.promised import Promised
from tuner.verify_plan import VerifyPlan

DEFAULT_RATE = 1.0
"""Requests per second, at most, unless the user allows more."""

REQUESTS = 100
"""Of one replay, at most: enough for a p95 with both its ends, and under two minutes at the default rate."""

_LATENCIES = ("ttft_", "tpot_", "itl_", "e2e_", "slo_margin")
"""How objectives begin that a load below the promised one can break, and therefore be held to."""


def root_of(url: str) -> str:
    """The server's root of a URL that a person gave, `/v1` left off. Raises Mistake where it is none."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise Mistake(f"--endpoint: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Mistake(f"--endpoint is the root of a server, such as http://host:8000, got {url!r}")
    if parts.username is not None or parts.password is not None:
        raise Mistake("--endpoint has a name or a password in it: give a key by --key-variable")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


def judgeable(promised: Promised) -> tuple[Promised, tuple[str, ...]]:
    """The part of a promise that a server in use can be held to; and what is left out, one sentence each."""
    kept = tuple(name for name in promised.objectives if name.startswith(_LATENCIES))
    left_out = tuple(
        f"{name}: it takes the full load, which a server in use is not put under"
        for name in promised.objectives
        if name not in kept
    )
    return replace(promised, objectives=kept, measure=Fixed(), control=None), left_out


def slowed(plan: VerifyPlan, rate: float) -> VerifyPlan:
    """The plan with traffic of at most this rate, and no faster than was promised; short replays."""
    workloads = tuple(_slowed(workload, rate) for workload in plan.traffic.workloads)
    share = max(workload.speed for workload in workloads) / plan.promised.traffic.speed
    remarks = plan.remarks
    if share < 1 - 1e-9:
        remarks = (
            *remarks,
            f"played at {number(rate)} requests/s at most, {share:.0%} of the load that the promise is of: "
            "less load should do better, so a latency that held here may still break there",
        )
    return replace(plan, traffic=replace(plan.traffic, workloads=workloads), remarks=remarks)


def _slowed(workload: Workload, rate: float) -> Workload:
    trace = _first(workload.trace)
    last_s = trace.requests[-1].arrival_s
    recorded = (len(trace.requests) - 1) / last_s if last_s else None
    if recorded is None and len(trace.requests) > 1:
        raise Mistake(
            "all requests of the traffic arrive at once, which no rate limits; give another --trace"
        )
    speed = workload.speed if recorded is None else min(workload.speed, rate / recorded)
    return replace(workload, trace=trace, speed=speed)


def _first(trace: Trace) -> Trace:
    if len(trace.requests) <= REQUESTS:
        return trace
    notes = (*trace.notes, f"the first {REQUESTS} of {len(trace.requests)} requests")
    return assemble(trace.requests[:REQUESTS], block_tokens=trace.block_tokens, notes=notes)
