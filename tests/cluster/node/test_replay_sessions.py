"""Turns of a session in the real client: released by another's end, never before, never waited for in vain.

Against a scripted server in the same event loop; times have the slack that `test_replay` explains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.node.replay import ReplayResult, closed_loop, replay, run_loop
from cluster.node.watch import Stopped
from cluster.traffic.workload import Prompt
from objectives.allowance import CUT, Allowance, misses_known
from objectives.slo import Slo
from tests.cluster.node.fake_server import FakeServer, Script, events, prompt

SLACK_S = 0.25


def turn(request: int, after: int, *, think_s: float = 0.0, due_s: float = 0.0) -> Prompt:
    return replace(prompt(request, due_s=due_s), after=after, think_s=think_s)


def healthy() -> None:
    return None


def play(
    prompts: Sequence[Prompt],
    scripts: Mapping[int, Script] | Script = Script(),  # noqa: B008 - frozen
    *,
    stuck_s: float = 30.0,
    allowance: Allowance | None = None,
) -> ReplayResult:
    """Replay against a server that answers each request by its own script."""

    async def main() -> ReplayResult:
        server = FakeServer()

        def behave(number: int) -> Script:
            request = server.arrivals[number].body["seed"]
            assert isinstance(request, int)
            return scripts if isinstance(scripts, Script) else scripts.get(request, Script())

        server.behave = behave
        async with server:
            return await replay(
                prompts,
                base_url=server.url,
                model="m",
                stuck_s=stuck_s,
                alive=healthy,
                allowance=allowance,
            )

    return run_loop(main())


rows = st.lists(
    st.tuples(st.floats(0, 0.05), st.none() | st.integers(0, 100), st.floats(0, 0.03), st.floats(0, 0.04)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=12, deadline=None)
@given(rows)
def test_turns_leave_as_an_event_simulation_of_the_same_sessions_says(
    drawn: list[tuple[float, int | None, float, float]],
) -> None:
    prompts: list[Prompt] = []
    scripts: dict[int, Script] = {}
    dues: list[float] = []
    ends: list[float] = []
    for request, (due_s, after, think_s, takes_s) in enumerate(drawn):
        before = None if after is None or not request else after % request
        prompts.append(replace(prompt(request, due_s=due_s), after=before, think_s=think_s))
        scripts[request] = Script(before_s=takes_s)
        dues.append(due_s if before is None else ends[before] + think_s)
        ends.append(dues[-1] + takes_s)
    records = play(prompts, scripts).records
    for record, sent, due_s in zip(records, prompts, dues, strict=True):
        assert record.ok
        assert record.sent_s is not None
        assert 0 <= record.lateness_s < SLACK_S
        # The server sleeps on uvloop, whose timers are whole milliseconds.
        assert due_s - 0.001 <= record.due_s < due_s + SLACK_S
        if sent.after is None:
            assert record.due_s == sent.due_s
        else:
            ended_s = records[sent.after].finished_s
            assert ended_s is not None
            assert record.due_s == ended_s + sent.think_s


@pytest.mark.parametrize(
    "failing",
    [
        Script(status=500),
        Script(refuse=True),
        Script(cut_after=2),
        Script(chunks=(1, 1)),
        Script(raw=b"data: {\n\n"),
    ],
    ids=["status", "refused", "cut off", "too few tokens", "malformed"],
)
def test_a_turn_leaves_when_its_predecessor_failed(failing: Script) -> None:
    first, second = play([prompt(0), turn(1, 0, think_s=0.1)], {0: failing}).records
    assert not first.ok
    assert second.ok
    assert first.sent_s is not None
    assert first.sent_s + 0.1 <= second.due_s < first.sent_s + 0.1 + SLACK_S


def test_a_turn_is_due_its_think_time_after_the_end_although_it_was_recorded_later() -> None:
    _, second = play([prompt(0), turn(1, 0, think_s=0.05, due_s=60.0)]).records
    assert second.due_s < 0.05 + SLACK_S


def test_a_connection_that_will_not_close_holds_no_turn_up() -> None:
    """The client reads on for half a second, since the connection may yet serve another request."""
    whole = b"".join(events(Script(), {"max_tokens": 4}))
    first, second = play([prompt(0), turn(1, 0)], {0: Script(forever=whole)}).records
    assert first.ok
    assert second.due_s == first.finished_s
    assert second.lateness_s < SLACK_S


def test_turns_that_nothing_releases_keep_no_stopped_replay_alive() -> None:
    prompts = [prompt(0), turn(1, 0), turn(2, 1), prompt(3, due_s=60.0)]
    result = play(prompts, Script(hang_after=0), stuck_s=0.2)
    assert result.stopped is Stopped.STUCK
    assert [record.sent_s is None for record in result.records] == [False, True, True, True]
    assert all(0.2 <= record.due_s < 30 for record in result.records[1:3])  # not before it ended


def test_a_cut_counts_turns_that_were_released_and_none_that_was_not() -> None:
    slo = Slo(ttft_s=0.4)
    allowance = Allowance(slo, 1)
    # 1 and 2 are never answered, once 0 has released them; 3 and 4 wait for them, 5 is due much later.
    prompts = [prompt(0), turn(1, 0), turn(2, 0), turn(3, 1), turn(4, 2), prompt(5, due_s=60.0)]
    result = play(prompts, {1: Script(hang_after=0), 2: Script(hang_after=0)}, allowance=allowance)
    assert result.stopped is Stopped.CUT
    assert result.cut_s is not None
    assert misses_known(result.records, slo, result.cut_s) == 2
    for record in result.records[3:5]:
        assert (record.sent_s, record.error) == (None, CUT)
        assert record.due_s >= result.cut_s


def test_a_closed_loop_knows_no_sessions_and_waits_for_none() -> None:
    async def main() -> ReplayResult:
        async with FakeServer() as server:
            return await closed_loop(
                [turn(0, 1, think_s=60), prompt(1), turn(2, 0)],
                1,
                base_url=server.url,
                model="m",
                stuck_s=5,
                alive=healthy,
            )

    records = run_loop(main()).records
    assert all(record.ok for record in records)
    sent = [record.sent_s for record in records if record.sent_s is not None]
    assert sent == sorted(sent)


def test_a_turn_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt 1 waits for 7, which is not to be played"):
        play([prompt(0), turn(1, 7)])
