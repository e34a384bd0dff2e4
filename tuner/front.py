"""A study's front as it stands: which trials are on it, the control beside it, and the rest by state.

Judging is `objectives.front`'s; this applies it to what lies on disk.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from objectives.front import indistinguishable, non_dominated
from objectives.goal import Goal, MissingObjective, violations
from objectives.measurement import Estimate, Measurement
from objectives.metrics import METRICS, published
from objectives.repeats import Spread
from search_spaces.values import Json
from tuner.bracket import bracket, capacity_text, replays
from tuner.curve import SERIES, Rated, curve
from tuner.loads import concurrency, measure_of, mode, offered_rps, sessions, speed
from tuner.node_controls import doubtful
from tuner.promise import NOTHING, Promise, Promised, promised
from tuner.quality import Checks, read_checks
from tuner.quality_words import quality_json, quality_text
from tuner.records import State, StoredTrial, StudyFile, read_study, read_trials
from tuner.verify.stored import latest_verifications
from tuner.verify.verification import Verification
from tuner.verify.words import verified_json

GUARDED = "quality"
"""The option of a study that is there where quality is asked of its trials; it holds the limits."""
NO_CHECKS = Checks()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontView:
    """All finished trials of a study, its configs, and those that no other dominates.

    A config goes by the number of its first trial, and is judged by what is promised of it (`tuner.promise`).
    """

    study: StudyFile
    goal: Goal
    trials: tuple[StoredTrial, ...]
    """Finished ones as they were measured, by number, repeats among them."""
    promises: tuple[Promise, ...]
    """One for each config, by number. Trials of a node that had drifted are left out (`node_controls`)."""
    front: tuple[StoredTrial, ...]
    """What stands of the configs on it, by number. The control is among them where nothing dominates it."""
    checks: Checks = NO_CHECKS
    """What was found of the quality of what they serve."""
    verified: Mapping[int, Verification] = field(default_factory=dict)
    """The latest verification of each config that has one, by its number."""
    spread: Mapping[str, Spread] = field(default_factory=dict)
    """How single runs of one config differ, by metric."""

    @property
    def guarded(self) -> bool:
        """Whether quality is asked of its trials: not in simulated studies, nor in those of before it was."""
        return GUARDED in self.study.options and self.study.engine != "simulated"

    def trusted(self, trial: StoredTrial) -> bool:
        """Whether a trial may be recommended: its quality passed, or it is simulated and has none."""
        if self.study.engine == "simulated":
            return True
        verdict = self.checks.verdicts.get(trial.artefact)
        return verdict is not None and verdict.passed

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the trials on the front."""
        return tuple(trial.number for trial in self.front)

    @property
    def standing(self) -> tuple[StoredTrial, ...]:
        """One trial a config, with what the config is judged by; by number."""
        return tuple(promise.standing for promise in self.promises)

    @property
    def control(self) -> tuple[StoredTrial, ...]:
        return tuple(trial for trial in self.standing if trial.is_control)

    @property
    def best_first(self) -> tuple[StoredTrial, ...]:
        """The front by the first objective, the best first."""
        return self._best_first(self.front)

    @property
    def recommended(self) -> StoredTrial | None:
        """The best by the first objective of the configs that were measured again; of the front where none
        was. None where no trial has a score, or none that has one has passed the check of quality.

        So a config whose one measurement may have been lucky is not preferred to one that has held.
        """
        held = [promise.standing for promise in self.promises if promise.fresh]
        scored = [trial for trial in held if losses(self.goal, trial) is not None and self.trusted(trial)]
        known = scored or [trial for trial in self.front if self.trusted(trial)]
        return next(iter(self._best_first(known)), None)

    @property
    def refused(self) -> tuple[StoredTrial, ...]:
        """Configs that have a score and may not be recommended for their quality, by number."""
        scored = (trial for trial in self.standing if losses(self.goal, trial) is not None)
        return tuple(trial for trial in scored if not self.trusted(trial))

    def quality_text(self, trial: StoredTrial) -> str | None:
        """The verdict on a trial's quality in one line; None for one that was not measured."""
        return quality_text(self.study, trial, self.checks)

    def promise(self, number: int) -> Promise:
        """Of the config whose first trial has this number, or of what was measured in its place where that
        is not believed; without a score where nothing was yet.

        Raises KeyError where there is no such trial.
        """
        place = bisect_left(self.promises, number, key=lambda promise: promise.first.number)
        if place < len(self.promises) and self.promises[place].first.number == number:
            return self.promises[place]
        again = [trial.number for trial in self.trials if trial.repeats == number]
        if again:
            return self.promise(again[-1])
        first = {trial.number: trial for trial in self.trials}[number]
        reason = f"node {first.ran.node} had drifted by then, and nothing has measured it again"
        return Promise(first=first, again=(), standing=replace(first, state=State.UNSCORED, reason=reason))

    def _best_first(self, trials: Iterable[StoredTrial]) -> tuple[StoredTrial, ...]:
        return tuple(sorted(trials, key=lambda trial: losses(self.goal, trial) or (math.inf,)))

    @property
    def counts(self) -> dict[str, int]:
        """Trials by state; measured and failed always, unscored where there are any."""
        found = Counter(trial.state for trial in self.trials)
        return {state.value: found[state] for state in State if found[state] or state is not State.UNSCORED}

    @property
    def failures(self) -> dict[str, int]:
        """Failed trials by cause, the commonest first."""
        causes = Counter(trial.cause.value for trial in self.trials if trial.cause is not None)
        return dict(causes.most_common())

    @property
    def alike(self) -> tuple[tuple[int, int], ...]:
        """Pairs of numbers on the front whose intervals overlap on every objective."""
        rows = [self.goal.loss_estimates(trial.measurement) for trial in self.front if trial.measurement]
        return tuple((self.numbers[first], self.numbers[second]) for first, second in indistinguishable(rows))

    def objective_values(self, trial: StoredTrial) -> dict[str, Estimate]:
        """The trial's objectives in people's units, by the objective's name; those measured only."""
        if trial.measurement is None:
            return {}
        return {
            objective.name: METRICS[objective.metric].show(trial.measurement.metrics[objective.metric])
            for objective in self.goal.objectives
            if objective.metric in trial.measurement.metrics
        }


