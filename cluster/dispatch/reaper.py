"""Ends what a driver leaves of its own Ray, killed or not: `python -m cluster.dispatch.reaper PID [FOLDER]`.

Ray's agents linger for more than a minute after a driver dies by SIGKILL: they try to report to a GCS that
died with it. This process, started by the driver in a session of its own, holds a pipe to it and remembers
every process below it; when the pipe closes and they do not end by themselves, it ends them. A process is
known by pid and start time, never by name. What the driver had started before, another Ray perhaps, and what
comes of it is left alone. A driver that closes its Ray first has nothing left to end.
Last of all the folder goes that this Ray kept its sockets and logs in.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster.node.processes import descendants, is_running, process

_LOOK_EVERY_S = 1.0
_GRACE_S = 20.0
"""Left to the engines' guards and to Ray itself, which both end things in better order."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def start_reaper(folder: Path | None = None) -> "subprocess.Popen[bytes]":
    """Watch over what this process starts from now on, until its end; then remove the folder.

    Closing the process's stdin ends the watch."""
    watched = [str(os.getpid())] if folder is None else [str(os.getpid()), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.dispatch.reaper", *watched],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=_PACKAGE_ROOT,
        start_new_session=True,
    )


def watch(driver: int, pipe: int) -> set[tuple[int, int]]:
    """Look at the driver's descendants until the pipe closes; the (pid, start) pairs ever seen."""
    own = process(os.getpid())
    since = own.started if own is not None else 0
    seen: set[tuple[int, int]] = set()
    while True:
        seen |= _begun_since(since, driver)
        readable, _, _ = select.select([pipe], [], [], _LOOK_EVERY_S)
        if readable and not os.read(pipe, 1):
            return seen


def _begun_since(since: int, driver: int) -> set[tuple[int, int]]:
    """The driver's descendants, except this process, what is older, and what is below those."""
    kept = {driver}
    found = set()
    for one in descendants(driver):  # parents before their children
        if one.parent in kept and one.started >= since and one.pid != os.getpid():
            kept.add(one.pid)
            found.add((one.pid, one.started))
    return found


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
    """Watch the driver, then remove the folder; standard input is the pipe to the driver."""
    # The driver's terminal sends Ctrl-C to it alone (own session), but be told nothing twice.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver, *folders = sys.argv[1:]
    reap(watch(int(driver), 0), _GRACE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
