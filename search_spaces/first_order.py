"""What to expect of a config before it is measured: a fluid play of a trace by the first-order step times.

Continuous batching as flows: requests arrive as the trace has them, prompts are computed in chunks beside the
decode batch as budget, slots and KV pool allow, and the batch is a fixed point: a faster step empties slots
sooner, and the arrivals fill them. Thousands of configs are played at once, array by array, on a coarse grid
of time. It is the search's prior, right to a few tens of per cent; the simulated engine is another, finer
model, which plays request by request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from search_spaces.accelerators import Accelerator
from search_spaces.deployment import Deployment
from search_spaces.step_costs import Costs

Array = NDArray[np.float64]

_GRID = 128
"""Steps of time while requests arrive."""
_DRAIN = 64
"""Steps after the last arrival, 14 times the arrivals' span in all: each is longer than the one before."""
_STRETCH = 1.08
_STAGES = 3
"""A sequence's output is decoded in so many stages of exponential length: a coefficient of variation of 0.58,
between that of answers of one length and that of chat."""
_COHORT = 96
"""Requests whose latencies stand for all."""
_AT_ONCE = 1024
"""Configs played together: their arrays stay in the processor's cache."""
_BISECTIONS = 5
"""Of the speeds between two bounds that are 128 times apart: to 16 %, and to 4 % by interpolation."""
_FAR = 1.0
"""Logarithm of latencies over their limits that counts as far from them: queues grow without bound."""
SETTLED, UNSETTLED = 1 / 3, 2 / 3
"""As in `objectives.steady`, which says why."""
PERCENTILES = (50, 90, 95, 99)


class Limits(Protocol):
    """An SLO: limits in seconds (None: no limit) and the share of requests that must meet them all."""

    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...
    @property
    def attainment(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A trace as it is played, (n,) each, by arrival."""

    arrival_s: Array
    """At the workload's speed, ascending from 0."""
    input_tokens: Array
    output_tokens: Array
    shared_tokens: Array
    """Leading prompt tokens that an earlier prompt begins with too."""

    def at_speed(self, speed: float) -> "Traffic":
        """The same, so many times as fast."""
        return Traffic(
            arrival_s=self.arrival_s / speed,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            shared_tokens=self.shared_tokens,
        )


def predicted(
    deployments: Sequence[Deployment], accelerator: Accelerator, traffic: Traffic, limits: Limits
) -> dict[str, Array]:
    """Expected metrics of each deployment, (n,) each, by `objectives.metrics`' names: rates, SLO attainment,
    and mean and percentiles of TTFT, TPOT and E2E. Also `drained_s`, first arrival to last token."""
    distinct, places = _distinct(deployments)
    parts = [
        _played(Costs(distinct[first : first + _AT_ONCE], accelerator), traffic, limits)
        for first in range(0, len(distinct), _AT_ONCE)
    ]
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts])[places] for name in parts[0]}


def capacity_speed(
    deployments: Sequence[Deployment],
    accelerator: Accelerator,
    traffic: Traffic,
    limits: Limits,
    *,
    lowest: float,
    highest: float,
) -> Array:
    """(n,) highest speed, times the traffic's, at which the SLO holds: to some per cent, by bisection.

    Between the bounds; where it does not hold at the lowest, half of that.
    """
    distinct, places = _distinct(deployments)
    parts = [
        _capacity(Costs(distinct[first : first + _AT_ONCE], accelerator), traffic, limits, lowest, highest)
        for first in range(0, len(distinct), _AT_ONCE)
    ]
    return np.concatenate(parts)[places] if parts else np.zeros(0)


def _distinct(deployments: Sequence[Deployment]) -> tuple[list[Deployment], NDArray[np.intp]]:
    """Those that are played differently, and (n,) the place of each deployment's among them: of what a search
    looks at, much differs only in settings that no step time hangs on."""
    found: dict[tuple[object, ...], int] = {}
    kept: list[Deployment] = []
    places = np.empty(len(deployments), dtype=np.intp)
    for index, d in enumerate(deployments):
        batch = d.max_num_seqs, d.max_num_batched_tokens, d.prefix_caching, d.kv_tokens
        # Passes that many share are one object each.
        place = found.setdefault((id(d.target), id(d.draft), d.depth, d.drafted, *batch), len(kept))
        if place == len(kept):
            kept.append(d)
        places[index] = place
    return kept, places