def view(
    study: StudyFile,
    trials: Iterable[StoredTrial],
    checks: Checks = NO_CHECKS,
    before: FrontView | None = None,
) -> FrontView:
    """The front of these trials under the study's own objectives. Raises GoalError for unknown ones.

    Where quality is asked, what failed or was not checked is on no front and dominates nothing. What a node
    measured that had drifted by then is left out.

    Args:
        before: of most of these trials: what has not changed is not worked out again.
    """
    ordered = tuple(sorted(trials, key=lambda trial: trial.number))
    goal = Goal.of(study.objectives)
    doubted = doubtful(ordered, goal)
    known = NOTHING if before is None else Promised(promises=before.promises, spread=before.spread)
    found = promised((trial for trial in ordered if trial.number not in doubted), known)
    seen = FrontView(
        study=study,
        goal=goal,
        trials=ordered,
        promises=found.promises,
        front=(),
        checks=checks,
        spread=found.spread,
    )
    mask = non_dominated(
        [
            losses(goal, standing) if not seen.guarded or seen.trusted(standing) else None
            for standing in seen.standing
        ]
    )
    front = tuple(standing for standing, on in zip(seen.standing, mask, strict=True) if on)
    return replace(seen, front=front)


def read_view(study_folder: Path) -> FrontView:
    """The front of what lies on disk. Raises RecordError where that is no study, or a damaged one."""
    seen = view(read_study(study_folder), read_trials(study_folder), read_checks(study_folder))
    return replace(seen, verified=latest_verifications(study_folder))


def losses(goal: Goal, trial: StoredTrial) -> tuple[float, ...] | None:
    """What a trial is judged by; None where it has no score: failed, or an objective missing."""
    if trial.measurement is None or trial.state is not State.MEASURED:
        return None
    try:
        return goal.losses(trial.measurement)
    except MissingObjective:
        return None


def held(study: StudyFile, trial: StoredTrial) -> bool | None:
    """Whether the SLO held in the replay that the trial's metrics are of; None where nothing was measured."""
    if trial.measurement is None or trial.measurement.value("slo_attainment") is None:
        return None
    # 1 - 0.05 and 57 / 60 differ by rounding alone.
    return all(missed <= 1e-9 for missed in violations(trial.measurement, study.slo).values())


