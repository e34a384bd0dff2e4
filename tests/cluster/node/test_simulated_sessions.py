"""Causal sessions in the simulated engine: refused turns, cuts, and a capacity whose rate nobody set."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import CapacityLoad, ClosedLoop, Limits, Load, Measured, Order
from cluster.traffic.formats.importing import import_trace
from cluster.traffic.make import Recipe, make_trace
from cluster.traffic.sessions import Sessions, turns
from cluster.traffic.trace import Request, Trace, assemble
from cluster.traffic.workload import Workload
from objectives.allowance import CUT, Allowance, misses_known
from objectives.measurement import Record
from objectives.slo import Slo
from tests.cluster.traffic.encoding import public

SLO = Slo(ttft_s=0.5, attainment=0.9)


def asked(at_s: float, prompt: int = 100, session: str = "s") -> Request:
    return Request(arrival_s=at_s, input_length=prompt, output_length=20, session_id=session, duration_s=1.0)


def talks() -> Trace:
    """About a hundred sessions of three turns, too many for one slow engine well before speed 8."""
    return make_trace(
        Recipe(requests=300, rate=10, input_mean=900, output_mean=120, turns=3, think_s=4, seed=5)
    )


def order(trace: Trace, *, load: Load = CapacityLoad(), speed: float = 1.0) -> Order:  # noqa: B008 - frozen
    return Order(
        study="s",
        number=0,
        model="meta-llama/Llama-3.1-8B",
        arguments={"max_model_len": 8192, "max_num_seqs": 16},
        environment={},
        workload=Workload(trace=trace, sessions=Sessions.CAUSAL, speed=speed),
        slo=SLO,
        load=load,
        gpus=1,
        accelerator="H100",
    )


def play(given: Order, folder: Path, allowance: Allowance | None = None) -> tuple[Record, ...]:
    with SimulatedEngine().serve(given, folder) as endpoint:
        return endpoint.play(given.workload, Limits(), allowance=allowance).records


def test_a_turn_leaves_although_its_predecessor_was_refused(tmp_path: Path) -> None:
    trace = assemble([asked(0, 10_000), asked(3, 10_000), asked(9), asked(4, session="other")])
    first, second, other, third = play(order(trace, speed=2.0), tmp_path)
    assert not first.ok
    assert not second.ok
    assert third.ok
    # A refused request ends as it comes: 3 - 1 s after the first, 9 - 4 s after the second, at any speed.
    assert [record.due_s for record in (first, second, third, other)] == [0.0, 2.0, 7.0, 2.0]


def test_a_session_of_any_length_may_be_refused_throughout(tmp_path: Path) -> None:
    trace = assemble([asked(2 * at, 10_000) for at in range(5_000)])
    records = play(order(trace), tmp_path)
    assert [record.due_s for record in records] == [float(at) for at in range(5_000)]


def test_a_cut_replay_is_the_whole_one_up_to_its_cut(tmp_path: Path) -> None:
    given = order(talks(), speed=6.0)
    whole = play(given, tmp_path)
    seen = play(given, tmp_path, Allowance.of(SLO, len(whole)))
    assert sum(record.error == CUT for record in seen) > 50
    assert [record.due_s for record in seen] == [record.due_s for record in whole]
    assert all(a == b for a, b in zip(seen, whole, strict=True) if a.error != CUT)


def test_a_capacity_with_cuts_is_that_of_whole_replays_and_its_rate_is_what_was_reached(
    tmp_path: Path,
) -> None:
    given = order(talks(), load=CapacityLoad(resolution=0.2, lowest=0.5, highest=16))
    outcome = run_trial(given, SimulatedEngine(), tmp_path)
    assert isinstance(outcome, Measured), outcome
    curve = outcome.measurement.curve
    assert any(point.cut_s is not None for point in curve)
    allowed = Allowance.of(SLO, len(given.workload.trace.requests)).misses
    for point in curve:
        whole = play(replace(given, workload=replace(given.workload, speed=point.speed)), tmp_path)
        assert point.held == (misses_known(whole, SLO, None) <= allowed)
        if point.held:
            dues = [record.due_s for record in whole]
            assert point.offered_rps == pytest.approx((len(dues) - 1) / (max(dues) - min(dues)))
    at = max((point for point in curve if point.held), key=lambda point: point.speed)
    assert outcome.measurement.value("capacity_speed") == pytest.approx(at.speed)
    assert outcome.measurement.value("capacity_rps") == pytest.approx(at.offered_rps)
    # Thinking is not scaled, so the rate grows by less than the speed.
    a_speed = [point.offered_rps / point.speed for point in curve if point.held and point.offered_rps]
    assert len(a_speed) > 1
    assert all(slower > faster for slower, faster in pairwise(a_speed))


@pytest.mark.parametrize("speed", [1.0, 1000.0])
def test_burstgpts_conversations_are_replayed_turn_after_turn(speed: float, tmp_path: Path) -> None:
    trace, _ = import_trace(public("burstgpt_excerpt.csv"), keep_text=True)
    records = play(order(trace, speed=speed), tmp_path)
    own = [
        record
        for record, request in zip(records, trace.requests, strict=True)
        if request.session_id == "8219e6e1-b261-4978-bf78-0e8703a5fcc1"
    ]
    assert all(record.ok for record in own)
    ends = [record.finished_s or 0.0 for record in own]
    # Asked at 537, 574 and 640 s, answered in 3, 2 and 3 s when that was recorded.
    thought = [later.due_s - end_s for later, end_s in zip(own[1:], ends[:-1], strict=True)]
    assert thought == pytest.approx([34.0, 64.0])


def test_a_replay_says_how_many_think_times_are_estimated(tmp_path: Path) -> None:
    trace = talks()
    later = sum(turn.after is not None for turn in turns(trace))
    given = order(trace, load=ClosedLoop(concurrency=4))
    with SimulatedEngine().serve(given, tmp_path) as endpoint:
        (said,) = endpoint.play(given.workload, Limits()).warnings
        assert endpoint.play_closed(given.workload, 4, Limits()).warnings == ()
    assert said.startswith(f"Think times of {later} of {later} turns are estimated")


def test_as_recorded_a_slow_engine_is_said_to_have_been_asked_before_it_had_answered(tmp_path: Path) -> None:
    given = order(talks(), speed=6.0)
    given = replace(given, workload=replace(given.workload, sessions=Sessions.RECORDED))
    with SimulatedEngine().serve(given, tmp_path) as endpoint:
        replay = endpoint.play(given.workload, Limits())
    early = sum(
        record.due_s < (replay.records[turn.after].finished_s or 0.0)
        for record, turn in zip(replay.records, turns(given.workload.trace), strict=True)
        if turn.after is not None
    )
    assert early > 10
    (said,) = replay.warnings
    assert said.startswith(f"{early} of ")
