"""Open loop, to the letter: when requests leave, what becomes of them, when a replay is void or stopped.

Against a scripted server in the same event loop. Times have slack for a machine that others use too; what
must hold is separated by more than the slack.
"""

import asyncio
import gc
import math
import resource
import time
from collections.abc import Callable, Sequence

import numpy as np
import orjson
import pytest

from cluster.node.client import Call, connected, request_body
from cluster.node.replay import ReplayResult, closed_loop, replay, run_loop
from cluster.node.watch import Stopped
from cluster.traffic.trace import Message
from cluster.traffic.workload import Prompt
from objectives.allowance import CUT, Allowance, misses_known
from objectives.measurement import Record
from objectives.slo import Slo
from objectives.statistics import quantile
from tests.cluster.node.fake_server import Behave, FakeServer, Script, events, prompt

SLACK_S = 0.25


def healthy() -> None:
    return None


async def played(
    server: FakeServer,
    prompts: Sequence[Prompt],
    *,
    stuck_s: float = 30.0,
    alive: Callable[[], str | None] = healthy,
    request_timeout_s: float | None = None,
    allowance: Allowance | None = None,
) -> ReplayResult:
    return await replay(
        prompts,
        base_url=server.url,
        model="m",
        stuck_s=stuck_s,
        alive=alive,
        request_timeout_s=request_timeout_s,
        allowance=allowance,
    )


def play(
    behave: Behave | Script,
    prompts: Sequence[Prompt],
    *,
    stuck_s: float = 30.0,
    request_timeout_s: float | None = None,
    allowance: Allowance | None = None,
) -> tuple[ReplayResult, FakeServer]:
    """Replay against a server of this behaviour."""

    async def main() -> tuple[ReplayResult, FakeServer]:
        async with FakeServer(behave) as server:
            result = await played(
                server,
                prompts,
                stuck_s=stuck_s,
                request_timeout_s=request_timeout_s,
                allowance=allowance,
            )
            return result, server

    return run_loop(main())


def only(result: ReplayResult) -> Record:
    (record,) = result.records
    return record


# --- when requests leave


def test_requests_leave_when_due_however_long_the_server_takes() -> None:
    prompts = [prompt(i, due_s=0.02 * i) for i in range(20)]
    result, server = play(Script(before_s=1.0), prompts)
    assert all(record.ok for record in result.records)
    for record, sent in zip(result.records, prompts, strict=True):
        assert record.due_s == sent.due_s
        assert 0 <= record.lateness_s < SLACK_S
    # The last left at 0.38 s; had it waited for the first's answer it would have been 1 s.
    assert server.arrivals[-1].at_s - server.arrivals[0].at_s < 0.38 + SLACK_S
    assert result.stopped is None


def test_prompts_are_sent_by_due_time_and_recorded_in_the_order_given() -> None:
    result, server = play(Script(), [prompt(7, due_s=0.1), prompt(8, due_s=0.0)])
    assert [record.request for record in result.records] == [7, 8]
    late, soon = (record.sent_s for record in result.records)
    assert soon is not None
    assert late is not None
    assert soon < 0.1 <= late
    assert [arrival.body["seed"] for arrival in server.arrivals] == [8, 7]


def test_no_prompts_make_an_empty_replay() -> None:
    result, _ = play(Script(), [])
    assert result.records == ()
    assert result.stopped is None
    assert math.isnan(result.lateness_p99_s)


def test_closed_loop_keeps_so_many_in_flight() -> None:
    async def main() -> tuple[ReplayResult, int]:
        most = 0
        async with FakeServer(Script(before_s=0.02)) as server:

            def look() -> None:
                nonlocal most
                most = max(most, server.open_streams)
                asyncio.get_running_loop().call_later(0.002, look)

            look()
            prompts = [prompt(-i, due_s=1e9) for i in range(1, 10)]
            result = await closed_loop(prompts, 3, base_url=server.url, model="m", stuck_s=5, alive=healthy)
            return result, most

    result, most = run_loop(main())
    assert most == 3
    assert all(record.ok and record.lateness_s < SLACK_S for record in result.records)


# --- when it is cut


