"""Made-up measurements under every kind of load, and the studies they belong to.

The trace was recorded at 4 requests/s and the study plays it at speed 1.5, so the reference load is 6.
"""

import dataclasses
from collections.abc import Iterable

from cluster.order import Measured
from objectives.measurement import Estimate, LoadPoint, Mode
from search_spaces.measure import Capacity, Closed, Measure
from tests.tuner import stories
from tuner.records import StudyFile

RECORDED_RPS = 4.0
REFERENCE = 1.5


def whole(speed: float, *, held: bool = True) -> LoadPoint:
    """A replay played to its end: its p95 TTFT is 10 ms for each request a second."""
    rps = RECORDED_RPS * speed
    return LoadPoint(
        speed=speed,
        offered_rps=rps,
        requests=100,
        misses=2 if held else 8,
        held=held,
        took_s=100 / rps,
        metrics={
            "slo_attainment": Estimate(value=0.98 if held else 0.92, low=0.9, high=1.0),
            "goodput_rps": Estimate(value=0.9 * rps),
            "ttft_p50_s": Estimate(value=0.004 * rps),
            "ttft_p95_s": Estimate(value=0.01 * rps, low=0.009 * rps),
            "tpot_p95_s": Estimate(value=0.02, low=0.019, high=0.022),
            "e2e_p95_s": Estimate(value=1 + 0.1 * rps, low=1.0, high=float("inf")),
        },
    )


def cut(speed: float, *, at_s: float = 5.0, saved_s: float = 7.0) -> LoadPoint:
    """A replay cut after six misses of a hundred, where five were allowed."""
    return LoadPoint(
        speed=speed,
        offered_rps=RECORDED_RPS * speed,
        requests=100,
        misses=6,
        held=False,
        cut_s=at_s,
        took_s=at_s,
        saved_s=saved_s,
    )


BETWEEN = (whole(1.5), whole(3.0), cut(3.15), cut(6.0, at_s=2.0, saved_s=3.0))
"""Held at 12 requests/s, failed at 12.6: a capacity of 12, known to 5 %."""
ABOVE = (whole(1.5), whole(12.0), whole(24.0))
"""Held at the highest speed tried, 96 requests/s."""
BELOW = (cut(0.375), whole(1.5, held=False))
"""Failed at the lowest speed tried, 1.5 requests/s."""


def measured(
    curve: Iterable[LoadPoint] = BETWEEN, *, tpot_p95_s: float = 0.04, disagreements: tuple[str, ...] = ()
) -> Measured:
    """A trial that looked for its capacity, as a node gives it: a capacity of 0 where the SLO never held."""
    points = tuple(curve)
    speed = max((point.speed for point in points if point.held), default=0.0)
    ends = {"low": None if not speed else 0.95, "high": 1.1 if any(not p.held for p in points) else None}
    found = {
        "capacity_rps": RECORDED_RPS * speed,
        "capacity_tokens_per_s": 400 * speed,
        "capacity_speed": speed,
    }
    outcome = stories.measured(
        tpot_p95_s=tpot_p95_s,
        more={
            "slo_attainment": Estimate(value=0.98),
            **{
                name: Estimate(
                    value=value, **{end: None if f is None else f * value for end, f in ends.items()}
                )
                for name, value in found.items()
            },
        },
    )
    measurement = dataclasses.replace(
        outcome.measurement, mode=Mode.CAPACITY, curve=points, disagreements=disagreements
    )
    return dataclasses.replace(outcome, measurement=measurement)


def in_closed_loop() -> Measured:
    outcome = stories.measured(more={"slo_attainment": Estimate(value=0.98)})
    return dataclasses.replace(
        outcome, measurement=dataclasses.replace(outcome.measurement, mode=Mode.CLOSED)
    )


def study(measure: Measure | None = None, *, engine: str = "simulated") -> StudyFile:
    """A study that measures so; of capacity where nothing is said."""
    measure = measure or Capacity()
    first = "capacity" if isinstance(measure, Capacity) else "goodput"
    made = stories.study_file()
    return dataclasses.replace(
        made,
        engine=engine,
        objectives=(first, "tpot_p95"),
        options={**made.options, "measure": measure.model_dump(mode="json")},
    )


def closed_study() -> StudyFile:
    return study(Closed(concurrency=8))
