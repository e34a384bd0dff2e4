"""A verification as a person reads it."""

from collections.abc import Iterator
from datetime import UTC

from search_spaces.values import Json
from tuner.titles import interval, number
from tuner.verify.verification import Kept, Stress, Verification

_CHANCE = "Where every promise is true, a verification fails by chance at most {:.0%} of the time."
"""Of one pair of runs nothing of the kind is known."""


def verification_lines(found: Verification) -> list[str]:
    """The whole of it."""
    mark = " (SIMULATED, not measured)" if found.simulated else ""
    version = f" {found.version}" if found.version else ""
    said = "held" if found.held else "NOT HELD"
    return [
        f"Verification of trial {found.trial}, study {found.study}{mark}: {said}",
        f"{found.why[:1].upper()}{found.why[1:]}.",
        f"{found.engine}{version} on {found.hardware or 'unknown hardware'}, {_pairs(found)}; "
        f"{found.traffic.requests} requests a run",
        f"traffic: {found.traffic.words}",
        "",
        *(line for kept in found.promises for line in _kept_lines(kept)),
        f"quality: {found.quality.words}",
        *(f"not judged: {line}" for line in found.not_judged),
        *(line for stress in found.stress for line in _stress_lines(stress)),
        *(f"note: {line}" for line in found.notes),
        *([_CHANCE.format(found.rate)] if found.pairs > 1 else []),
    ]


def verified_json(found: Verification | None) -> dict[str, Json] | None:
    """What a front says of it: the numbers that a recommendation carries, and whether the promises held."""
    if found is None:
        return None
    return {
        "held": found.held,
        "why": found.why,
        "finished": found.finished.isoformat(),
        "simulated": found.simulated,
        "held_out": found.traffic.held_out,
        "pairs": found.pairs,
        "numbers": {
            kept.name: {
                "value": kept.verified.value,
                "low": kept.verified.low,
                "high": kept.verified.high,
                "unit": kept.unit,
                "held": kept.held,
            }
            for kept in found.promises
            if kept.verified is not None
        },
    }


def verified_words(found: Verification) -> str:
    """One line for a front: `verified 2026-11-30, held: capacity 4.12 (3.9 to 4.3) requests/s, …`."""
    said = ", ".join(_value(kept) for kept in found.promises if kept.kind == "objective" and kept.verified)
    mark = "simulated, " if found.simulated else ""
    day = found.finished.astimezone(UTC).strftime("%Y-%m-%d")
    if found.held:
        where = "on other traffic" if found.traffic.held_out else "though no traffic was held out"
        return f"verified {day}, {mark}held {where}: {said}"
    return f"verified {day}, {mark}NOT HELD: {found.why}"


def _pairs(found: Verification) -> str:
    beside = any(kept.against_control for kept in found.promises)
    times = "once" if found.pairs == 1 else f"{found.pairs} times"
    return f"measured {times}" + (", each beside the control" if beside else ", without a control")


def _kept_lines(kept: Kept) -> Iterator[str]:
    said = "held" if kept.held else "NOT HELD"
    if kept.kind == "limit":
        yield f"{kept.name}: {said}; {kept.why}"
        return
    promised = "nothing" if kept.promised is None else interval(kept.promised)
    seen = "not measured" if kept.verified is None else interval(kept.verified)
    beside = "" if kept.control is None else f", the control {interval(kept.control)}"
    yield f"{kept.name} in {kept.unit}: {said}; promised {promised}, verified {seen}{beside}"
    yield f"  {kept.why}"


def _stress_lines(stress: Stress) -> Iterator[str]:
    yield f"stress, {stress.name}: {stress.words}"
    for name, estimate in stress.metrics.items():
        beside = stress.control.get(name)
        against = "" if beside is None else f", the control {number(beside.value)}"
        yield f"  {name} {number(estimate.value)}{against}"


def _value(kept: Kept) -> str:
    assert kept.verified is not None
    return f"{kept.name} {interval(kept.verified)} {kept.unit}"