def test_a_replay_is_cut_once_more_have_missed_than_may_and_its_requests_are_let_go() -> None:
    # Every other request waits for its first token until the client leaves.
    prompts = [prompt(i, due_s=0.05 * i) for i in range(400)]
    result, server = play(
        lambda n: Script(hang_after=0) if n % 2 else Script(),
        prompts,
        allowance=Allowance(Slo(ttft_s=0.3), misses=4),
    )
    assert result.stopped is Stopped.CUT
    # The fifth of them is request 9, due at 0.45 s and late at 0.75 s; the last would be due at 20 s.
    assert result.cut_s is not None
    assert 0.75 <= result.cut_s < 0.75 + 3 * SLACK_S
    assert len(result.records) == 400
    assert len(server.arrivals) < 200
    left = [record for record in result.records if record.error == CUT]
    assert {record.request for record in left} >= {1, 3, 5, 7, 9, 399}
    assert all(record.ok for record in result.records if record.error != CUT)
    assert misses_known(result.records, Slo(ttft_s=0.3), result.cut_s) >= 5
    assert result.invalid is None


def test_a_slow_stream_is_cut_while_it_runs() -> None:
    # 0.2 s a token against a mean of 0.05 s: no answer is over by the time this is certain.
    prompts = [prompt(i, max_tokens=60) for i in range(3)]
    slow = Script(gap_s=0.2)
    result, _ = play(slow, prompts, allowance=Allowance(Slo(tpot_s=0.05), misses=2))
    assert result.stopped is Stopped.CUT
    assert result.cut_s is not None
    assert 59 * 0.05 <= result.cut_s < 59 * 0.05 + 3 * SLACK_S
    assert all(record.error == CUT and record.chunk_s for record in result.records)


def test_a_replay_within_its_allowance_is_played_to_its_end() -> None:
    prompts = [prompt(i, due_s=0.01 * i) for i in range(20)]
    allowance = Allowance(Slo(ttft_s=1.0), misses=5)
    result, _ = play(lambda n: Script(before_s=1.5 if n < 5 else 0.0), prompts, allowance=allowance)
    assert (result.stopped, result.cut_s) == (None, None)
    assert all(record.ok for record in result.records)


# --- what a request says


def test_token_ids_and_text_go_to_completions_and_messages_to_chat() -> None:
    chat = (Message(role="user", content="hi"),)
    prompts = [prompt(0), prompt(1, due_s=0.05, text="hi"), prompt(2, due_s=0.1, messages=chat)]
    result, server = play(Script(), prompts)
    assert all(record.ok for record in result.records)
    assert [arrival.path for arrival in server.arrivals] == [
        "/v1/completions",
        "/v1/completions",
        "/v1/chat/completions",
    ]
    bodies = [arrival.body for arrival in server.arrivals]
    assert bodies[0]["prompt"] == [1, 2, 3]
    assert bodies[1]["prompt"] == "hi"
    assert bodies[2]["messages"] == [{"role": "user", "content": "hi"}]


