"""A replay in several processes is one replay: same requests, one clock, one watch, one verdict.

Against the scripted server, which lives in the test's own process.
"""

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.node.board import Board
from cluster.node.processes import Process, descendants, is_running
from cluster.node.replay import ReplayResult, run_loop
from cluster.node.shards import CHUNK_S, REQUEST_S, SHARE, processes_for, ready, split
from cluster.node.watch import Stop, Stopped
from cluster.traffic.workload import Prompt
from objectives.allowance import CUT, Allowance, misses_known
from objectives.slo import Slo
from tests.cluster.node.fake_server import Behave, FakeServer, Script, prompt

SLACK_S = 0.25


def healthy() -> None:
    return None


def shards_running() -> tuple[Process, ...]:
    return tuple(one for one in descendants(os.getpid()) if not one.zombie)


def play(
    behave: Behave | Script,
    prompts: Sequence[Prompt],
    *,
    processes: int = 2,
    stuck_s: float = 30.0,
    alive: Callable[[], str | None] = healthy,
    allowance: Allowance | None = None,
) -> tuple[ReplayResult, FakeServer]:
    async def main() -> tuple[ReplayResult, FakeServer]:
        async with FakeServer(behave) as server:
            with ready(
                prompts,
                processes=processes,
                base_url=server.url,
                model="m",
                stuck_s=stuck_s,
                alive=alive,
                allowance=allowance,
            ) as playing:
                result = await playing()
            return result, server

    result, server = run_loop(main())
    assert shards_running() == ()
    return result, server


def until_so_many(requests: int, script: Script) -> tuple[Behave, asyncio.Event]:
    """This behaviour, and an event that comes when so many requests have arrived."""
    event = asyncio.Event()

    def behave(number: int) -> Script:
        if number == requests - 1:
            event.set()
        return script

    return behave, event


# --- who plays what


@st.composite
def traffic(draw: st.DrawFn) -> list[Prompt]:
    """Prompts in the trace's order, some of which wait for an earlier one."""
    prompts: list[Prompt] = []
    for request in range(draw(st.integers(0, 25))):
        after = draw(st.none() | st.integers(0, request - 1)) if request else None
        prompts.append(replace(prompt(request, due_s=draw(st.floats(0, 10))), after=after))
    return prompts


@given(traffic(), st.integers(1, 5))
def test_each_prompt_is_played_once_by_the_process_that_plays_the_one_it_waits_for(
    prompts: list[Prompt], processes: int
) -> None:
    shares = split(prompts, processes)
    assert sorted(one.request for share in shares for one in share) == [one.request for one in prompts]
    assert all(shares)
    for share in shares:
        there = {one.request for one in share}
        assert all(one.after in there for one in share if one.after is not None)
        assert [one.request for one in share] == sorted(there)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(1, 6))
def test_independent_prompts_are_dealt_out_in_turn_by_due_time(due_s: list[float], processes: int) -> None:
    prompts = [prompt(number, due_s=at_s) for number, at_s in enumerate(due_s)]
    by_due = sorted(prompts, key=lambda one: one.due_s)
    for place, share in enumerate(split(prompts, processes)):
        assert sorted(share, key=lambda one: one.due_s) == by_due[place::processes]


def test_steady_traffic_needs_as_many_processes_as_its_cost_fills() -> None:
    def needed(rate: int, tokens: int) -> int:
        steady = [prompt(number, due_s=number / rate, max_tokens=tokens) for number in range(rate * 20)]
        return processes_for(steady, cores=1000)

    # By hand: 40 requests/s of 470 tokens cost 40 · (470 · 20 µs + 500 µs) = 0.396 cores, of 0.4 a process.
    assert (CHUNK_S, REQUEST_S, SHARE) == (20e-6, 500e-6, 0.4)
    assert needed(40, 470) == 1
    assert needed(40, 480) == 2  # 0.404
    assert needed(400, 470) == 10  # 3.96
    assert needed(800, 1) == 2  # requests alone: 0.416


def test_a_burst_counts_as_the_ten_seconds_around_it_and_no_less() -> None:
    # 10,000 requests at once: 10,000 · (100 · 20 µs + 500 µs) = 25 s of CPU in 10 s, 2.5 cores, 7 processes.
    burst = [prompt(number, due_s=500.0, max_tokens=100) for number in range(10_000)]
    quiet = [prompt(10_000 + number, due_s=float(number)) for number in range(1000)]
    assert processes_for([*quiet, *burst], cores=64) == 7


