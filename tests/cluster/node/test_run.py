"""The trial's steps and their outcomes, with a scripted engine at the one seam."""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from cluster.node.engine import LOG_NAME, Engine, EngineFailure, Replay
from cluster.node.phases import Phases
from cluster.node.run import run_trial
from cluster.order import Cause, Failed, Limits, Measured, Order, Ran
from cluster.traffic.request import Request
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.allowance import Allowance
from objectives.measurement import Record, Sample
from objectives.slo import Slo
from search_spaces.values import Json

TRACE = Trace(requests=tuple(Request(arrival_s=at, input_length=8, output_length=3) for at in (0.0, 0.5)))
ORDER = Order(
    study="s",
    number=3,
    model="m",
    arguments={},
    environment={},
    workload=Workload(trace=TRACE),
    slo=Slo(ttft_s=0.2),
    limits=Limits(log_bytes=200),
)
GOOD = Record(
    request=0,
    due_s=0.0,
    sent_s=0.0,
    chunk_s=(0.1, 0.2, 0.3),
    chunk_tokens=(1, 2, 3),
    finished_s=0.3,
    tokens_in=8,
    tokens_out=3,
    tokens_asked=3,
)
SAMPLES = (Sample(at_s=-0.1, running=0.0), Sample(at_s=1.0, running=0.0))
SERVED = Replay(records=(GOOD, replace(GOOD, request=1)), samples=SAMPLES)


def broken(error: str, request: int = 1) -> Record:
    return Record(request=request, due_s=0.5, sent_s=0.5, tokens_in=8, tokens_asked=3, error=error)


@dataclass
class ScriptedEngine:
    """Plays a replay, or fails at a step; notes the steps."""

    replay: Replay = SERVED
    fails_at: str = ""
    failure: EngineFailure = field(default_factory=lambda: EngineFailure(Cause.STUCK, "it hangs"))
    steps: list[str] = field(default_factory=list)
    name: Final = "scripted"
    version: str | None = "1.2"
    hardware: str | None = "abacus"
    command: tuple[str, ...] = ("serve", "m")
    effective: Mapping[str, Json] = field(
        default_factory=lambda: {"max_num_seqs": 4, "speculative_config": None}
    )
    launch: str = "warm"
    stages_s: Mapping[str, float] = field(default_factory=lambda: {"ready": 2.0})

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> "Iterator[ScriptedEngine]":
        (folder / LOG_NAME).write_text("started with hf_abcdefghijkl\n" + "and so on\n" * 100 + "ended\n")
        self.step("serve")
        try:
            yield self
        finally:
            self.steps.append("stop")

    def warm_up(self, workload: Workload) -> None:
        self.step("warm_up")

    def reset_caches(self) -> None:
        self.step("reset_caches")

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        self.step("play")
        return self.replay

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        self.step(f"play {concurrency} at once")
        return self.replay

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails_at:
            raise self.failure


def test_a_scripted_engine_is_an_engine() -> None:
    _: Engine = ScriptedEngine()


