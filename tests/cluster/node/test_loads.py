"""Which replays a trial plays, and its capacity against plays of every speed to their ends."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from cluster.node.engine import LOG_NAME, EngineFailure, Replay
from cluster.node.loads import COARSE, grid_of
from cluster.node.phases import Phases
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import CapacityLoad, Cause, ClosedLoop, Failed, FixedLoad, Limits, Measured, Order
from cluster.traffic.make import Recipe, make_trace
from cluster.traffic.request import Request
from cluster.traffic.sessions import Sessions
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.allowance import CUT, Allowance, cut_at_s, cut_records
from objectives.bar import Bar
from objectives.measurement import Estimate, Mode, Record, Sample
from objectives.slo import Slo
from search_spaces.values import Json

SLO = Slo(ttft_s=0.5, attainment=0.9)
TRACE = Trace(
    requests=tuple(Request(arrival_s=0.5 * at, input_length=8, output_length=3) for at in range(20))
)


def served(workload: Workload, ttft_s: Callable[[int], float]) -> list[Record]:
    records = []
    for index, request in enumerate(workload.trace.requests):
        due_s = request.arrival_s / workload.speed
        first_s = due_s + ttft_s(index)
        records.append(
            Record(
                request=index,
                due_s=due_s,
                sent_s=due_s,
                chunk_s=(first_s, first_s + 0.01, first_s + 0.02),
                chunk_tokens=(1, 2, 3),
                finished_s=first_s + 0.02,
                tokens_in=8,
                tokens_out=3,
                tokens_asked=3,
            )
        )
    return records


@dataclass
class Limited:
    """Serves in time up to a speed, and not beyond; notes what it was asked."""

    limit: float
    invalid: Iterator[str | None] = field(default_factory=lambda: itertools.repeat(None))
    dies_above: float = float("inf")
    speeds: list[float] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    name: Final = "limited"
    version: str | None = "1"
    hardware: str | None = "abacus"
    command: tuple[str, ...] = ()
    effective: Mapping[str, Json] = field(default_factory=dict)
    launch: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> "Iterator[Limited]":
        (folder / LOG_NAME).write_text("")
        self.steps.append("serve")
        yield self

    def warm_up(self, workload: Workload) -> None: ...

    def reset_caches(self) -> None:
        self.steps.append("reset")

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        self.steps.append("play")
        self.speeds.append(workload.speed)
        if workload.speed > self.dies_above:
            raise EngineFailure(Cause.DIED_UNDER_LOAD, "it died")
        records = served(workload, lambda _: 0.1 if workload.speed <= self.limit else 0.9)
        cut_s = None if allowance is None else cut_at_s(records, allowance)
        return Replay(
            records=tuple(records) if cut_s is None else cut_records(records, cut_s),
            samples=(),
            cut_s=cut_s,
            invalid=next(self.invalid),
        )

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        self.steps.append(f"closed {concurrency}")
        return Replay(records=tuple(served(workload, lambda _: 0.1)), samples=())


def order(load: FixedLoad | CapacityLoad | ClosedLoop, **changes: object) -> Order:
    given = Order(
        study="s",
        number=1,
        model="m",
        arguments={},
        environment={},
        workload=Workload(trace=TRACE, speed=2.0),
        slo=SLO,
        load=load,
    )
    return replace(given, **changes)  # type: ignore[arg-type]


def run(engine: Limited, load: FixedLoad | CapacityLoad | ClosedLoop, folder: Path) -> Measured:
    outcome = run_trial(order(load), engine, folder)
    assert isinstance(outcome, Measured), outcome
    return outcome


def test_a_fixed_load_is_played_at_the_workloads_speed_alone(tmp_path: Path) -> None:
    engine = Limited(limit=10)
    outcome = run(engine, FixedLoad(), tmp_path)
    assert engine.speeds == [2.0]
    assert outcome.measurement.mode is Mode.FIXED
    assert outcome.steps == ()
    assert [point.speed for point in outcome.measurement.curve] == [2.0]


def test_every_replay_starts_with_empty_caches_in_one_engine_start(tmp_path: Path) -> None:
    engine = Limited(limit=10)
    run(engine, CapacityLoad(), tmp_path)
    assert engine.steps[0] == "serve"
    assert engine.steps[1:] == ["reset", "play"] * (len(engine.steps) // 2)


@pytest.mark.parametrize("limit", [0.7, 2.0, 5.3, 31.0])
@pytest.mark.parametrize("guess", [None, 5.0])
def test_the_capacity_is_the_highest_speed_of_the_grid_that_holds(
    limit: float, guess: float | None, tmp_path: Path
) -> None:
    load = CapacityLoad(guess=guess)
    outcome = run(Limited(limit=limit), load, tmp_path)
    grid = grid_of(order(load), load)
    speeds = [grid.speed(k) for k in range(grid.first, grid.last + 1)]
    speed = max(speed for speed in speeds if speed <= limit)
    measured = outcome.measurement
    assert measured.mode is Mode.CAPACITY
    assert measured.value("capacity_speed") == pytest.approx(speed)
    # 20 requests, half a second apart at speed 1.
    assert measured.value("capacity_rps") == pytest.approx(2 * speed)
    assert measured.value("capacity_tokens_per_s") == pytest.approx(6 * speed)


def test_the_curve_has_every_replay_and_says_which_were_cut(tmp_path: Path) -> None:
    outcome = run(Limited(limit=5), CapacityLoad(), tmp_path)
    curve = outcome.measurement.curve
    assert [point.speed for point in curve] == sorted(point.speed for point in curve)
    assert len(curve) == 1 + len(outcome.steps)
    for point in curve:
        assert point.held == (point.speed <= 5) == (point.cut_s is None) == bool(point.metrics)
        assert point.offered_rps == pytest.approx(2 * point.speed)
        if not point.held:
            # Two of twenty may miss; the third does so at its due time and the SLO's half second.
            assert point.misses >= 3
            assert point.cut_s is not None
            assert point.cut_s == pytest.approx(2 * 0.5 / point.speed + 0.5)
            assert point.saved_s == pytest.approx(max(19 * 0.5 / point.speed - point.cut_s, 0.0))


def test_the_other_numbers_are_those_at_the_workloads_speed(tmp_path: Path) -> None:
    outcome = run(Limited(limit=5), CapacityLoad(), tmp_path)
    assert outcome.measurement.value("offered_rps") == pytest.approx(4.0)
    assert outcome.records[1].due_s == pytest.approx(0.25)


def test_a_config_that_holds_nowhere_has_a_capacity_of_zero_and_says_so(tmp_path: Path) -> None:
    measured = run(Limited(limit=0.1), CapacityLoad(), tmp_path).measurement
    assert measured.value("capacity_rps") == 0.0
    assert any("lowest speed" in warning for warning in measured.warnings)


def test_a_config_that_holds_everywhere_has_at_least_the_highest_speed(tmp_path: Path) -> None:
    measured = run(Limited(limit=1e9), CapacityLoad(), tmp_path).measurement
    assert measured.metrics["capacity_speed"].high is None
    assert any("at least" in warning for warning in measured.warnings)


def test_a_void_replay_is_played_again_and_said(tmp_path: Path) -> None:
    engine = Limited(limit=10, invalid=itertools.chain(["late"], itertools.repeat(None)))
    measured = run(engine, FixedLoad(), tmp_path).measurement
    assert engine.speeds == [2.0, 2.0]
    assert "played again: late" in measured.warnings[0]


def test_a_first_replay_that_stood_still_in_its_beginning_is_played_again_and_said(tmp_path: Path) -> None:
    trace = Trace(
        requests=tuple(Request(arrival_s=0.5 * at, input_length=8, output_length=3) for at in range(60))
    )

    class Compiling(Limited):
        def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
            first = not self.speeds
            self.speeds.append(workload.speed)
            # The second request finds the engine compiling for two seconds.
            return Replay(
                records=tuple(served(workload, lambda at: 2.0 if first and at == 1 else 0.1)), samples=()
            )

    engine = Compiling(limit=10)
    outcome = run_trial(
        order(FixedLoad(repeats=2), workload=Workload(trace=trace, speed=0.2)), engine, tmp_path
    )
    assert isinstance(outcome, Measured)
    assert engine.speeds == [0.2] * 3
    assert outcome.measurement.value("ttft_p99_s") is None  # 60 requests cannot bound it
    assert max(record.ttft_s for record in outcome.records) == pytest.approx(0.1)
    assert "played again" in outcome.measurement.warnings[0]


def test_a_compilation_that_comes_again_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    class Disturbed(Limited):
        def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
            return replace(super().play(workload, limits, allowance=allowance), disturbed="it compiled")

    engine = Disturbed(limit=10)
    measured = run(engine, FixedLoad(), tmp_path).measurement
    assert engine.speeds == [2.0, 2.0]
    assert [warning for warning in measured.warnings if "it compiled" in warning] == list(
        measured.warnings[:2]
    )


def test_an_slo_that_holds_although_the_client_was_late_holds(tmp_path: Path) -> None:
    invalid = itertools.chain([None], itertools.repeat("late"))
    engine = Limited(limit=1e9, invalid=invalid)
    measured = run(engine, CapacityLoad(), tmp_path).measurement
    assert measured.metrics["capacity_speed"].high is None
    assert any("held at speed" in warning and "late" in warning for warning in measured.warnings)
    assert len(engine.speeds) == len(set(engine.speeds))


def test_an_slo_broken_under_a_late_client_is_not_the_engines(tmp_path: Path) -> None:
    invalid = itertools.chain([None], itertools.repeat("late"))
    outcome = run_trial(order(CapacityLoad()), Limited(limit=2.5, invalid=invalid), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.CLIENT_LATE


def test_an_engine_that_dies_at_a_high_speed_leaves_what_was_played_before(tmp_path: Path) -> None:
    outcome = run_trial(order(CapacityLoad()), Limited(limit=100, dies_above=6), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.DIED_UNDER_LOAD
    assert outcome.steps[0].point.speed == 2.0
    assert all(step.point.held and step.point.metrics for step in outcome.steps)


@dataclass
class Miscounting(Limited):
    """Counts seven output tokens more than the client at speeds above the workload's."""

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        replay = super().play(workload, limits, allowance=allowance)
        tokens = float(sum(record.tokens_out for record in replay.records))
        last_s = max(record.due_s for record in replay.records) + 1.0
        said = tokens + (7 if workload.speed > 2.0 else 0)
        samples = (
            Sample(at_s=-0.1, generation_tokens_total=100.0),
            Sample(at_s=last_s, generation_tokens_total=100.0 + said),
        )
        return replace(replay, samples=samples)