def decode_batch(deployment: Deployment, accelerator: Accelerator, traffic: Traffic, rate: float) -> float:
    """Sequences that decode at once where `rate` requests a second come evenly, prefill left aside.

    The fixed point of Little's law: batch = rate · output · step(batch) / tokens a step, found by bisection
    up to what slots and KV pool hold; that limit where the rate is more than can be served.
    """
    costs = Costs([deployment], accelerator)
    output = float(traffic.output_tokens.mean())
    steps = costs.steps(float(traffic.input_tokens.mean()) + output / 2, 0.0)
    low, high = 0.0, float(_most_sequences(costs, traffic)[0])

    def wanted(batch: float) -> float:
        step_s, _ = steps.seconds(np.array([batch]), np.zeros(1))
        return rate * output * float(step_s[0]) / float(costs.tokens[0])

    if wanted(high) >= high:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if wanted(middle) > middle else (low, middle)
    return high


def _most_sequences(costs: Costs, traffic: Traffic) -> Array:
    """What slots and KV pool hold at once; shared prefixes lie in the pool once."""
    own = traffic.input_tokens.mean() - costs.cached * traffic.shared_tokens.mean()
    each = own + traffic.output_tokens.mean() / 2
    most: Array = np.maximum(np.minimum(costs.seqs, costs.kv_tokens / each), 1.0)
    return most


@dataclass(frozen=True, slots=True)
class _Curves:
    """What the fluid play gives: (k, n) each, at the grid's times."""

    times: Array
    """(k,)"""
    arrived: Array
    """(k, 1) requests that have come; the same of every deployment."""
    prefilled: Array
    """Requests whose first token is out."""
    progress: Array
    """Tokens that a sequence decoding since the start would have."""
    ahead_s: Array
    """Of a request that is scheduled then: to its first token, but for its own prompt."""
    token_s: Array
    """What each token of its prompt that is not cached adds."""


def _flow(costs: Costs, traffic: Traffic) -> _Curves:
    arrivals, total = traffic.arrival_s, len(traffic.arrival_s)
    output = max(float(traffic.output_tokens.mean()), 1.0)
    prompt = float(traffic.input_tokens.mean())
    context = prompt + output / 2
    fresh = np.maximum(prompt - costs.cached * float(traffic.shared_tokens.mean()), 1.0)
    before = prompt - fresh + fresh / 2
    most = _most_sequences(costs, traffic)
    times = _times(float(arrivals[-1]))
    arrived = np.searchsorted(arrivals, times, side="right").astype(np.float64)
    n = len(costs.seqs)
    stages = np.zeros((_STAGES, n))
    prefilled, progress, ahead, token = (np.zeros((len(times), n)) for _ in range(4))
    done, progressed, rate, step_s, first = (np.zeros(n) for _ in range(5))
    steps = costs.steps(context, before)
    pace = costs.tokens / steps.seconds(np.zeros(n), np.zeros(n))[0]
    for k in range(1, len(times)):
        dt = times[k] - times[k - 1]
        decoding = stages.sum(axis=0)
        room = np.maximum(costs.budget - decoding * costs.queries, 1.0)
        # Slots that empty while the step lasts, at the pace of the one before; prompts under way hold theirs.
        turned = pace * dt / output
        freed = np.where(turned < 0.5, stages[-1] * -np.expm1(-_STAGES * turned), decoding * turned)
        starting = rate * first
        startable = np.minimum(arrived[k] - done, np.maximum(most - decoding - starting, 0.0) + freed)
        # A step takes in what stands waiting, and what came during the one before.
        coming = (arrived[k] - arrived[k - 1]) * np.minimum(step_s / dt, 1.0)
        waiting = np.minimum(np.maximum(arrived[k - 1] - done, 0.0) + coming, startable)
        chunk = np.minimum(room, np.maximum(waiting, 1.0) * fresh)
        alone_s, mixed_s = steps.seconds(decoding, chunk)
        steps_wanted = startable * fresh / chunk
        share = np.minimum(steps_wanted * mixed_s / dt, 1.0)
        mixed_steps = share * dt / mixed_s
        started = np.minimum(mixed_steps * chunk / fresh, startable)
        moved = (mixed_steps + (1 - share) * dt / alone_s) * costs.tokens
        # Each stage empties exponentially, also of what enters evenly during the step.
        turns = np.maximum(_STAGES * moved / output, 1e-9)
        kept, kept_new = np.exp(-turns), -np.expm1(-turns) / turns
        entering = started
        for stage in range(_STAGES):
            left = stages[stage] * kept + entering * kept_new
            entering = stages[stage] + entering - left
            stages[stage] = left
        rate, pace, step_s = started / dt, moved / dt, mixed_s
        done = np.minimum(done + started, total)
        progressed = progressed + moved
        prefilled[k], progress[k] = done, progressed
        # A prompt is computed with those that wait beside it, in as many steps as it needs. It comes in the
        # middle of a step on average, and waits for its end.
        each_s = (mixed_s - alone_s) / chunk
        beside = np.maximum(chunk - fresh, 0.0) * each_s + np.maximum(1 - fresh / room, 0.0) * alone_s
        ahead[k] = np.where(share > 0.5, mixed_s, alone_s) / 2 + beside
        token[k] = each_s + alone_s / room
        first = ahead[k] + fresh * token[k]
    ahead[0], token[0] = ahead[1], token[1]
    return _Curves(times, arrived[:, None], prefilled, progress, ahead, token)