def test_half_of_the_cores_are_left_to_the_engine() -> None:
    burst = [prompt(number, max_tokens=1000) for number in range(10_000)]
    assert [processes_for(burst, cores=cores) for cores in (1, 2, 4, 9)] == [1, 1, 2, 4]
    assert processes_for([], cores=64) == 1


# --- the same replay


def test_one_process_is_this_one() -> None:
    with ready(
        [prompt()], processes=1, base_url="http://127.0.0.1:1", model="m", stuck_s=1, alive=healthy
    ) as playing:
        assert shards_running() == ()
        (record,) = run_loop(playing()).records
    assert record.error is not None
    assert record.error.startswith("connection failed")


def test_requests_of_all_processes_leave_when_due_on_one_clock_and_come_back_in_order() -> None:
    prompts = [prompt(number, due_s=0.02 * ((7 * number) % 30), max_tokens=3) for number in range(30)]
    # Two conversations: 4 → 30 → 32 and 5 → 31, each turn 0.1 s after the answer before it.
    prompts += [
        replace(prompt(request, max_tokens=2), after=after, think_s=0.1)
        for request, after in ((30, 4), (31, 5), (32, 30))
    ]
    result, server = play(Script(gap_s=0.01), prompts, processes=3)
    records = result.records
    assert [record.request for record in records] == list(range(33))
    assert all(record.ok for record in records)
    assert (result.stopped, result.inferred) == (None, 0)
    for record, sent in zip(records[:30], prompts[:30], strict=True):
        assert record.due_s == sent.due_s
    for turn in prompts[30:]:
        assert turn.after is not None
        ended_s = records[turn.after].finished_s
        assert ended_s is not None
        assert records[turn.request].due_s == pytest.approx(ended_s + 0.1)
    arrived_s = {arrival.body["seed"]: arrival.at_s - result.zero_s for arrival in server.arrivals}
    assert len(server.arrivals) == len(arrived_s) == 33
    for record in records:
        # The server's clock counts milliseconds, and may stand a few behind.
        assert -0.02 < arrived_s[record.request] - record.due_s < SLACK_S
        assert 0 <= record.lateness_s < SLACK_S


def test_a_prompt_that_waits_for_one_that_is_not_there_is_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="prompt 1 waits for 9"):
        play(Script(), [prompt(), replace(prompt(1), after=9)])


# --- one watch


def test_misses_of_all_processes_are_held_against_one_allowance() -> None:
    # Every request waits for its first token for good, so each of the two processes misses every 0.2 s.
    prompts = [prompt(number, due_s=0.1 * number) for number in range(200)]
    allowance = Allowance(Slo(ttft_s=0.3), misses=7)
    result, server = play(Script(hang_after=0), prompts, allowance=allowance)
    assert result.stopped is Stopped.CUT
    # The eighth is request 7, due at 0.7 s and late at 1.0 s.
    assert result.cut_s is not None
    assert 1.0 <= result.cut_s < 1.0 + 3 * SLACK_S
    assert {record.error for record in result.records} == {CUT}
    assert misses_known(result.records, allowance.slo, result.cut_s) >= 8
    assert len(server.arrivals) < 30
    assert all(record.sent_s is None or record.sent_s <= result.cut_s for record in result.records)


def test_a_process_whose_requests_all_wait_is_not_stuck_while_another_ones_go_on() -> None:
    # Requests 0, 2, 4 … are one process's: they get nothing for 1.2 s; the others stream all the while.
    prompts = [prompt(number, due_s=0.01 * number, max_tokens=40) for number in range(8)]

    def behave(body_seed: int) -> Script:
        return Script(before_s=1.2) if body_seed % 2 == 0 else Script(gap_s=0.04)

    result, _ = play(behave, prompts, stuck_s=0.6)
    assert result.stopped is None
    assert all(record.ok for record in result.records)


