"""Faults that a real vLLM is made to have: stopped at its start, its core stopped or killed under load.

Two starts from the launcher, and a cold one that is cut short.
"""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cluster.node.engine import EngineFailure
from cluster.node.guard import GuardRecord, read_record
from cluster.node.guarded import RECORD_NAME
from cluster.node.run import run_trial
from cluster.node.vllm_server import VllmEngine
from cluster.order import Cause, Failed, Limits, Order
from tests.real.conftest import PYTESTS_OWN
from tests.real.test_vllm_server import LONG, order, record_in, wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture
def asked(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    monkeypatch.delenv(PYTESTS_OWN)
    return order(small_model, {}, LONG)


def _core(server: int) -> psutil.Process:
    """The engine core below an API server; what computes is below it."""
    below = psutil.Process(server).children()
    (core,) = (one for one in below if "spawn_main" in " ".join(one.cmdline()))
    assert core.children()
    return core


def _played(
    asked: Order, launcher: Path, folder: Path, harm: Callable[[psutil.Process], None]
) -> EngineFailure:
    """What a replay failed with whose engine core was harmed in the middle of it; nothing is left then."""
    with VllmEngine(launcher).serve(asked, folder) as endpoint:
        record = record_in(folder)
        core = _core(record.command_pid)
        harmer = threading.Timer(2.0, harm, (core,))
        harmer.start()
        with pytest.raises(EngineFailure) as caught:
            endpoint.play(asked.workload, asked.limits)
        harmer.join()
    assert record.ours == ()
    return caught.value


def test_an_engine_core_that_stands_still_is_stuck_and_is_ended_though_it_takes_no_signal(
    asked: Order, launcher: Path, tmp_path: Path
) -> None:
    asked = replace(asked, limits=Limits(stuck_s=5.0))
    failure = _played(asked, launcher, tmp_path, psutil.Process.suspend)
    assert failure.cause is Cause.STUCK
    assert any(record.tokens_out for record in failure.records)
    assert not any(record.finished_s for record in failure.records)


def test_an_engine_core_that_is_killed_is_noticed_by_the_replay(
    asked: Order, launcher: Path, tmp_path: Path
) -> None:
    failure = _played(asked, launcher, tmp_path, psutil.Process.kill)
    assert failure.cause is Cause.DIED_UNDER_LOAD
    assert any(record.tokens_out for record in failure.records)


def test_an_engine_that_stands_still_at_its_start_hangs_and_is_ended(asked: Order, tmp_path: Path) -> None:
    asked = replace(asked, limits=Limits(start_stall_s=8.0))
    stopped: list[GuardRecord] = []

    def stop() -> None:
        wait_until(lambda: read_record(tmp_path / RECORD_NAME) is not None, 60)
        stopped.append(record_in(tmp_path))
        os.kill(stopped[0].command_pid, signal.SIGSTOP)

    stopper = threading.Thread(target=stop)
    stopper.start()
    outcome = run_trial(asked, VllmEngine(), tmp_path)
    stopper.join()
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.HANG_AT_START
    assert stopped[0].ours == ()
