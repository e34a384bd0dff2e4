"""What a study's searches for capacities cost, and what is saved by beginning and ending them well.

    python -m benchmarks.cheaper_trials [--space 8b] [--trials 40] [--sampler tpe] [--seed 0] [--fixed]

A study of that sampler on the simulated engine, which is off the tables that predictions are made of. The
same configs in the same order are then searched for their capacities in other ways: begun at the control's
capacity, at the median of all before, at those of the configs most like it (`tuner.first_speed`); and ended
as soon as they cannot reach the front any more (`tuner.bars`). Times are the engine's own, of replays alone:
its starts are not in them. The front at the end must be the same whether searches are ended or not; of the
others the capacities are compared.

--fixed: besides, the same configs at the workload's speed alone, for goodput and TPOT p95. When in each
replay was it certain, by count, that the trial could not reach the front: so many requests have missed the
SLO that the rest, all met, makes no better goodput, and so many took so long that the percentile is no
better either, both by the intervals' worst ends? Nothing is cut there today; this is what it would save.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.searching.reality import Reality
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.speculation import Acceptance
from cluster.order import FixedLoad, Measured, Order, Outcome
from cluster.traffic.workload import Workload
from objectives.allowance import missed_at_s
from objectives.front import non_dominated
from objectives.goal import Goal
from objectives.measurement import Measurement, Record
from objectives.slo import Slo
from search_spaces.load import load_space
from search_spaces.space import Config, Space
from tuner.bars import barred
from tuner.first_speed import begun_at, first_speed
from tuner.front import FrontView, losses, view
from tuner.records import StoredTrial, StudyFile
from tuner.sampler import Guidance, Scored, Search, Unscored, sampler_named
from tuner.sampler.prior import predictor
from tuner.session import SearchRequest, new_study, orders
from tuner.traffic import study_trace

REALITY = Reality(
    bandwidth=0.85,
    compute=0.8,
    step=1.3,
    acceptance={"eagle3": Acceptance(rate=0.62), "ngram": Acceptance(rate=0.6, found=0.25)},
)
_LOOKS = 200
"""Times in a replay at which it is asked whether it could be cut."""

Guess = Callable[[Sequence[StoredTrial], Order], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How capacities are looked for."""

    name: str
    guess: Guess
    ends: bool = False
    """Whether once the front is out of reach."""


def of_the_control(trials: Sequence[StoredTrial], order: Order) -> float | None:
    """Its capacity."""
    return first_speed(trials[:1], order)


def median(trials: Sequence[StoredTrial], order: Order) -> float | None:
    """Of all capacities so far."""
    found = [trial.measurement.value("capacity_speed") for trial in trials if trial.measurement]
    speeds = [speed for speed in found if speed]
    return statistics.median(speeds) if speeds else None


LIKE = Way(name="most like it", guess=first_speed)
WAYS = (
    Way(name="the control's", guess=of_the_control),
    Way(name="median of all", guess=median),
    LIKE,
    Way(name="most like it, ended", guess=first_speed, ends=True),
)


class Bench:
    """One space's study, played on the simulated engine."""

    def __init__(self, space: Space) -> None:
        trace, origin = study_trace(space, None)
        self.space = space
        self.workload = Workload(trace=trace, speed=space.traffic.speed, tokenizer=space.model)
        self.goal = Goal.of(space.objectives)
        asked = SearchRequest(engine="simulated", trials=1)
        self.study: StudyFile = new_study("bench", asked, space, self.goal, self.workload, origin)
        self.order = orders(self.study, space, self.workload, simulated=True)
        device = "H100-80G" if space.resources.gpus else "cpu"
        self._engine = SimulatedEngine(REALITY.assumptions(device, 0.0))

    def played(self, order: Order) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            return run_trial(order, self._engine, Path(folder))

    def trial(
        self, config: Config | None, number: int, before: Sequence[StoredTrial], way: Way
    ) -> StoredTrial:
        order = begun_at(self.order(number, config), before)
        order = replace(order, load=replace(order.load, guess=way.guess(before, order)))  # type: ignore[call-arg]
        if way.ends and config is not None:
            order = barred(order, self.seen(before))
        return self._stored(order, self.played(order), config)

    def seen(self, trials: Iterable[StoredTrial]) -> FrontView:
        return view(self.study, trials)

    def _stored(self, order: Order, outcome: Outcome, config: Config | None) -> StoredTrial:
        now = datetime.now(UTC)
        return StoredTrial.of(
            order,
            outcome,
            config=None if config is None else config.values,
            is_control=config is None,
            attempts=1,
            started=now,
            finished=now,
            tuner_version="benchmark",
            secrets=(),
        )


def study(
    bench: Bench, sampler: str, seed: int, trials: int
) -> tuple[list[Config | None], list[StoredTrial]]:
    """The configs that a study of so many trials meets, the control first, and what it measured."""
    done = [bench.trial(None, 0, (), LIKE)]
    configs: list[Config | None] = [None]
    predict = predictor(bench.space, bench.workload, bench.study.slo)
    with tempfile.TemporaryDirectory() as folder:
        search = Search.open(
            space=bench.space,
            goal=bench.goal,
            study="bench",
            storage=f"sqlite:///{folder}/study.sqlite",
            recipe=sampler_named(sampler),
            seed=seed,
            guidance=Guidance(predict=predict),
        )
        search.add(0, None, _verdict(bench.goal, done[0]), is_control=True)
        while len(done) < trials:
            proposal = search.ask()
            done.append(bench.trial(proposal.config, proposal.number, done, LIKE))
            configs.append(proposal.config)
            search.tell(proposal.number, _verdict(bench.goal, done[-1]))
    return configs, done


