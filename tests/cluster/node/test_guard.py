"""Processes that stand for an engine: shell and Python one-liners with children, no vLLM."""

import json
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.node.guard import GuardRecord, read_record, sweep
from cluster.node.guarded import PACKAGE_ROOT, RECORD_NAME, GuardedProcess
from cluster.node.processes import descendants, process
from cluster.node.shared_memory import SEGMENTS, remove_unmapped

TREE = "sleep 300 & sleep 300 & echo up; wait"
"""A command with two children."""

STUBBORN = "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & echo up; while :; do sleep 0.1; done"
"""A command and a child that do not mind SIGTERM."""


def guarded(folder: Path, script: str, grace_s: float = 5.0) -> GuardedProcess:
    return GuardedProcess(
        ["sh", "-c", script],
        folder=folder,
        log=folder / "engine.log",
        environment=os.environ,
        grace_s=grace_s,
    )


def wait_until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def up(folder: Path) -> bool:
    log = folder / "engine.log"
    return log.exists() and "up" in log.read_text()


def running(pids: tuple[int, ...]) -> list[int]:
    return [pid for pid in pids if (found := process(pid)) is not None and not found.zombie]


def test_output_goes_to_the_log_and_the_exit_status_is_the_commands(tmp_path: Path) -> None:
    with guarded(tmp_path, "echo out; echo err >&2; exit 7") as engine:
        assert wait_until(lambda: engine.exit_status is not None)
        assert not engine.alive
        assert engine.exit_status == 7
    assert (tmp_path / "engine.log").read_text().split() == ["out", "err"]


def test_a_command_ended_by_a_signal_gives_128_and_its_number(tmp_path: Path) -> None:
    with guarded(tmp_path, "kill -9 $$") as engine:
        assert wait_until(lambda: engine.exit_status is not None)
    assert engine.exit_status == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_ends_with_127_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with GuardedProcess(
        ["/nonexistent/engine"], folder=tmp_path, log=log, environment=os.environ, grace_s=1
    ) as engine:
        assert wait_until(lambda: engine.exit_status is not None)
    assert engine.exit_status == 127
    assert log.read_text().strip() == "cannot start /nonexistent/engine: No such file or directory"


def test_leaving_ends_the_command_and_its_children(tmp_path: Path) -> None:
    with guarded(tmp_path, TREE) as engine:
        assert wait_until(lambda: up(tmp_path))
        pids = engine.pids
        assert len(pids) == 4  # guard, shell, two sleeps
        assert engine.alive
    assert running(pids) == []
    assert not engine.alive
    assert not (tmp_path / RECORD_NAME).exists()


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with guarded(tmp_path, STUBBORN, grace_s=0.5) as engine:
        assert wait_until(lambda: up(tmp_path))
        pids = engine.pids
        began = time.monotonic()
    assert 0.5 <= time.monotonic() - began < 5
    assert running(pids) == []
    assert engine.exit_status == 128 + signal.SIGKILL


def test_what_fails_is_ended_at_once_whatever_the_grace(tmp_path: Path) -> None:
    """A cancelled trial, an engine that hangs: somebody waits for its end."""
    engine = guarded(tmp_path, STUBBORN, grace_s=600)
    engine.__enter__()
    assert wait_until(lambda: up(tmp_path))
    pids = engine.pids
    began = time.monotonic()
    engine.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert time.monotonic() - began < 60  # of a second each for the polite and the stubborn
    assert len(pids) >= 3
    assert running(pids) == []


SEGMENT = """
import mmap, signal, sys
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = SEGMENTS / f"tuner-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_goes_with_the_processes_that_held_it_unless_another_does(
    tmp_path: Path, segment: Path
) -> None:
    with guarded(tmp_path, f"exec {sys.executable} -c '{SEGMENT}' {segment}"):
        assert wait_until(lambda: up(tmp_path))
        with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            remove_unmapped([segment])
            assert segment.exists()
    assert not segment.exists()


TRACKED = """
import signal, subprocess, sys
ends = "import signal, sys as s; signal.signal(15, 1); print(flush=1); s.stdin.read(); open(s.argv[1], 'w')"
words = [sys.executable, "-c", ends, sys.argv[1]]
child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
signal.signal(signal.SIGTERM, lambda *_: None)
print("up", flush=True)
while True: signal.pause()
"""


def test_who_tidies_up_after_the_killed_has_the_time_to(tmp_path: Path) -> None:
    """As Python's resource trackers do, which ignore SIGTERM and end when their process has."""
    (tmp_path / "tracked.py").write_text(TRACKED)
    script = f"exec {sys.executable} {tmp_path / 'tracked.py'} {tmp_path / 'tidy'}"
    with guarded(tmp_path, script, grace_s=0.1):
        assert wait_until(lambda: up(tmp_path))
    assert (tmp_path / "tidy").exists()