def test_a_capacity_that_the_engine_contradicts_is_marked_with_the_speed(tmp_path: Path) -> None:
    marked = run(Miscounting(limit=2.3), CapacityLoad(guess=2.1), tmp_path).measurement
    whole = [point for point in marked.curve if point.cut_s is None and point.speed > 2.0]
    assert whole
    assert [said.split(": ")[0] for said in marked.disagreements] == [
        f"at speed {point.speed:.4g}" for point in whole
    ]
    assert all("60" in said and "67" in said for said in marked.disagreements)
    assert run(Miscounting(limit=2.3), FixedLoad(), tmp_path).measurement.disagreements == ()


@dataclass
class Unreleased(Limited):
    """Above its limit every other turn is still waiting for an answer when the replay is cut."""

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        replay = super().play(workload, limits, allowance=allowance)
        if replay.cut_s is None:
            return replay
        waiting = [record.request % 2 == 1 or record.due_s >= replay.cut_s for record in replay.records]
        records = [
            replace(record, due_s=replay.cut_s, sent_s=None, chunk_s=(), chunk_tokens=(), error=CUT)
            if waits
            else record
            for record, waits in zip(replay.records, waiting, strict=True)
        ]
        return replace(replay, records=tuple(records))


def test_turns_that_a_cut_left_unreleased_were_never_offered(tmp_path: Path) -> None:
    causal = Workload(trace=TRACE, speed=2.0, sessions=Sessions.CAUSAL)
    outcome = run_trial(order(CapacityLoad(), workload=causal), Unreleased(limit=2.5), tmp_path)
    assert isinstance(outcome, Measured)
    cut = [point for point in outcome.measurement.curve if point.cut_s is not None]
    assert cut
    for point in cut:
        # Every other request of two a second at speed 1.
        assert point.offered_rps == pytest.approx(1.0 * point.speed)