def test_the_body_fixes_the_output_length_and_asks_for_continuous_usage() -> None:
    body = orjson.loads(request_body(prompt(5, max_tokens=9), model="m", temperature=0.7, seed=100))
    assert body == {
        "model": "m",
        "prompt": [1, 2, 3],
        "max_tokens": 9,
        "ignore_eos": True,
        "temperature": 0.7,
        "seed": 105,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_body_of_megabytes_is_sent_whole() -> None:
    result, server = play(Script(), [prompt(text="x" * 3_000_000)])
    assert only(result).ok
    assert len(str(server.arrivals[0].body["prompt"])) == 3_000_000


# --- what a record holds


def test_tokens_come_from_usage_though_chunks_hold_several() -> None:
    result, _ = play(Script(chunks=(1, 5, 2, 4), gap_s=0.03, cached_tokens=2), [prompt(max_tokens=12)])
    record = only(result)
    assert record.ok
    assert record.chunk_tokens == (1, 6, 8, 12)
    assert (record.tokens_in, record.tokens_out, record.tokens_asked, record.cached_tokens) == (3, 12, 12, 2)
    assert list(record.chunk_s) == sorted(record.chunk_s)
    assert record.finished_s is not None
    assert record.finished_s >= record.chunk_s[-1]


def test_chunks_that_one_read_brings_are_one_arrival() -> None:
    whole = b"".join(events(Script(chunks=(2, 3, 4)), {"max_tokens": 9}))
    record = only(play(Script(raw=whole), [prompt(max_tokens=9)])[0])
    assert record.chunk_tokens == (9,)
    assert record.ok


def test_what_the_engine_says_of_a_request_is_in_its_record() -> None:
    speculation = {"num_spec_steps": 3, "num_draft_tokens": 12, "num_accepted_draft_tokens": 8}
    metrics = {
        "queue_time_ms": 1.0,
        "time_to_first_token_ms": 20.0,
        "generation_time_ms": 330.0,
        "mean_itl_ms": 30.0,
        "speculative_decoding": speculation,
    }
    record = only(play(Script(metrics=metrics), [prompt(max_tokens=12)])[0])
    times = (
        record.server_queue_s,
        record.server_ttft_s,
        record.server_generation_s,
        record.server_itl_mean_s,
    )
    assert times == (0.001, 0.02, 0.33, 0.03)
    assert (record.drafts, record.draft_tokens, record.accepted_tokens) == (3, 12, 8)


def test_what_the_server_does_not_say_is_unknown() -> None:
    record = only(play(Script(), [prompt()])[0])
    assert record.cached_tokens is None
    assert (record.server_ttft_s, record.server_queue_s, record.drafts) == (None, None, None)


def test_single_token_chunks_are_timed_without_continuous_usage() -> None:
    result, _ = play(Script(continuous=False, gap_s=0.03), [prompt(max_tokens=4)])
    assert only(result).chunk_tokens == (1, 2, 3, 4)
    assert result.warnings == ()


def test_without_continuous_usage_multi_token_chunks_leave_only_the_ends_and_a_warning() -> None:
    result, _ = play(Script(continuous=False, chunks=(1, 3, 4), gap_s=0.03), [prompt(max_tokens=8)])
    record = only(result)
    assert record.ok
    assert record.chunk_tokens == (1, 8)
    assert record.chunk_s[1] - record.chunk_s[0] >= 0.06 - 0.01
    assert "1 of 1 answers" in result.warnings[0]


# --- latency from the due time, and failures that stay


def test_a_freeze_of_the_server_shows_in_full_in_every_ttft_from_due() -> None:
    # Frozen until 1.2 s after the first arrival; requests due at 0, 0.1, … 0.9 get their first tokens then.
    start: list[float] = []

    def behave(_: int) -> Script:
        now = asyncio.get_running_loop().time()
        start.append(now)
        return Script(before_s=start[0] + 1.2 - now)

    result, _ = play(behave, [prompt(i, due_s=0.1 * i) for i in range(10)])
    for record in result.records:
        assert record.ttft_s == pytest.approx(1.2 - record.due_s, abs=SLACK_S)
    assert max(record.ttft_s for record in result.records) > 1.15


def test_dropped_requests_are_infinitely_late_and_stay_in_the_percentiles() -> None:
    result, _ = play(lambda n: Script(refuse=n % 10 == 3), [prompt(i, due_s=0.005 * i) for i in range(50)])
    failed = [record for record in result.records if not record.ok]
    assert len(result.records) == 50
    assert len(failed) == 5
    assert all("connection failed" in str(record.error) for record in failed)
    ttfts = [record.ttft_s for record in result.records]
    assert quantile(np.array(ttfts), 0.95) == math.inf
    assert sum(map(math.isinf, ttfts)) == 5


MISBEHAVIOUR = (
    (Script(status=500, error="EngineCore had an issue"), "HTTP 500: EngineCore had an issue"),
    (Script(status=400, error="context length is 64"), "HTTP 400: context length is 64"),
    (Script(status=307), "HTTP 307: no"),
    (Script(refuse=True), "connection failed: Server disconnected"),
    (Script(cut_after=2), "connection failed: Response payload is not completed"),
    (Script(raw=b"data: {oops\n\n"), "malformed chunk: {oops"),
    (Script(raw=b"<html>hello</html>"), "stream ended early, after 0 of 4 tokens"),
    (Script(raw=b""), "stream ended early, after 0 of 4 tokens"),
    (Script(raw=b'data: {"error": {"message": "out of\\n memory"}}\n\n'), "within the stream: out of memory"),
    (Script(forever=b"x" * 65536), "endless event: over 1048576 bytes without its end"),
    (Script(chunks=(1, 1), finish_reason="stop"), "served 2 of 4 tokens (finish_reason stop)"),
    (Script(chunks=(3, 3)), "served 6 of 4 tokens"),
    (Script(usage=False, continuous=False), "no usage, so its tokens cannot be counted"),
    (Script(raw=b"data: [DONE]\n\n"), "served 0 of 4 tokens"),
    (
        Script(raw=b'data: {"choices":[],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n'),
        "no chunk says when its tokens came, of 4 counted at the end",
    ),
)


@pytest.fixture(scope="module")
def misbehaved() -> ReplayResult:
    """One replay with each kind of misbehaviour in turn, then a request that is served."""

    def behave(n: int) -> Script:
        return MISBEHAVIOUR[n][0] if n < len(MISBEHAVIOUR) else Script()

    return play(behave, [prompt(i, due_s=0.03 * i) for i in range(len(MISBEHAVIOUR) + 1)])[0]


@pytest.mark.parametrize(("place", "error"), list(enumerate(error for _, error in MISBEHAVIOUR)))
def test_whatever_goes_wrong_with_a_request_is_its_record(
    misbehaved: ReplayResult, place: int, error: str
) -> None:
    record = misbehaved.records[place]
    assert error in str(record.error)
    assert "\n" not in str(record.error)
    assert record.ttft_s == math.inf


def test_what_goes_wrong_with_a_request_stays_with_it(misbehaved: ReplayResult) -> None:
    assert misbehaved.records[-1].ok
    assert misbehaved.stopped is None


def test_a_stream_cut_off_keeps_what_it_had_brought() -> None:
    record = only(play(Script(cut_after=2, gap_s=0.03), [prompt()])[0])
    assert record.chunk_tokens == (1, 2)
    assert record.tokens_out == 2
    assert record.finished_s is None
    assert not record.ok


def test_a_refused_connection_is_a_record() -> None:
    async def main() -> ReplayResult:
        async with FakeServer() as server:
            url = server.url
        return await replay([prompt()], base_url=url, model="m", stuck_s=5, alive=healthy)

    record = only(run_loop(main()))
    assert "connection failed" in str(record.error)
    assert record.sent_s is not None


def test_a_request_over_its_time_limit_is_a_record_and_its_stream_is_given_up() -> None:
    result, _ = play(
        lambda n: Script() if n else Script(hang_after=1),
        [prompt(0), prompt(1, due_s=0.1)],
        request_timeout_s=1.0,
    )
    slow, fine = result.records
    assert "timed out" in str(slow.error)
    assert slow.chunk_tokens == (1,)
    assert fine.ok


def test_a_finished_answer_whose_connection_never_ends_still_counts() -> None:
    done = b"".join(events(Script(), {"max_tokens": 4}))
    result, _ = play(lambda n: Script(forever=done + b": more\n\n"), [prompt()])
    assert only(result).ok


def test_connections_are_used_again_by_later_requests() -> None:
    _, server = play(Script(), [prompt(i, due_s=0.05 * i) for i in range(10)])
    assert server.connections < 5


# --- what stops a replay


def test_a_dead_engine_stops_the_replay_at_once_and_keeps_what_was_seen() -> None:
    async def main() -> tuple[ReplayResult, float]:
        clock = asyncio.get_running_loop().time
        async with FakeServer(Script(gap_s=0.05)) as server:
            start_s = clock()
            asked_since_first_ended = 0

            def alive() -> str | None:
                # Dead once the first answer has ended and the second goes on; asked again, so that the
                # client has had its turn to read the first one's end.
                nonlocal asked_since_first_ended
                asked_since_first_ended += len(server.arrivals) == 2 and server.open_streams == 1
                return "exit code -9" if asked_since_first_ended > 2 else None

            prompts = [prompt(0), prompt(1, max_tokens=1000), prompt(2, due_s=60.0)]
            return await played(server, prompts, alive=alive), clock() - start_s

    result, took_s = run_loop(main())
    assert took_s < 30  # the third was due after 60
    assert result.stopped is Stopped.DEAD
    assert str(result.stopped) == "dead"
    assert result.reason == "exit code -9"
    finished, cut, unsent = result.records
    assert finished.ok
    assert cut.error == unsent.error == "the replay was stopped: exit code -9"
    assert cut.chunk_tokens
    assert unsent.sent_s is None
    assert unsent.lateness_s == unsent.ttft_s == math.inf


def test_an_engine_that_takes_its_last_requests_with_it_is_found_dead() -> None:
    # Connections break before the process has an exit code; the replay would otherwise end as if served.
    async def main() -> ReplayResult:
        async with FakeServer(Script(hang_after=2)) as server:
            clock = asyncio.get_running_loop().time
            died_s = math.inf

            async def kill() -> None:
                nonlocal died_s
                await asyncio.sleep(0.3)
                await server.die()
                died_s = clock()

            def alive() -> str | None:
                return "gone" if clock() > died_s + 0.4 else None

            result, _ = await asyncio.gather(played(server, [prompt()], alive=alive), kill())
            return result

    result = run_loop(main())
    assert result.stopped is Stopped.DEAD
    assert "connection failed" in str(only(result).error)


def test_no_token_for_any_request_in_flight_stops_the_replay_as_stuck() -> None:
    prompts = [prompt(0), prompt(1), prompt(2, due_s=60.0)]
    result, _ = play(lambda n: Script(hang_after=2), prompts, stuck_s=1.5)
    assert result.stopped is Stopped.STUCK
    assert result.reason == "no token for any of 2 request(s) in flight for 1.5 s"
    assert [record.tokens_out for record in result.records] == [2, 2, 0]


def test_comments_that_keep_a_connection_alive_are_not_tokens() -> None:
    result, _ = play(Script(forever=b": ping\n\n"), [prompt()], stuck_s=0.4)
    assert result.stopped is Stopped.STUCK


def test_a_slow_engine_and_an_idle_one_are_not_stuck() -> None:
    # Tokens each 0.15 s from one of two, then nothing in flight for longer than stuck_s.
    def behave(n: int) -> Script:
        return (Script(gap_s=0.15), Script(before_s=0.5), Script())[n]

    result, _ = play(behave, [prompt(0), prompt(1), prompt(2, due_s=2.6)], stuck_s=1.5)
    assert result.stopped is None
    assert all(record.ok for record in result.records)


def test_a_stopped_replay_leaves_the_server_no_request() -> None:
    async def main() -> int:
        async with FakeServer(Script(hang_after=1)) as server:
            await played(server, [prompt(i) for i in range(20)], stuck_s=1.0)
            assert len(server.arrivals) == 20
            for _ in range(100):  # for the news to arrive
                if server.open_streams:
                    await asyncio.sleep(0.02)
            return server.open_streams

    assert run_loop(main()) == 0


def test_a_cancelled_replay_ends_and_gives_the_collector_back() -> None:
    async def main() -> None:
        async with FakeServer(Script(hang_after=1)) as server:
            task = asyncio.create_task(played(server, [prompt()]))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run_loop(main())
    assert gc.get_freeze_count() == 0


def test_a_fault_of_the_caller_is_an_exception() -> None:
    def alive() -> str | None:
        raise LookupError("no such process table")

    async def main() -> None:
        async with FakeServer(Script(gap_s=0.5)) as server:
            await played(server, [prompt()], alive=alive)

    with pytest.raises(LookupError):
        run_loop(main())


# --- when a replay is void


def test_a_blocked_client_finds_itself_late() -> None:
    async def main() -> ReplayResult:
        async with FakeServer() as server:
            asked = 0

            def alive() -> str | None:
                nonlocal asked
                asked += 1
                if asked == 2:  # the first look is at the start, the second a quarter of a second in
                    time.sleep(0.5)
                return None

            return await played(server, [prompt(i, due_s=0.02 * i) for i in range(40)], alive=alive)

    result = run_loop(main())
    assert result.invalid is not None
    assert result.invalid.startswith("the client")
    assert result.lateness_p99_s > 0.3


def test_out_of_file_descriptors_is_the_clients_fault() -> None:
    async def main() -> Call:
        async with FakeServer() as server, connected(server.url, connections=1) as client:
            call = Call(prompt(), model="m", temperature=0.0, seed=0)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                await client.send(call)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return call

    call = run_loop(main())
    assert "Too many open files" in str(call.error)
    assert call.client_fault == "out of file descriptors (raise `ulimit -n`)"
