"""A driver killed by SIGKILL leaves nothing: what it started ends by itself or is ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster.dispatch.reaper import reap, start_reaper
from cluster.node.processes import is_running, process

_DRIVER = """
import subprocess, sys, time
from cluster.dispatch.reaper import start_reaper
start_reaper()
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
time.sleep(1.5)  # longer than the reaper's look round
print(child.pid, flush=True)
time.sleep(600)
"""


def _started(pid: int) -> int:
    found = process(pid)
    assert found is not None
    return found.started


def test_a_child_of_a_killed_driver_is_found_and_killed_though_it_left_its_session() -> None:
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    started = _started(child)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    deadline = time.monotonic() + 50
    while is_running(child, started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(child, started)


def test_what_outlives_the_grace_is_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    reap({(child.pid, _started(child.pid))}, grace_s=0.0)
    assert child.wait(10) == -signal.SIGKILL


def test_a_pid_used_again_by_another_process_is_left_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        reap({(child.pid, _started(child.pid) - 1)}, grace_s=0.0)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_what_the_driver_had_started_before_is_left_alone() -> None:
    older = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        time.sleep(0.05)  # start times are counted in hundredths of a second
        start_reaper().communicate(timeout=15)  # would wait for it, then kill it
        assert older.poll() is None
    finally:
        older.kill()
        older.wait()


def test_the_folder_goes_with_the_driver(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    (folder / "session").mkdir(parents=True)
    start_reaper(folder).communicate(timeout=30)
    assert not folder.exists()


def test_the_watch_ends_with_a_driver_that_has_nothing_left() -> None:
    reaper = start_reaper()
    reaper.communicate(timeout=30)
    assert reaper.returncode == 0
