"""What a trial on its node tells of itself."""

from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from cluster.node.engine import Engine, EngineFailure
from cluster.node.phases import Phases
from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import CapacityLoad, Cause, ClosedLoop, Failed, FixedLoad, Measured, Order, Outcome, Probe
from cluster.phase import Phase, PhaseName
from tests.cluster.node.test_loads import Limited, order
from tests.cluster.node.test_run import ORDER, ScriptedEngine

SERVED = Phase(name=PhaseName.REPLAYING, replay=1, speed=1.0, requests=20)


def heard(order: Order, engine: Engine, folder: Path) -> tuple[list[Phase], Outcome]:
    phases: list[Phase] = []
    outcome = run_trial(order, engine, folder, Phases(phases.append))
    return phases, outcome


def test_a_simulated_trial_tells_each_of_its_replays_in_the_order_they_were_played(tmp_path: Path) -> None:
    asked = order(
        CapacityLoad(resolution=0.2, lowest=0.5, highest=4),
        model="meta-llama/Llama-3.1-8B-Instruct",
        arguments={"max_model_len": 8192},
        gpus=1,
        accelerator="H100",
    )
    phases, outcome = heard(asked, SimulatedEngine(), tmp_path)
    assert isinstance(outcome, Measured)
    assert [phase.name for phase in phases[:2]] == [PhaseName.STARTING, PhaseName.WARMING_UP]
    assert phases[-2:] == [Phase(name=PhaseName.STOPPING), Phase(name=PhaseName.SUMMARISING)]
    replays = phases[2:-2]
    assert {phase.name for phase in replays} == {PhaseName.REPLAYING}
    assert [phase.replay for phase in replays] == list(range(1, len(replays) + 1))
    # What was measured says at which speeds, the first one's being the workload's.
    assert [phase.speed for phase in replays] == [2.0, *(step.point.speed for step in outcome.steps)]
    assert len(replays) > 1
    assert {phase.requests for phase in replays} == {20}


def test_a_replay_that_was_void_counts_as_one_and_is_told_again(tmp_path: Path) -> None:
    once_late = Limited(limit=100, invalid=chain(["the client was late"], repeat(None)))
    phases, _ = heard(order(FixedLoad()), once_late, tmp_path)
    replays = [(phase.replay, phase.speed) for phase in phases if phase.name is PhaseName.REPLAYING]
    assert replays == [(1, 2.0), (2, 2.0)]


def test_a_closed_loop_has_no_speed(tmp_path: Path) -> None:
    phases, _ = heard(order(ClosedLoop(concurrency=4)), Limited(limit=100), tmp_path)
    assert [phase.speed for phase in phases if phase.name is PhaseName.REPLAYING] == [None]


def test_what_a_probe_asks_comes_after_the_replays(tmp_path: Path) -> None:
    asked = replace(ORDER, probe=Probe(prompts=((1, 2),), tokens=4))
    phases, _ = heard(asked, ScriptedEngine(), tmp_path)
    assert [phase.name for phase in phases] == [
        PhaseName.STARTING,
        PhaseName.WARMING_UP,
        PhaseName.REPLAYING,
        PhaseName.PROBING,
        PhaseName.STOPPING,
        PhaseName.SUMMARISING,
    ]


def test_an_engine_that_fails_is_stopped_too_and_one_that_never_came_up_is_not(tmp_path: Path) -> None:
    failure = EngineFailure(Cause.DIED_UNDER_LOAD, "it died")
    phases, outcome = heard(ORDER, ScriptedEngine(fails_at="play", failure=failure), tmp_path)
    assert isinstance(outcome, Failed)
    assert [phase.name for phase in phases[-3:]] == [
        PhaseName.REPLAYING,
        PhaseName.STOPPING,
        PhaseName.SUMMARISING,
    ]
    phases, _ = heard(ORDER, ScriptedEngine(fails_at="serve", failure=failure), tmp_path)
    assert [phase.name for phase in phases] == [PhaseName.STARTING, PhaseName.SUMMARISING]


def test_how_far_a_replay_is_is_told_of_a_replay_alone_and_nothing_twice() -> None:
    told: list[Phase] = []
    phases = Phases(told.append)
    phases.ended(3)
    phases.starting("importing")
    phases.starting("importing")
    phases.ended(3)
    phases.replaying(1, speed=1.0, requests=20)
    phases.ended(3)
    phases.ended(3)
    phases.ended(5)
    assert told == [
        Phase(name=PhaseName.STARTING, stage="importing"),
        SERVED,
        replace(SERVED, ended=3),
        replace(SERVED, ended=5),
    ]
    assert all(SERVED.is_further(one) for one in told[1:])
    assert not SERVED.is_further(replace(SERVED, replay=2))
    assert not SERVED.is_further(told[0])


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        (Phase(name=PhaseName.STARTING), "starting the engine"),
        (Phase(name=PhaseName.STARTING, stage="loading weights"), "starting the engine: loading weights"),
        (Phase(name=PhaseName.PROBING), "checking quality"),
        (SERVED, "replay 1 at speed 1"),
        (replace(SERVED, replay=3, speed=1.2537, ended=9), "replay 3 at speed 1.25, 45%"),
        (replace(SERVED, speed=None, ended=0), "replay 1, 0%"),
        (replace(SERVED, ended=25), "replay 1 at speed 1, 100%"),
    ],
)
def test_a_phase_in_words(phase: Phase, text: str) -> None:
    assert phase.text == text
