"""What a trial's replays make of it: its numbers at the workload's speed, its capacity, its curve.

docs/measurement.md says what each number is.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cluster.node.engine import Replay
from cluster.node.loads import Loads, Played, grid_of
from cluster.order import CapacityLoad, ClosedLoop, Measured, Order, Ran, Step
from cluster.traffic.sessions import Sessions
from objectives.capacity import CapacitySearch, SpeedGrid, capacity_estimate
from objectives.economy import money, per_gpu, tokens_per_joule
from objectives.measurement import Estimate, LoadPoint, Measurement, Mode
from objectives.repeats import combine
from objectives.steady import still_growing
from objectives.summary import summarise


def measured(loads: Loads, order: Order, ran: Ran) -> Measured:
    """The outcome of a trial all of whose replays were played."""
    whole = [
        None if played.replay.cut_s is not None else _summary(played.replay, order, ran)
        for played in loads.played
    ]
    points = [
        _point(played, summary, order.workload.sessions)
        for played, summary in zip(loads.played, whole, strict=True)
    ]
    first = loads.played[0].replay
    return Measured(
        measurement=_measurement(loads, whole, points, order),
        records=first.records,
        samples=first.samples,
        ran=ran,
        steps=_steps(loads.played, points)[1:],
    )


def steps_before_failure(loads: Loads, order: Order, ran: Ran) -> tuple[Step, ...]:
    """The replays that were over when a trial failed."""
    points = [
        _point(
            played,
            None if played.replay.cut_s is not None else _summary(played.replay, order, ran),
            order.workload.sessions,
        )
        for played in loads.played
    ]
    return _steps(loads.played, points)


def _steps(all_played: Sequence[Played], points: Sequence[LoadPoint]) -> tuple[Step, ...]:
    return tuple(
        Step(point=point, records=played.replay.records, samples=played.replay.samples)
        for played, point in zip(all_played, points, strict=True)
    )


def _summary(replay: Replay, order: Order, ran: Ran) -> Measurement:
    """What one whole replay measured."""
    slots, effective = ran.effective.get("max_num_seqs"), ran.effective
    return summarise(
        replay.records,
        replay.samples,
        slo=order.slo,
        max_num_seqs=slots if isinstance(slots, int) else None,
        speculates=effective["speculative_config"] is not None if "speculative_config" in effective else None,
        caveats=replay.warnings,
        percentiles=order.percentiles,
    )


def _point(played: Played, summary: Measurement | None, sessions: Sessions) -> LoadPoint:
    replay = played.replay
    offered_s = _offered_s(replay, sessions)
    due_s = [record.due_s for record in replay.records]
    start_s, last_s = min(due_s), max(due_s)
    tokens_s = (record.chunk_s[-1] for record in replay.records if record.chunk_s)
    return LoadPoint(
        speed=played.speed,
        offered_rps=(len(offered_s) - 1) / (max(offered_s) - start_s) if max(offered_s) > start_s else None,
        requests=len(due_s),
        misses=played.misses,
        held=played.held,
        cut_s=replay.cut_s,
        took_s=(max(tokens_s, default=last_s) if replay.cut_s is None else replay.cut_s) - start_s,
        saved_s=0.0 if replay.cut_s is None else max(last_s - replay.cut_s, 0.0),
        metrics={} if summary is None else summary.metrics,
    )


def _offered_s(replay: Replay, sessions: Sessions) -> list[float]:
    """Due times of what was offered. A turn that a cut left waiting for its predecessor never was."""
    ends_s = replay.cut_s if sessions is Sessions.CAUSAL else None
    first_s = min(record.due_s for record in replay.records)
    due_s = [record.due_s for record in replay.records if ends_s is None or record.due_s < ends_s]
    return due_s or [first_s]


def _measurement(
    loads: Loads, whole: Sequence[Measurement | None], points: Sequence[LoadPoint], order: Order
) -> Measurement:
    """Of summaries in the order of play, those at the workload's speed first; None: cut."""
    load = order.load
    repeats = 1 if isinstance(load, ClosedLoop) else load.repeats
    base = combine([summary for summary in whole[:repeats] if summary])
    base = replace(
        base,
        metrics={**base.metrics, **_per_joule([played.replay for played in loads.played[:repeats]])},
        mode=Mode.CLOSED if isinstance(load, ClosedLoop) else Mode.FIXED,
        curve=() if isinstance(load, ClosedLoop) else _by_speed(points),
        warnings=(*loads.remarks, *base.warnings),
        disagreements=(*base.disagreements, *_disagreements(points[repeats:], whole[repeats:])),
    )
    if isinstance(load, CapacityLoad):
        base = _with_capacity(base, loads, points, load, order)
    economy = per_gpu(base.metrics, order.gpus) | money(base.metrics, order.gpus, order.gpu_hour_price)
    return replace(base, metrics={**base.metrics, **economy})