def test_the_steps_are_taken_in_order_and_the_engine_stops_last(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    run_trial(ORDER, engine, tmp_path)
    assert engine.steps == ["serve", "warm_up", "reset_caches", "play", "stop"]


def test_a_measured_trial_has_its_numbers_and_says_what_ran(tmp_path: Path) -> None:
    outcome = run_trial(ORDER, ScriptedEngine(), tmp_path)
    assert isinstance(outcome, Measured)
    assert outcome.measurement.requests == 2
    assert outcome.measurement.value("ttft_p50_s") == pytest.approx(0.1)
    ran = outcome.ran
    assert (ran.engine, ran.version, ran.hardware, ran.command) == (
        "scripted",
        "1.2",
        "abacus",
        ("serve", "m"),
    )
    assert ran.effective["max_num_seqs"] == 4
    assert ran.node
    assert ran.start_s is not None
    assert ran.replay_s is not None
    assert ran.total_s is not None
    assert ran.total_s >= ran.start_s + ran.replay_s
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_the_log_comes_back_cut_in_its_middle_and_without_secrets(tmp_path: Path) -> None:
    order = replace(ORDER, environment={"HF_TOKEN": "hf_abcdefghijkl"})
    log = run_trial(order, ScriptedEngine(), tmp_path).ran.log
    assert log.startswith("started with ***\n")
    assert log.endswith("ended\n")
    assert "cut out" in log
    assert len(log) < 300


@pytest.mark.parametrize("step", ["serve", "warm_up", "reset_caches", "play"])
def test_a_failure_at_any_step_is_an_outcome_and_the_engine_stops(tmp_path: Path, step: str) -> None:
    engine = ScriptedEngine(fails_at=step)
    outcome = run_trial(ORDER, engine, tmp_path)
    assert isinstance(outcome, Failed)
    assert (outcome.cause, outcome.reason) == (Cause.STUCK, "it hangs")
    assert outcome.ran.engine == "scripted"
    assert outcome.ran.log.endswith("ended\n")
    assert outcome.ran.total_s is not None
    assert engine.steps[-1] == (step if step == "serve" else "stop")


def test_a_failure_at_start_keeps_what_the_engine_told_of_itself(tmp_path: Path) -> None:
    told = Ran(engine="scripted", version="1.2", command=("serve", "--x"), effective={"max_num_seqs": 4})
    failure = EngineFailure(Cause.SETTINGS_DIFFER, "asked 8, in effect 4", ran=told)
    outcome = run_trial(ORDER, ScriptedEngine(fails_at="serve", failure=failure), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.ran.command == ("serve", "--x")
    assert outcome.ran.effective == {"max_num_seqs": 4}
    assert outcome.ran.node


def test_a_failure_keeps_what_had_been_seen(tmp_path: Path) -> None:
    failure = EngineFailure(Cause.DIED_UNDER_LOAD, "gone", records=(GOOD,), samples=SAMPLES)
    outcome = run_trial(ORDER, ScriptedEngine(fails_at="play", failure=failure), tmp_path)
    assert isinstance(outcome, Failed)
    assert (outcome.records, outcome.samples) == ((GOOD,), SAMPLES)
    assert outcome.ran.replay_s is not None


def test_a_late_client_voids_the_trial_and_blames_no_config(tmp_path: Path) -> None:
    late = Replay(records=(GOOD,), samples=SAMPLES, invalid="the client sent late")
    outcome = run_trial(ORDER, ScriptedEngine(replay=late), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.CLIENT_LATE
    assert outcome.reason.endswith("twice in a row: the client sent late")
    assert not outcome.cause.blames_config
    assert outcome.records == (GOOD,)


def test_what_a_reader_of_the_replay_must_know_comes_with_its_measurement(tmp_path: Path) -> None:
    replay = Replay(records=(GOOD,), samples=SAMPLES, warnings=("hits are counted twice",))
    outcome = run_trial(ORDER, ScriptedEngine(replay=replay), tmp_path)
    assert isinstance(outcome, Measured)
    assert "hits are counted twice" in outcome.measurement.warnings


def test_requests_that_fail_while_others_succeed_are_part_of_the_measurement(tmp_path: Path) -> None:
    replay = Replay(records=(GOOD, broken("HTTP 500: no")), samples=SAMPLES)
    outcome = run_trial(ORDER, ScriptedEngine(replay=replay), tmp_path)
    assert isinstance(outcome, Measured)
    assert outcome.measurement.failed_requests == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("HTTP 400: maximum context length is 8 tokens", Cause.INVALID_ARGUMENT),
        ("timed out 60.0 s after it was due", Cause.STUCK),
        ("HTTP 500: no", Cause.DIED_UNDER_LOAD),
        ("stream ended early, after 1 of 3 tokens", Cause.DIED_UNDER_LOAD),
    ],
)
def test_a_replay_without_one_success_is_a_failure(tmp_path: Path, error: str, cause: Cause) -> None:
    replay = Replay(records=(broken(error, 0), broken(error, 1)), samples=SAMPLES)
    outcome = run_trial(ORDER, ScriptedEngine(replay=replay), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.cause is cause
    assert outcome.reason == f"none of 2 requests succeeded; the first: {error}"


def test_an_engine_that_writes_no_log_does_no_harm(tmp_path: Path) -> None:
    class Silent(ScriptedEngine):
        @contextmanager
        def serve(
            self, order: Order, folder: Path, phases: Phases | None = None
        ) -> "Iterator[ScriptedEngine]":
            yield self

    assert run_trial(ORDER, Silent(), tmp_path).ran.log == ""