def test_a_closed_loop_is_marked_and_has_no_curve(tmp_path: Path) -> None:
    engine = Limited(limit=10)
    measured = run(engine, ClosedLoop(concurrency=7), tmp_path).measurement
    assert engine.steps == ["serve", "reset", "closed 7"]
    assert (measured.mode, measured.curve) == (Mode.CLOSED, ())


CHAT = make_trace(
    Recipe(
        requests=120,
        rate=4,
        input_mean=600,
        output_mean=80,
        shared_prefix=0.3,
        prefixes=4,
        block_tokens=16,
        seed=5,
    )
)
CONFIGS: list[dict[str, Json]] = [
    {"max_num_seqs": seqs, "max_num_batched_tokens": budget, "enable_prefix_caching": cache}
    for seqs, budget, cache in itertools.product((8, 32, 128), (512, 4096), (False, True))
]


@pytest.mark.parametrize("arguments", CONFIGS)
def test_bisection_with_cuts_finds_the_capacity_of_whole_replays_at_every_speed(
    arguments: dict[str, Json], tmp_path: Path
) -> None:
    slo = Slo(ttft_s=0.4, tpot_s=0.02, attainment=0.9)
    load = CapacityLoad(resolution=0.1, lowest=0.5, highest=8, guess=8.0)
    asked = order(
        load,
        model="meta-llama/Llama-3.1-8B-Instruct",
        arguments={"max_model_len": 8192, **arguments},
        workload=Workload(trace=CHAT, speed=4.0),
        slo=slo,
        gpus=1,
        accelerator="H100",
    )
    outcome = run_trial(asked, SimulatedEngine(), tmp_path)
    assert isinstance(outcome, Measured)

    grid = grid_of(asked, load)
    holds = {}
    with SimulatedEngine().serve(asked, tmp_path) as endpoint:
        for k in range(grid.first, grid.last + 1):
            endpoint.reset_caches()
            whole = endpoint.play(replace(asked.workload, speed=grid.speed(k)), asked.limits)
            met = sum(slo.met_by(record) for record in whole.records)
            holds[k] = met >= slo.attainment * len(whole.records) - 1e-9
    for point in outcome.measurement.curve:
        assert point.held == holds[grid.nearest(point.speed)]  # cut or not
    found = outcome.measurement.value("capacity_speed") or 0.0
    # Where the verdict flips more than once (scheduling is not monotone), any highest speed before a flip
    # is a capacity; where it flips once there is one answer.
    crossings = [grid.speed(k) for k in holds if holds[k] and not holds.get(k + 1, False)] or [0.0]
    assert any(found == pytest.approx(crossing) for crossing in crossings)
    assert all(step.records[0].error != CUT or step.point.cut_s is not None for step in outcome.steps)


