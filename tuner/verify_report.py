"""From a verification's runs to what is stored, shown and logged of it."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from objectives.goal import violations
from objectives.measurement import Estimate, Measurement
from objectives.metrics import METRICS, published
from search_spaces.measure import Closed
from tuner import __version__
from tuner.records import StoredTrial
from tuner.verify.judge import RATE, Pair, judged, limits
from tuner.verify.verification import Kept, Played, Quality, Stress, Verification
from tuner.verify_plan import CONFIG, STRESSES, VerifyPlan, pairs_of

_STRESS_METRICS = ("slo_attainment", "ttft_p95_s", "tpot_p95_s")


def verification(
    plan: VerifyPlan, finished: Sequence[StoredTrial], quality: Quality, now: datetime
) -> Verification:
    """What the runs show.

    Args:
        finished: all of them that are over.
        quality: the verdict on what the config serves.

    Raises RecordError where what they left on disk cannot be read.
    """
    pairs = pairs_of(plan, finished)
    mine = pairs[: plan.pairs]
    kept, unjudged = judged(plan.promised, mine)
    why = _why(plan, finished, kept, quality)
    ran = [trial.ran for trial in finished if trial.ran.engine]
    simulated = plan.promised.engine == "simulated"
    return Verification(
        study=plan.promised.study,
        trial=plan.promised.trial,
        source=plan.source,
        held=why is None,
        why=why or f"all {len(kept)} promises held",
        promises=kept,
        not_judged=(*plan.not_judged, *unjudged),
        level=RATE / max(len(kept), 1),
        rate=RATE,
        pairs=sum(pair.config is not None for pair in mine),
        quality=quality,
        stress=tuple(_stresses(plan, pairs)),
        traffic=Played(
            words=plan.traffic.words,
            held_out=plan.traffic.held_out,
            digests=tuple(dict.fromkeys(one.trace.digest for one in plan.traffic.workloads)),
            speed=None if isinstance(plan.promised.measure, Closed) else plan.workload(0).speed,
            requests=len(plan.workload(0).trace.requests),
        ),
        engine=plan.promised.engine,
        version=next((one.version for one in ran if one.version), None),
        hardware=next((one.hardware for one in ran if one.hardware), None),
        simulated=simulated,
        started=min((trial.started for trial in finished), default=now),
        finished=now,
        tuner_version=__version__,
        notes=tuple(_notes(plan, finished, mine)),
    )


def _why(
    plan: VerifyPlan, finished: Sequence[StoredTrial], kept: Sequence[Kept], quality: Quality
) -> str | None:
    """The first thing that failed; None where nothing did."""
    configs = {run.number for run in plan.runs if run.cell == CONFIG and run.block < plan.pairs}
    for trial in finished:
        if trial.number in configs and trial.cause is not None and trial.cause.blames_config:
            return f"the config failed, {trial.cause}: {trial.reason}"
    broken = [one for one in kept if not one.held]
    if broken:
        return f"{', '.join(one.name for one in broken)} did not hold: {broken[0].why}"
    if not kept:
        return "there was no promise to hold it to"
    if quality.passed is False or (quality.passed is None and plan.promised.engine != "simulated"):
        return f"quality: {quality.words}"
    return None


def _stresses(plan: VerifyPlan, pairs: Sequence[Pair]) -> Iterator[Stress]:
    for kind, pair in zip(STRESSES, pairs[plan.pairs :], strict=False):
        mine = None if pair.config is None else pair.config.measurement
        other = None if pair.control is None else pair.control.measurement
        names = [*(one.metric for one in plan.promised.goal.objectives), *_STRESS_METRICS]
        held = None
        if mine is not None and plan.promised.slo.limits():
            held = all(missed <= 1e-9 for missed in violations(mine, plan.promised.slo).values())
        yield Stress(
            name=kind,
            metrics=_shown(mine, names),
            control=_shown(other, names),
            slo_held=held,
            words=_stress_words(held, measured=mine is not None),
        )


def _stress_words(held: bool | None, *, measured: bool) -> str:
    if not measured:
        return "the config was not measured under it"
    said = {True: "the SLO held", False: "the SLO did not hold", None: "there is no SLO to hold"}[held]
    return f"{said}; nothing is promised here"


def _shown(measurement: Measurement | None, names: Sequence[str]) -> dict[str, Estimate]:
    if measurement is None:
        return {}
    found = published(measurement)
    return {
        METRICS[name].shown: found[METRICS[name].shown]
        for name in dict.fromkeys(names)
        if METRICS[name].shown in found
    }


def _notes(plan: VerifyPlan, finished: Sequence[StoredTrial], pairs: Sequence[Pair]) -> Iterator[str]:
    yield from plan.remarks
    if plan.promised.engine == "simulated":
        yield "simulated: nothing was measured"
    if not plan.traffic.held_out:
        yield f"not held out: {plan.traffic.words}"
    if plan.promised.slo.limits() and plan.promised.slo_held:
        names = ", ".join(limits(plan.promised.slo))
        yield f"limits ({names}) are judged at the reference load, for themselves and not against the control"
    if len(pairs) < 2:
        yield "one pair of runs: how much runs differ is not known, only how much requests do"
    lost = [trial for trial in finished if trial.measurement is None]
    for trial in lost:
        side = "control" if plan.runs[trial.number].cell else "config"
        yield f"run {trial.number}, of the {side}, was not measured ({trial.cause}: {trial.reason})"
    for what, was, now in (
        ("engine", plan.promised.version, [trial.ran.version for trial in finished]),
        ("hardware", plan.promised.hardware, [trial.ran.hardware for trial in finished]),
    ):
        other = [one for one in dict.fromkeys(now) if one is not None and one != was]
        if was is not None and other:
            yield f"another {what} than the promise is of: {', '.join(other)}, not {was}"