def front_json(seen: FrontView) -> dict[str, Json]:
    """What `tuner front --json` prints and MLflow keeps as front.json."""
    return {
        "study": seen.study.name,
        "space": seen.study.space_name,
        "engine": seen.study.engine,
        "trace": seen.study.trace,
        "trace_digest": seen.study.trace_digest,
        "mode": str(mode(seen.study)),
        "measure": measure_of(seen.study).model_dump(),
        "speed": speed(seen.study),
        "offered_rps": offered_rps(seen.study),
        "sessions": str(sessions(seen.study)),
        "concurrency": concurrency(seen.study),
        "objectives": [
            {"name": objective.name, "direction": objective.direction, "unit": _unit(objective.metric)}
            for objective in seen.goal.objectives
        ],
        "recommended": None if seen.recommended is None else _trial_json(seen, seen.recommended),
        "quality_limits": seen.study.options.get(GUARDED),
        "refused": [_trial_json(seen, trial) for trial in seen.refused],
        "control": [_trial_json(seen, trial) for trial in seen.control],
        "front": [_trial_json(seen, trial) for trial in seen.front],
        "counts": dict(seen.counts),
        "failures": dict(seen.failures),
        "replays": asdict(replays(trial.measurement for trial in seen.trials)),
        "alike": [list(pair) for pair in seen.alike],
    }


def _trial_json(seen: FrontView, trial: StoredTrial) -> dict[str, Json]:
    metrics = {} if trial.measurement is None else published(trial.measurement)
    promise = seen.promise(trial.number)
    return {
        "number": trial.number,
        "state": trial.state.value,
        "config": None if trial.config is None else dict(trial.config),
        "objectives": _estimates_json(seen.objective_values(trial)),
        "measured_again": len(promise.fresh),
        "repeats": [repeat.number for repeat in promise.again],
        "first_objectives": _estimates_json(seen.objective_values(promise.first)),
        "metrics": {name: estimate.value for name, estimate in metrics.items()},
        "intervals": {name: [_end(e.low), _end(e.high)] for name, e in metrics.items()},
        "mode": None if trial.measurement is None else str(trial.measurement.mode),
        "slo_held": held(seen.study, trial),
        "capacity": _capacity_json(trial.measurement),
        "curve": [_rated_json(replay) for replay in curve(trial.measurement)],
        "disagreements": [] if trial.measurement is None else list(trial.measurement.disagreements),
        "warnings": [] if trial.measurement is None else list(trial.measurement.warnings),
        "cause": None if trial.cause is None else trial.cause.value,
        "reason": trial.reason,
        "quality": quality_json(seen.study, trial, seen.checks),
        "verified": verified_json(seen.verified.get(trial.number)),
        "is_control": trial.is_control,
        "on_front": trial.number in seen.numbers,
        "simulated": trial.ran.engine == "simulated",
    }


def _capacity_json(measurement: Measurement | None) -> dict[str, Json] | None:
    """Where the capacity lies; its value and interval are among the metrics. None: none was looked for."""
    found = bracket(measurement)
    if found is None:
        return None
    return {
        "text": capacity_text(measurement),
        "side": found.side or None,
        "held_rps": None if found.held is None else found.held.offered_rps,
        "failed_rps": None if found.failed is None else found.failed.offered_rps,
        "resolution": found.resolution,
    }


def _rated_json(replay: Rated) -> dict[str, Json]:
    point = replay.point
    shown = {METRICS[name].shown: replay.shown(name) for name in SERIES}
    return {
        "offered_rps": replay.rps,
        "speed": point.speed,
        "held": point.held,
        "requests": point.requests,
        "misses": point.misses,
        "cut_s": point.cut_s,
        "took_s": point.took_s,
        "saved_s": point.saved_s,
        "metrics": _estimates_json({name: estimate for name, estimate in shown.items() if estimate}),
    }


def _unit(metric: str) -> str:
    return METRICS[metric].shown_unit


def _estimates_json(estimates: Mapping[str, Estimate]) -> dict[str, Json]:
    return {
        name: {"value": estimate.value, "low": _end(estimate.low), "high": _end(estimate.high)}
        for name, estimate in estimates.items()
    }


def _end(value: float | None) -> float | None:
    """JSON has no infinity, and an interval that reaches there has no end."""
    return value if value is not None and math.isfinite(value) else None
