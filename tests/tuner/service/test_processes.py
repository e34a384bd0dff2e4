"""A job's process is seen for as long as it lives, by whichever service looks, and is started once."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from cluster.node.processes import descendants, is_running
from tuner.service.job_files import JobFiles, read_json, write_json
from tuner.service.jobs import State
from tuner.service.processes import Ended, OwnSessions, hold_alone


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """Of a job that asks for nothing, so that its process says so and ends."""
    return JobFiles(tmp_path)


def _wait_for_the_end(files: JobFiles) -> None:
    with files.lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_a_process_is_seen_from_its_first_moment_to_its_last_by_any_service(files: JobFiles) -> None:
    ours, after_a_restart = OwnSessions(), OwnSessions()
    assert not ours.alive(files)
    assert ours.start(files, {})
    assert ours.alive(files)
    assert after_a_restart.alive(files)
    assert not after_a_restart.start(files, {})
    _wait_for_the_end(files)
    assert not after_a_restart.alive(files)
    assert not ours.alive(files)
    ended = after_a_restart.ended(files)
    assert ended is not None
    assert ended.state is State.FAILED
    assert "no job" in str(ended.reason)
    assert ours.start(files, {})  # how the last one ended is forgotten as the next one starts
    assert ours.ended(files) is None or not ours.alive(files)
    _wait_for_the_end(files)


def test_a_process_has_a_session_of_its_own_and_none_of_the_services_secrets(
    files: JobFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_TOKENS", "ana=secret-0123456789")
    monkeypatch.setenv("TUNER_TOKEN", "secret-0123456789")
    before = {one.pid for one in descendants(os.getpid())}
    assert OwnSessions().start(files, {"CUDA_VISIBLE_DEVICES": "2,3"})
    (child,) = [one for one in descendants(os.getpid()) if one.pid not in before]
    os.kill(child.pid, signal.SIGSTOP)
    environment = Path(f"/proc/{child.pid}/environ").read_bytes().decode().split("\0")
    os.kill(child.pid, signal.SIGCONT)
    assert child.session == child.pid
    assert "CUDA_VISIBLE_DEVICES=2,3" in environment
    assert not [one for one in environment if one.startswith(("TUNER_TOKEN", "TUNER_TOKENS"))]
    _wait_for_the_end(files)


def test_a_process_that_was_not_told_of_is_asked_again_later(files: JobFiles) -> None:
    assert not OwnSessions().stop(files, at_once=False)


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(files: JobFiles) -> None:
    write_json(files.process, {"pid": os.getpid(), "started": 1})
    assert not is_running(os.getpid(), 1)
    assert OwnSessions().stop(files, at_once=True)  # this test goes on


def test_how_a_process_ended_is_read_as_it_was_written(files: JobFiles) -> None:
    write_json(files.ended, {"state": "finished", "reason": None})
    assert OwnSessions().ended(files) == Ended(state=State.FINISHED, reason=None)
    assert read_json(files.process) is None


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    lock = hold_alone(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        hold_alone(tmp_path / "lock")
    os.close(lock)
    os.close(hold_alone(tmp_path / "lock"))
