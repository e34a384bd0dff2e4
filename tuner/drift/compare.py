"""Two traces held against each other: properties with intervals, distributions with a two-sample test. Pure.

Requests near each other are alike (sessions, bursts), so both are resampled in blocks
(`objectives.bootstrap`). The test of distributions is Kolmogorov's and Smirnov's largest difference, held
against its own spread where each trace is resampled from itself (a centred bootstrap): ordinary tables would
want independent requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cluster.traffic.pace import Service
from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.trace import Trace
from objectives.bootstrap import RESAMPLES, Array, block_length, resampled, resampled_sums
from objectives.measurement import Estimate
from tuner.drift.shapes import Change, Distance

RATIO = 1.1
"""A change by less than this, either way, is none that a front is likely to move by."""

DIFFERENCE = 0.05
"""The same of shares."""

_GRID = 64
"""Values at which cumulated shares are compared: quantiles of both traces together."""

_FEWEST = 20
"""Requests below which a trace tells nothing of its own spread."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One trace as arrays, by arrival."""

    inputs: Array
    outputs: Array
    shared: Array
    gaps: Array
    """Between arrivals, one fewer."""
    service_s: Array | None

    @classmethod
    def of(cls, trace: Trace, service: Service | None) -> "_Side":
        requests = sorted(enumerate(trace.requests), key=lambda pair: pair[1].arrival_s)
        shared = shared_tokens(trace)
        taken = None if service is None else [service.seconds(request) for _, request in requests]
        return cls(
            inputs=np.array([float(r.input_length) for _, r in requests]),
            outputs=np.array([float(r.output_length) for _, r in requests]),
            shared=np.array([float(shared[place]) for place, _ in requests]),
            gaps=np.diff([r.arrival_s for _, r in requests]).astype(np.float64),
            service_s=None if taken is None else np.array(taken),
        )


def comparable(trace: Trace) -> bool:
    """Whether a trace has requests enough to be compared, and not all at once."""
    return len(trace.requests) >= _FEWEST and trace.requests[0].arrival_s != trace.requests[-1].arrival_s


def changes(
    before: Trace, now: Trace, *, service: tuple[Service, Service] | None = None
) -> tuple[Change, ...]:
    """Rate, burstiness, lengths, prefix share and concurrency, then and now.

    Args:
        before, now: at recorded speed; `comparable` ones.
        service: how long requests are expected to take on each; None: concurrency is not told.
    """
    old = _Side.of(before, None if service is None else service[0])
    new = _Side.of(now, None if service is None else service[1])
    return tuple(_changes(old, new))


def _changes(old: _Side, new: _Side) -> Iterator[Change]:
    yield _ratio("rate", "requests/s", old, new, _rate)
    yield _ratio("burstiness", "deviation over mean of gaps", old, new, _burstiness)
    yield _ratio("prompt, mean", "tokens", old, new, lambda side, seed: _mean(side.inputs, seed))
    yield _ratio("prompt, p95", "tokens", old, new, lambda side, seed: _tail(side.inputs, seed))
    yield _ratio("output, mean", "tokens", old, new, lambda side, seed: _mean(side.outputs, seed))
    yield _ratio("output, p95", "tokens", old, new, lambda side, seed: _tail(side.outputs, seed))
    yield _difference("prefix share", "share", old, new, _prefix_share)
    if old.service_s is not None and new.service_s is not None:
        yield _ratio("concurrency", "requests under way", old, new, _concurrency)


def distances(before: Trace, now: Trace) -> tuple[Distance, ...]:
    """Lengths and gaps as distributions."""
    old, new = _Side.of(before, None), _Side.of(now, None)
    return (
        _distance("prompt", old.inputs, new.inputs),
        _distance("output", old.outputs, new.outputs),
        _distance("gaps between arrivals", old.gaps, new.gaps),
    )


_Spread = tuple[float, Array]
"""A property, and the same of each resample."""

_Property = Callable[[_Side, int], _Spread]


def _rate(side: _Side, seed: int) -> _Spread:
    value, draws = _mean(side.gaps, seed)
    return 1 / value, 1 / np.maximum(draws, 1e-12)