def beaten(speed: float) -> CapacityLoad:
    """With a front that has this capacity."""
    return CapacityLoad(resolution=0.05, bars=(Bar(trial=7, speed=speed),))


def test_a_capacity_that_cannot_reach_the_front_is_not_looked_for_any_closer(tmp_path: Path) -> None:
    whole = run(Limited(limit=3.0), CapacityLoad(resolution=0.05), tmp_path).measurement
    engine = Limited(limit=3.0)
    found = run(engine, beaten(8.0), tmp_path).measurement
    assert len(engine.speeds) < len(whole.curve)
    held = max(point.speed for point in found.curve if point.held)
    failed = min(point.speed for point in found.curve if not point.held)
    assert held <= 3.0 < failed <= COARSE * held
    capacity = found.metrics["capacity_speed"]
    assert capacity.value == held
    assert capacity.high is None or capacity.high >= failed
    (said,) = [warning for warning in found.warnings if "any closer" in warning]
    assert "trial 7" in said
    assert f"{held:.4g} and not at {failed:.4g}" in said
    assert not [warning for warning in whole.warnings if "any closer" in warning]
    # What is compared at the workload's speed is the same.
    assert found.metrics["ttft_p95_s"] == whole.metrics["ttft_p95_s"]


@pytest.mark.parametrize("speed", [0.6, 2.9, 3.05])
def test_a_capacity_that_may_reach_the_front_is_looked_for_to_the_end(speed: float, tmp_path: Path) -> None:
    whole = run(Limited(limit=3.0), CapacityLoad(resolution=0.05), tmp_path).measurement
    found = run(Limited(limit=3.0), beaten(speed), tmp_path).measurement
    assert found.value("capacity_speed") == whole.value("capacity_speed")
    assert len(found.curve) == len(whole.curve)


def test_a_front_that_is_worse_in_another_objective_ends_no_search(tmp_path: Path) -> None:
    whole = run(Limited(limit=3.0), CapacityLoad(resolution=0.05), tmp_path).measurement
    for ttft_s, replays in ((0.05, "fewer"), (0.2, "as many")):
        bars = (Bar(trial=7, speed=8.0, losses={"ttft_p95": ttft_s}),)
        found = run(Limited(limit=3.0), CapacityLoad(resolution=0.05, bars=bars), tmp_path).measurement
        # Every TTFT is 0.1 s.
        assert (len(found.curve) < len(whole.curve)) == (replays == "fewer")


def test_an_slo_that_held_nowhere_yet_is_looked_for_down_to_the_lowest_speed(tmp_path: Path) -> None:
    whole = run(Limited(limit=0.1), CapacityLoad(), tmp_path).measurement
    found = run(Limited(limit=0.1), beaten(8.0), tmp_path).measurement
    assert found.value("capacity_speed") == whole.value("capacity_speed") == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_the_same_front_comes_of_trials_that_are_ended_and_of_whole_ones(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    limits = [rng.uniform(0.7, 20.0) for _ in range(12)]
    fronts = []
    for ends in (False, True):
        best: dict[int, Estimate] = {}
        for number, limit in enumerate(limits):
            bars = [Bar(trial=n, speed=found.low) for n, found in best.items() if found.low] if ends else []
            measurement = run(Limited(limit=limit), CapacityLoad(bars=tuple(bars)), tmp_path).measurement
            best[number] = measurement.metrics["capacity_speed"]
        top = max(found.value for found in best.values())
        fronts.append({number: found for number, found in best.items() if found.value == top})
    assert fronts[0] == fronts[1]