def _verdict(goal: Goal, trial: StoredTrial) -> Scored | Unscored:
    worth = losses(goal, trial)
    if worth is None:
        return Unscored(cause=trial.cause, reason=trial.reason or "")
    return Scored(losses=worth, violations={})


def capacities(bench: Bench, configs: Sequence[Config | None], like: list[StoredTrial]) -> None:
    """Print what each way costs."""
    print("| begun at | replays a trial | s a trial | of these beyond the first replay | other capacities |")
    print("| --- | --- | --- | --- | --- |")
    found: dict[str, list[StoredTrial]] = {}
    for way in WAYS:
        trials = found[way.name] = like if way is LIKE else []
        for number, config in enumerate(configs[len(trials) :], len(trials)):
            trials.append(bench.trial(config, number, trials, way))
        curves = [trial.measurement.curve for trial in trials if trial.measurement]
        whole_s = sum(point.took_s for curve in curves for point in curve)
        n, own = len(curves), bench.workload.speed
        first_s = sum(point.took_s for curve in curves for point in curve if point.speed == own)
        other = sum(
            _speed(one) != _speed(same) for one, same in zip(trials, found[WAYS[0].name], strict=True)
        )
        replays, mean_s, later_s = sum(map(len, curves)) / n, whole_s / n, (whole_s - first_s) / n
        print(f"| {way.name} | {replays:.2f} | {mean_s:.1f} | {later_s:.1f} | {other} of {n} |", flush=True)
    fronts = [bench.seen(found[way.name]).numbers for way in WAYS[-2:]]
    ended = sum("not looked for any closer" in " ".join(_warnings(trial)) for trial in found[WAYS[-1].name])
    print(f"{ended} searches ended; fronts {fronts[0]} without, {fronts[1]} with")


def _speed(trial: StoredTrial) -> float | None:
    return trial.measurement.value("capacity_speed") if trial.measurement else None


def _warnings(trial: StoredTrial) -> tuple[str, ...]:
    return trial.measurement.warnings if trial.measurement else ()


def fixed(bench: Bench, configs: Sequence[Config | None]) -> None:
    """Print what cuts of a fixed load's replays would save."""
    goal = Goal.of(("goodput", "tpot_p95"))
    slo = bench.study.slo
    done: list[Measurement] = []
    whole_s = cut_s = 0.0
    cut = 0
    for number, config in enumerate(configs):
        outcome = bench.played(replace(bench.order(number, config), load=FixedLoad()))
        if not isinstance(outcome, Measured):
            continue
        took_s = outcome.measurement.curve[0].took_s
        at_s = _certain_at_s(outcome.records, slo, _worst(done, goal))
        whole_s, cut_s, cut = whole_s + took_s, cut_s + min(at_s, took_s), cut + (at_s < took_s)
        done.append(outcome.measurement)
    share = 1 - cut_s / whole_s
    print(f"fixed load: {len(done)} replays, {whole_s / len(done):.1f} s each; {cut} could have been cut,")
    print(f"saving {share:.1%} of the replays' seconds, {(whole_s - cut_s) / len(done):.1f} s a trial")


def _worst(done: Sequence[Measurement], goal: Goal) -> list[tuple[float, float]]:
    """(goodput, TPOT p95) of the front at the worst ends; members without them are left out."""
    on = non_dominated([goal.losses(one) for one in done]) if done else []
    front = [one for one, is_on in zip(done, on, strict=True) if is_on]
    ends = [(one.metrics["goodput_rps"].low, one.metrics["tpot_p95_s"].high) for one in front]
    return [(goodput, tpot_s) for goodput, tpot_s in ends if goodput is not None and tpot_s is not None]


def _certain_at_s(records: Sequence[Record], slo: Slo, front: Sequence[tuple[float, float]]) -> float:
    """When the first member of the front is certain to be better in both; infinite where none ever is."""
    n, ends_s = len(records), max(max(record.due_s, *record.chunk_s[-1:]) for record in records)
    first_due_s, last_due_s = min(r.due_s for r in records), max(r.due_s for r in records)
    missed_s = [at_s for record in records if (at_s := missed_at_s(record, slo)) is not None]
    # The p95 of n values is exceeded by no more than these; with fewer than n values by no more either.
    above = math.floor(0.05 * (n - 1))
    for look in range(1, _LOOKS):
        now_s = ends_s * look / _LOOKS
        waiting = any(not record.chunk_s or record.chunk_s[0] > now_s for record in records)
        length_s = max(last_due_s, now_s if waiting else 0.0) - first_due_s
        goodput = (n - sum(at_s <= now_s for at_s in missed_s)) / length_s
        tpot_s = sorted((_tpot_so_far_s(record, now_s) for record in records), reverse=True)[above]
        if any(goodput <= theirs and tpot_s >= theirs_s for theirs, theirs_s in front):
            return now_s
    return math.inf


def _tpot_so_far_s(record: Record, now_s: float) -> float:
    """The least that the request's TPOT can come to."""
    if not record.chunk_s or record.chunk_s[0] > now_s:
        return 0.0
    to_follow = max(record.tokens_asked - record.chunk_tokens[0], 1)
    return (min(now_s, record.chunk_s[-1]) - record.chunk_s[0]) / to_follow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--space", default="8b")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true")
    asked = parser.parse_args()
    bench = Bench(load_space(f"spaces/{asked.space}.yaml"))
    configs, done = study(bench, asked.sampler, asked.seed, asked.trials)
    print(f"{asked.space}: {len(configs)} trials of {asked.sampler}, seed {asked.seed}")
    capacities(bench, configs, done)
    if asked.fixed:
        fixed(bench, configs)


if __name__ == "__main__":
    main()