def test_children_that_outlive_the_command_are_ended(tmp_path: Path) -> None:
    """As vLLM's engine core outlives a killed API server; one of them here in a session of its own."""
    with guarded(tmp_path, "sleep 300 & setsid sleep 300 & sleep 0.5; echo up; kill -9 $$") as engine:
        guard = engine.pids[0]
        assert wait_until(lambda: len(descendants(guard)) == 4)  # shell, sleep, sleep, the short sleep
        below = tuple(one.pid for one in descendants(guard))
        assert wait_until(lambda: engine.exit_status is not None)
        assert up(tmp_path)
        assert running(below) == []


def test_what_the_command_leaves_in_its_temporary_folder_goes_with_it(tmp_path: Path) -> None:
    with guarded(tmp_path, "touch $TMPDIR/left; echo up; sleep 300"):
        assert wait_until(lambda: up(tmp_path))
        record = read_record(tmp_path / RECORD_NAME)
        assert record is not None
        assert (Path(record.scratch) / "left").exists()
    assert not Path(record.scratch).exists()


def test_two_processes_with_one_pid_are_told_apart_by_their_start(tmp_path: Path) -> None:
    mine = process(os.getpid())
    assert mine is not None
    record = GuardRecord(
        pid=mine.pid, started=mine.started + 1, command_pid=1, command_started=1, command=(), scratch=""
    )
    assert record.ours == ()


PARENT = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from cluster.node.guarded import GuardedProcess
    folder = Path(sys.argv[1])
    with GuardedProcess(["sh", "-c", sys.argv[2]], folder=folder, log=folder / "engine.log",
                        environment=os.environ, grace_s=1.0):
        time.sleep(300)
    """
)


@pytest.fixture
def parent(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Another process that holds a guarded command, as a trial does."""
    started = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), TREE], cwd=PACKAGE_ROOT)
    assert wait_until(lambda: up(tmp_path) and (tmp_path / RECORD_NAME).exists())
    return started


def test_kill_9_of_the_parent_leaves_nothing(tmp_path: Path, parent: subprocess.Popen[bytes]) -> None:
    record = read_record(tmp_path / RECORD_NAME)
    assert record is not None
    pids = tuple(one.pid for one in record.ours)
    assert len(pids) == 4
    parent.kill()
    parent.wait()
    assert wait_until(lambda: running(pids) == [])
    assert not (tmp_path / RECORD_NAME).exists()


def test_kill_9_of_the_guard_kills_the_command_and_the_record_finds_the_rest(
    tmp_path: Path, parent: subprocess.Popen[bytes]
) -> None:
    record = read_record(tmp_path / RECORD_NAME)
    assert record is not None
    pids = tuple(one.pid for one in record.ours)
    os.kill(record.pid, signal.SIGKILL)
    assert wait_until(lambda: running((record.command_pid,)) == [])
    assert len(running(pids)) == 2  # the two sleeps, orphans now
    assert sweep(record)
    assert running(pids) == []
    parent.kill()
    parent.wait()


def test_a_record_names_the_command_without_its_secrets(tmp_path: Path) -> None:
    with GuardedProcess(
        ["sh", "-c", "sleep 300", "--hf-token", "hf_abcdefgh"],
        folder=tmp_path,
        log=tmp_path / "engine.log",
        environment=os.environ,
        grace_s=1,
    ):
        text = (tmp_path / RECORD_NAME).read_text()
    assert json.loads(text)["command"] == ["sh", "-c", "sleep 300", "--hf-token", "***"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_an_unreadable_record_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_NAME).write_text(text)
    assert read_record(tmp_path / RECORD_NAME) is None