def _disagreements(points: Sequence[LoadPoint], whole: Sequence[Measurement | None]) -> Iterator[str]:
    """What the engine contradicts in the replays that the capacity was found by."""
    for point, summary in zip(points, whole, strict=True):
        for said in () if summary is None else summary.disagreements:
            yield f"at speed {point.speed:.4g}: {said}"


def _by_speed(points: Sequence[LoadPoint]) -> tuple[LoadPoint, ...]:
    return tuple(sorted(points, key=lambda point: point.speed))


def _per_joule(replays: Sequence[Replay]) -> dict[str, Estimate]:
    energies = [replay.energy_j for replay in replays]
    known = [energy_j for energy_j in energies if energy_j is not None]
    if len(known) < len(energies):
        return {}
    return tokens_per_joule(
        sum(record.tokens_out for replay in replays for record in replay.records), sum(known)
    )


def _with_capacity(
    base: Measurement, loads: Loads, points: Sequence[LoadPoint], load: CapacityLoad, order: Order
) -> Measurement:
    search = loads.found
    assert search is not None  # it follows the replays at the workload's speed
    if points[0].offered_rps is None:
        reason = "all requests are due at once, so there is no rate and no capacity"
        return replace(base, mode=Mode.CAPACITY, warnings=(*base.warnings, reason))
    grid = grid_of(order, load)
    rate = _rate(search, grid, points)
    speed = capacity_estimate(
        0.0 if search.held is None else grid.speed(search.held),
        loads.verdicts(),
        order.slo.attainment,
    )
    if loads.beaten_by is not None and search.failed is not None and speed.high is not None:
        speed = replace(speed, high=max(speed.high, grid.speed(search.failed)))
    tokens = float(np.mean([request.output_length for request in order.workload.trace.requests]))
    found = {
        "capacity_rps": speed.times(rate),
        "capacity_tokens_per_s": speed.times(rate * tokens),
        "capacity_speed": speed,
    }
    growing = [
        grows
        for played in loads.played
        if search.held is not None and played.speed == grid.speed(search.held)
        if (grows := still_growing(played.replay.records)) is not None
    ]
    return replace(
        base,
        mode=Mode.CAPACITY,
        metrics={**base.metrics, **found},
        warnings=(*base.warnings, *_remarks(search, grid), *_left_open(loads, search, grid), *growing[:1]),
    )


def _rate(search: CapacitySearch, grid: SpeedGrid, points: Sequence[LoadPoint]) -> float:
    """Requests per second at speed 1, as offered at the capacity.

    Every replay gives the same, but for causal sessions, whose later turns are due once the engine has
    answered: there the rate is what the sessions at that speed made of it.
    """
    at = [] if search.held is None else [point for point in points if point.speed == grid.speed(search.held)]
    rates = [point.offered_rps / point.speed for point in (*at, *points) if point.offered_rps is not None]
    return rates[0]


def _remarks(search: CapacitySearch, grid: SpeedGrid) -> Iterator[str]:
    if search.held is None:
        lowest = grid.speed(grid.first)
        yield f"the SLO did not hold at the lowest speed tried, {lowest:.4g}: the capacity lies below it"
    if search.failed is None:
        highest = grid.speed(grid.last)
        yield f"the SLO held at the highest speed tried, {highest:.4g}: the capacity is at least that"


def _left_open(loads: Loads, search: CapacitySearch, grid: SpeedGrid) -> Iterator[str]:
    bar = loads.beaten_by
    if bar is None or search.held is None or search.failed is None:
        return
    # A bisection of so many steps takes this many replays, or one more.
    spared = int(math.log2(search.failed - search.held))
    held, failed = grid.speed(search.held), grid.speed(search.failed)
    yield (
        f"the SLO holds at speed {held:.4g} and not at {failed:.4g}, and the capacity was not looked for any "
        f"closer: trial {bar.trial} has one of {bar.speed:.4g} at the least and is nowhere worse; "
        f"{spared} replay{'' if spared == 1 else 's'} spared at the least"
    )