def _times(span: float) -> Array:
    """(k,) from 0: even while requests arrive, then ever longer. All at once counts as within a second."""
    width = max(span, 1.0) / _GRID
    widths = np.concatenate([np.full(_GRID, width), width * _STRETCH ** np.arange(1, _DRAIN + 1)])
    return np.concatenate([[0.0], np.cumsum(widths)])


def _capacity(costs: Costs, traffic: Traffic, limits: Limits, lowest: float, highest: float) -> Array:
    n = len(costs.seqs)
    low, high = np.full(n, math.log(lowest / 2)), np.full(n, math.log(highest))
    below, beyond = np.full(n, -_FAR), np.full(n, _FAR)
    failed = np.zeros(n, dtype=np.bool_)
    for _ in range(_BISECTIONS):
        tried = (low + high) / 2
        costs.pace = np.exp(tried)
        over = _overrun(_latencies(costs, traffic), limits)
        held = over <= 0
        low, below = np.where(held, tried, low), np.where(held, over, below)
        high, beyond = np.where(held, high, tried), np.where(held, beyond, over)
        failed |= ~held
    speed = np.exp(low + (high - low) * below / (below - beyond))
    speed = np.where(failed, speed, highest)
    found: Array = np.where(speed < lowest, lowest / 2, speed)
    return found


@dataclass(frozen=True, slots=True)
class _Latencies:
    """(j, n) each, of some requests that stand for all, in seconds; and the last token of each."""

    ttft: Array
    tpot: Array
    e2e: Array
    last: Array
    outputs: Array
    """(j, 1) tokens."""


def _latencies(costs: Costs, traffic: Traffic) -> _Latencies:
    curves = _flow(costs, traffic)
    total = len(traffic.arrival_s)
    chosen = np.unique(np.linspace(0, total - 1, min(_COHORT, total)).round().astype(int))
    arrival, outputs = traffic.arrival_s[chosen, None], traffic.output_tokens[chosen, None]
    # A request is through once the flow has passed half of it: the flow has no whole requests. It comes when
    # half of it has come on the grid, or a step of the grid would pass for waiting.
    started = _reached(curves.times, curves.prefilled, chosen[:, None] + 0.5)
    came = _reached(curves.times, curves.arrived, chosen[:, None] + 0.5)
    own = traffic.input_tokens[chosen, None] - costs.cached * traffic.shared_tokens[chosen, None]
    ahead_s, token_s = _sampled(curves.times, (curves.ahead_s, curves.token_s), started)
    ttft = np.maximum(started - came, 0.0) + ahead_s + np.maximum(own, 1.0) * token_s
    first = arrival + ttft
    (progress,) = _sampled(curves.times, (curves.progress,), first)
    goal = progress + np.maximum(outputs - 1, 0.0)
    last = np.maximum(_reached(curves.times, curves.progress, goal), first)
    with np.errstate(invalid="ignore"):
        tpot = np.where(outputs > 1, (last - first) / np.maximum(outputs - 1, 1.0), 0.0)
    pace = costs.pace
    return _Latencies(ttft / pace, tpot / pace, (last - arrival) / pace, last / pace, outputs)


def _limited(seen: _Latencies, limits: Limits) -> list[tuple[float, Array]]:
    """Each limit that there is, with the latencies that it is of."""
    pairs = (limits.ttft_s, seen.ttft), (limits.tpot_s, seen.tpot), (limits.e2e_s, seen.e2e)
    return [(limit, took) for limit, took in pairs if limit is not None]


def _met(seen: _Latencies, limits: Limits) -> NDArray[np.bool_]:
    met = np.ones(seen.ttft.shape, dtype=np.bool_)
    for limit, took in _limited(seen, limits):
        met &= took <= limit
    return met


