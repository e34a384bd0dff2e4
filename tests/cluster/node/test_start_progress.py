import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.node.start_progress import StartProgress
from tests.cluster.node.starts import Clock, clock, log

__all__ = ["clock", "log"]  # fixtures


def say(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_silence_is_counted_from_the_last_new_line(log: Path, clock: Clock) -> None:
    progress = StartProgress(log, tuple, now=clock)
    clock.at_s += 50
    assert progress.stalled_s() == 50
    say(log, "loading\n")
    assert progress.stalled_s() == 0
    clock.at_s += 7
    assert progress.stalled_s() == 7


def test_a_line_said_before_is_no_progress_whatever_stamp_it_has(log: Path, clock: Clock) -> None:
    progress = StartProgress(log, tuple, now=clock)
    for second in range(10):
        say(log, f"(EngineCore pid=7) INFO 11-30 09:00:{second:02} [shm.py:1] still waiting for a block\n")
        progress.stalled_s()
        clock.at_s += 10
    assert progress.stalled_s() == 100


@pytest.mark.parametrize("end", ["\r", "\n", ""])
def test_a_bar_that_moves_is_progress(log: Path, clock: Clock, end: str) -> None:
    progress = StartProgress(log, tuple, now=clock)
    for done in range(5):
        clock.at_s += 60
        say(log, f"Loading shards: {done}0%{end}")
        assert progress.stalled_s() == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that reads as many MiB of a file as each byte of its input says, and answers."""
    big = tmp_path / "weights"
    big.write_bytes(bytes(2**20))
    code = (
        "import sys\n"
        "while asked := sys.stdin.buffer.read(1):\n"
        "    for _ in range(asked[0]): open(sys.argv[1], 'rb').read()\n"
        "    sys.stdout.buffer.write(b'.'); sys.stdout.flush()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(big)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def read(reader: "subprocess.Popen[bytes]", mib: int) -> None:
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(bytes([mib]))
    reader.stdin.flush()
    assert reader.stdout.read(1) == b"."


def test_weights_that_come_in_without_a_word_are_progress_and_a_trickle_is_not(
    log: Path, clock: Clock, reader: "subprocess.Popen[bytes]"
) -> None:
    progress = StartProgress(log, lambda: [reader.pid], now=clock)
    read(reader, 0)  # it is up: what its own start read is behind it
    progress.stalled_s()
    clock.at_s += 10
    progress.stalled_s()
    before = clock.at_s
    for _ in range(4):
        clock.at_s += 60
        read(reader, 1)
        assert progress.stalled_s() >= clock.at_s - before
    read(reader, 64)
    clock.at_s += 10
    assert progress.stalled_s() == 0


def test_processes_that_came_and_went_do_not_count_against_it(log: Path, clock: Clock) -> None:
    pids = [os.getpid()]
    progress = StartProgress(log, lambda: pids, now=clock)
    progress.stalled_s()
    pids.clear()
    clock.at_s += 10
    assert progress.stalled_s() >= 0
    pids.append(2**22 + 1)  # no such process
    clock.at_s += 10
    assert progress.stalled_s() >= 10
