"""Whoever waits is woken once the time has come, never before, each at a time of its own."""

import asyncio
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.node.alarm import Alarm
from cluster.node.replay import run_loop


def woken(delays_s: list[float]) -> list[tuple[float, float]]:
    """(asked, woken) in the order of waking, both on the same clock."""

    async def main() -> list[tuple[float, float]]:
        seen: list[tuple[float, float]] = []
        with Alarm() as alarm:
            zero_s = time.perf_counter()

            async def wait(at_s: float) -> None:
                await alarm.until(at_s)
                seen.append((at_s, time.perf_counter()))

            async with asyncio.TaskGroup() as group:
                for delay_s in delays_s:
                    group.create_task(wait(zero_s + delay_s))
        return seen

    return run_loop(main())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-0.01, 0.02), max_size=20))
def test_all_are_woken_and_none_early(delays_s: list[float]) -> None:
    seen = woken(delays_s)
    assert len(seen) == len(delays_s)
    assert all(at_s >= asked_s for asked_s, at_s in seen)


def test_one_that_is_due_sooner_is_not_kept_waiting_by_one_that_is_due_later() -> None:
    first, second = woken([0.3, 0.001])
    assert first[0] < second[0]


def test_one_that_gave_up_waiting_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        with Alarm() as alarm:
            zero_s = time.perf_counter()
            lost = asyncio.create_task(alarm.until(zero_s + 0.005))
            kept = asyncio.create_task(alarm.until(zero_s + 0.010))
            await asyncio.sleep(0)
            lost.cancel()
            await asyncio.wait_for(kept, 10)
            assert time.perf_counter() >= zero_s + 0.010

    run_loop(main())


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    async def main() -> None:
        with Alarm() as alarm:
            await asyncio.wait_for(alarm.until(time.perf_counter()), 10)
            await asyncio.wait_for(alarm.until(0.0), 10)

    run_loop(main())


def test_its_timer_is_closed_with_it() -> None:
    async def main() -> None:
        with Alarm() as one:
            await one.until(time.perf_counter() + 0.001)
        with Alarm() as other:  # the same descriptor, if the first was closed and no longer watched
            await asyncio.wait_for(other.until(time.perf_counter() + 0.001), 10)

    run_loop(main())