def _overrun(seen: _Latencies, limits: Limits) -> Array:
    """(n,) logarithm of how many times their limits the latencies of so many requests as must meet them are
    at the worst: at most 0 where the SLO holds. Between -_FAR and _FAR."""
    over = np.zeros(seen.ttft.shape)
    for limit, took in _limited(seen, limits):
        over = np.maximum(over, took / limit)
    needed = max(math.ceil(limits.attainment * len(over) - 1e-9), 1)
    worst = np.partition(over, needed - 1, axis=0)[needed - 1]
    found: Array = np.log(np.clip(worst, math.exp(-_FAR), math.exp(_FAR)))
    return found


def _played(costs: Costs, traffic: Traffic, limits: Limits) -> dict[str, Array]:
    seen = _latencies(costs, traffic)
    met, outputs, total = _met(seen, limits), seen.outputs, len(traffic.arrival_s)
    attainment = met.mean(axis=0)
    drained = np.maximum(seen.last.max(axis=0), float(traffic.arrival_s[-1]))
    rate = _rate(seen, float(traffic.arrival_s[-1]), drained, total)
    with np.errstate(invalid="ignore", divide="ignore"):
        token_share = np.where(met, outputs, 0.0).sum(axis=0) / outputs.sum()
    found = {
        "slo_attainment": attainment,
        "throughput_rps": rate,
        "throughput_tokens_per_s": rate * float(traffic.output_tokens.mean()),
        "goodput_rps": rate * attainment,
        "goodput_tokens_per_s": rate * float(traffic.output_tokens.mean()) * token_share,
        "drained_s": drained,
    }
    for name, values in (("ttft", seen.ttft), ("tpot", seen.tpot), ("e2e", seen.e2e)):
        ordered = np.sort(values.T, axis=1)
        found[f"{name}_mean_s"] = ordered.mean(axis=1)
        for point in PERCENTILES:
            found[f"{name}_p{point}_s"] = ordered[:, math.ceil(point / 100 * (len(values) - 1))]
    return found


def _rate(seen: _Latencies, lasted_s: float, drained_s: Array, total: int) -> Array:
    """(n,) requests a second as `objectives.steady` counts them: up to the last first token, and of the time
    in which the engine only empties as much as there was no steady state."""
    admitted = np.maximum((seen.last - seen.e2e + seen.ttft).max(axis=0), lasted_s)
    unsteady = np.median(seen.e2e, axis=0) / lasted_s if lasted_s > 0 else np.full(len(drained_s), np.inf)
    tail = np.clip((unsteady - SETTLED) / (UNSETTLED - SETTLED), 0.0, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        counted = admitted + np.where(tail > 0, tail * (drained_s - admitted), 0.0)
        rate: Array = np.where(np.isfinite(counted), (total - 1 + tail) / counted, 0.0)
    return rate


def _reached(times: Array, curve: Array, goal: Array) -> Array:
    """(j, n) when each column's rising curve (k, n) first reaches the goals (j, n) or (j, 1).

    Past the grid's end it goes on as it rose in the last tenth; infinite where it did not.
    """
    goals = np.broadcast_to(goal, (len(goal), curve.shape[1]))
    place = np.empty(goals.shape, dtype=np.intp)
    columns = zip(np.ascontiguousarray(curve.T), np.ascontiguousarray(goals.T), strict=True)
    for column, (rising, wanted) in enumerate(columns):
        place[:, column] = rising.searchsorted(wanted)
    after = np.clip(place, 1, len(times) - 1)
    low, high = _around(curve, after)
    before = times[after - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.clip((goals - low) / (high - low), 0.0, 1.0)
        reached: Array = before + np.where(high > low, within, 1.0) * (times[after] - before)
        beyond = place >= len(times)
        if beyond.any():
            tail = len(times) // 10
            slope = (curve[-1] - curve[-1 - tail]) / (times[-1] - times[-1 - tail])
            reached = np.where(beyond, times[-1] + (goals - curve[-1]) / slope, reached)
    return reached


def _sampled(times: Array, curves: Sequence[Array], at_s: Array) -> list[Array]:
    """(j, n) of each curve (k, n), each column at times (j, n); past the end it stays as it was at last."""
    within = np.minimum(np.where(np.isfinite(at_s), at_s, times[-1]), times[-1])
    after = np.clip(np.searchsorted(times, within), 1, len(times) - 1)
    before = times[after - 1]
    share = (within - before) / (times[after] - before)
    ends = [_around(curve, after) for curve in curves]
    return [low + share * (high - low) for low, high in ends]


def _around(curve: Array, after: NDArray[np.intp]) -> tuple[Array, Array]:
    """(j, n) each column's values at the places before these, and at these."""
    n = curve.shape[1]
    flat, at = curve.ravel(), after * n + np.arange(n)
    return flat.take(at - n), flat.take(at)
