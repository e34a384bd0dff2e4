"""Real Ray nodes on this machine, each a `ray start` of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster.node.processes import descendants, is_running, process

_PATIENT = {"RAY_raylet_start_wait_time_s": "180", "RAY_worker_register_timeout_seconds": "180"}
"""For machines that have more to do; Ray's own are half a minute and a minute."""

LEAST_STORE = str(80 * 2**20)
"""Ray's smallest object store, bytes."""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        return [
            held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)
        ]


@contextmanager
def node(environment: dict[str, str], log: Path, *words: str) -> Iterator[int]:
    """`ray start` in the foreground, its process id; all that it started is gone afterwards.

    A node that was killed meanwhile has its rest ended.
    """
    ours: set[tuple[int, int]] = set()
    with log.open("wb") as out:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        started = subprocess.Popen(
            command, env=_PATIENT | environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 180
        while "block forever" not in log.read_text():
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        ours = {(one.pid, one.started) for one in descendants(started.pid)}
        yield started.pid
    finally:
        ours |= {(one.pid, one.started) for one in descendants(started.pid)}
        killed = started.poll() is not None
        started.send_signal(signal.SIGTERM)
        started.wait(120)
        deadline = time.monotonic() + 10
        while (left := {one for one in ours if is_running(*one)}) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
    assert killed or not left, f"left by Ray itself: {[process(pid) for pid, _ in left]}"
