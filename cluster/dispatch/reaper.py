"""Ends what a killed driver leaves of its own Ray: `python -m cluster.dispatch.reaper DRIVER_PID`.

Ray's agents linger for more than a minute after a driver dies by SIGKILL: they try to report to a GCS that
died with it. This process, started by the driver in a session of its own, holds a pipe to it and remembers
every process below it; when the pipe closes and they do not end by themselves, it ends them. A process is
known by pid and start time, never by name. A driver that closes its Ray first has nothing left to end.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster.node.processes import descendants, is_running

_LOOK_EVERY_S = 1.0
_GRACE_S = 20.0
"""Left to the engines' guards and to Ray itself, which both end things in better order."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def start_reaper() -> "subprocess.Popen[bytes]":
    """Watch over this process's descendants until its end. Closing the process's stdin ends the watch."""
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.dispatch.reaper", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=_PACKAGE_ROOT,
        start_new_session=True,
    )


def watch(driver: int, pipe: int) -> set[tuple[int, int]]:
    """Look at the driver's descendants until the pipe closes; the (pid, start) pairs ever seen."""
    seen: set[tuple[int, int]] = set()
    while True:
        seen |= {(one.pid, one.started) for one in descendants(driver) if one.pid != os.getpid()}
        readable, _, _ = select.select([pipe], [], [], _LOOK_EVERY_S)
        if readable and not os.read(pipe, 1):
            return seen


def reap(seen: set[tuple[int, int]], grace_s: float) -> None:
    """Wait for these and what they started to end; after the grace, kill what has not."""
    deadline = time.monotonic() + grace_s
    while alive := {known for known in seen if is_running(*known)}:
        for pid, _ in alive:
            seen |= {(one.pid, one.started) for one in descendants(pid) if one.pid != os.getpid()}
        if time.monotonic() > deadline:
            for known in alive:
                if is_running(*known):
                    os.kill(known[0], signal.SIGKILL)
        time.sleep(0.2)


def main() -> int:
    """Watch the driver named on the command line; standard input is the pipe to it."""
    # The driver's terminal sends Ctrl-C to it alone (own session), but be told nothing twice.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reap(watch(int(sys.argv[1]), 0), _GRACE_S)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