def _burstiness(side: _Side, seed: int) -> _Spread:
    n, length = len(side.gaps), block_length(side.gaps)
    sums, squares = (resampled_sums(side.gaps**power, length, seed) for power in (1, 2))
    means = np.maximum(sums / n, 1e-12)
    return float(side.gaps.std() / side.gaps.mean()), np.sqrt(np.maximum(squares / n - means**2, 0)) / means


def _mean(values: Array, seed: int) -> _Spread:
    return float(values.mean()), resampled_sums(values, block_length(values), seed) / len(values)


def _tail(values: Array, seed: int) -> _Spread:
    rows = [np.percentile(values[i], 95, axis=1) for i in resampled(len(values), block_length(values), seed)]
    return float(np.percentile(values, 95)), np.concatenate(rows)


def _prefix_share(side: _Side, seed: int) -> _Spread:
    length = block_length(side.shared)
    shared, whole = (resampled_sums(column, length, seed) for column in (side.shared, side.inputs))
    return float(side.shared.sum() / side.inputs.sum()), shared / whole


def _concurrency(side: _Side, seed: int) -> _Spread:
    """Little's law: mean time in service over mean gap."""
    assert side.service_s is not None
    taken, length = side.service_s[:-1], block_length(side.gaps)
    served, passed = (resampled_sums(column, length, seed) for column in (taken, side.gaps))
    return float(taken.sum() / side.gaps.sum()), served / np.maximum(passed, 1e-12)


def _ratio(name: str, unit: str, old: _Side, new: _Side, of: _Property) -> Change:
    (was, was_draws), (is_, is_draws) = of(old, 0), of(new, 1)
    if was <= 0:  # evenly paced arrivals have no burstiness to be a multiple of
        return _difference(name, unit, old, new, of)
    change = _estimate(is_ / was, is_draws / np.maximum(was_draws, 1e-12))
    told = _leaves_out(change, 1.0)
    return Change(
        name=name,
        unit=unit,
        before=_estimate(was, was_draws),
        now=_estimate(is_, is_draws),
        kind="ratio",
        change=change,
        told=told,
        matters=told and not 1 / RATIO <= change.value <= RATIO,
    )


def _difference(name: str, unit: str, old: _Side, new: _Side, of: _Property) -> Change:
    (was, was_draws), (is_, is_draws) = of(old, 0), of(new, 1)
    change = _estimate(is_ - was, is_draws - was_draws)
    told = _leaves_out(change, 0.0)
    return Change(
        name=name,
        unit=unit,
        before=_estimate(was, was_draws),
        now=_estimate(is_, is_draws),
        kind="difference",
        change=change,
        told=told,
        matters=told and abs(change.value) > DIFFERENCE,
    )


def _estimate(value: float, draws: Array) -> Estimate:
    low, high = np.percentile(draws, (2.5, 97.5))
    return Estimate(value=value, low=float(low), high=float(high))


def _leaves_out(change: Estimate, nothing: float) -> bool:
    assert change.low is not None
    assert change.high is not None
    return not change.low <= nothing <= change.high


def _distance(name: str, old: Array, new: Array) -> Distance:
    grid = np.unique(np.quantile(np.concatenate((old, new)), np.linspace(0, 1, _GRID + 1)))
    (was, was_draws), (is_, is_draws) = _cumulated(old, grid, seed=0), _cumulated(new, grid, seed=1)
    largest = float(np.abs(was - is_).max())
    by_chance = np.abs((was_draws - was) - (is_draws - is_)).max(axis=1)
    # Plus one: the observed one is a draw as well, so that p is never 0.
    p = (1 + int((by_chance >= largest - 1e-12).sum())) / (1 + RESAMPLES)
    return Distance(name=name, largest=largest, p=p)


def _cumulated(values: Array, grid: Array, *, seed: int) -> tuple[Array, Array]:
    """(g,) share of the values up to each of the grid's, and (resamples, g) the same of resamples."""
    length = block_length(values)
    below = values[None, :] <= grid[:, None]
    draws = [resampled_sums(row.astype(np.float64), length, seed) / len(values) for row in below]
    return below.mean(axis=1), np.array(draws).T


def moved(found: tuple[Change, ...], apart: tuple[Distance, ...]) -> bool:
    """Whether anything has changed that a front may move by."""
    return any(change.matters for change in found) or any(
        distance.p < 0.05 / max(len(apart), 1) and distance.largest > 2 * DIFFERENCE for distance in apart
    )