def test_no_token_for_any_process_stops_them_all_as_stuck() -> None:
    result, _ = play(Script(hang_after=1), [prompt(number) for number in range(4)], stuck_s=0.5)
    assert result.stopped is Stopped.STUCK
    assert result.reason == "no token for any of 4 request(s) in flight for 0.5 s"
    assert {record.error for record in result.records} == {f"the replay was stopped: {result.reason}"}
    assert all(len(record.chunk_s) == 1 for record in result.records)


def test_an_engine_that_dies_with_the_last_requests_of_a_process_is_found_dead() -> None:
    async def main() -> ReplayResult:
        hanging, all_there = until_so_many(4, Script(hang_after=1))
        server = FakeServer(hanging)
        await server.__aenter__()
        died_s = math.inf

        def alive() -> str | None:
            return "gone" if time.perf_counter() > died_s + 0.5 else None

        async def die() -> None:
            nonlocal died_s
            await all_there.wait()
            await server.die()
            died_s = time.perf_counter()

        prompts = [prompt(number) for number in range(4)]
        with ready(prompts, processes=2, base_url=server.url, model="m", stuck_s=30, alive=alive) as playing:
            result, _ = await asyncio.gather(playing(), die())
        return result

    result = run_loop(main())
    assert (result.stopped, result.reason) == (Stopped.DEAD, "gone")


# --- each process is judged, and none is left


def test_one_process_that_was_late_makes_the_replay_void() -> None:
    prompts = [prompt(number, due_s=0.02 * number) for number in range(100)]

    async def main() -> ReplayResult:
        async with FakeServer(Script()) as server:
            with ready(
                prompts, processes=2, base_url=server.url, model="m", stuck_s=30, alive=healthy
            ) as playing:
                late = shards_running()[0].pid

                async def hold_up() -> None:
                    await asyncio.sleep(0.4)
                    os.kill(late, signal.SIGSTOP)
                    await asyncio.sleep(1.0)
                    os.kill(late, signal.SIGCONT)

                result, _ = await asyncio.gather(playing(), hold_up())
        return result

    result = run_loop(main())
    assert result.invalid is not None
    assert result.invalid.startswith("client process ")
    assert "the client sent late" in result.invalid
    assert all(record.ok for record in result.records)


def test_a_process_that_is_killed_makes_the_replay_void_and_the_others_end() -> None:
    async def main() -> ReplayResult:
        hanging, all_there = until_so_many(4, Script(hang_after=0))
        async with FakeServer(hanging) as server:
            with ready(
                [prompt(number) for number in range(4)],
                processes=2,
                base_url=server.url,
                model="m",
                stuck_s=30,
                alive=healthy,
            ) as playing:

                async def kill() -> None:
                    await all_there.wait()
                    os.kill(shards_running()[0].pid, signal.SIGKILL)

                result, _ = await asyncio.gather(playing(), kill())
        return result

    result = run_loop(main())
    assert result.invalid is not None
    assert "ended with status -9" in result.invalid
    assert all(not record.ok for record in result.records)
    assert len(result.records) == 4
    assert shards_running() == ()


PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from cluster.node.shards import ready
from tests.cluster.node.fake_server import prompt
with ready([prompt(0), prompt(1)], processes=2, base_url="http://127.0.0.1:1", model="m",
           stuck_s=1, alive=lambda: None):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        shards = descendants(parent.pid)
        assert len(shards) == 2
        parent.send_signal(number)
        parent.wait(30)
    deadline = time.monotonic() + 30
    while any(is_running(one.pid, one.started) for one in shards):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_board_says_to_every_process_what_was_written_on_it() -> None:
    board = Board.new(2)
    other = Board(os.dup(board.descriptor), 2)
    assert (other.zero_s, other.stop, other.ready, other.broken_s) == (None, None, False, -math.inf)
    board.zero_s = 12.5
    board.be_ready(0)
    board.report(0, in_flight=3, progress_s=1.5, misses=2)
    assert not other.ready
    board.be_ready(1)
    board.report(1, in_flight=4, progress_s=2.5, misses=5)
    board.report_broken(1, 2.0)
    assert (other.zero_s, other.ready) == (12.5, True)
    assert (other.in_flight, other.progress_s, other.misses, other.broken_s) == (7, 2.5, 7, 2.0)
    stop = Stop(kind=Stopped.STUCK, reason="kein Token für 3 Anfragen", at_s=3.25)
    board.stop = stop
    assert other.stop == stop
    other.close()
    board.close()
