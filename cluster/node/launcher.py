"""A process with the engine imported, that forks a guard and its engine for each start it is asked for.

    python -m cluster.node.launcher SOCKET MODULE

Importing vLLM takes longer than all else in the start of a small model, and it is the same work each time.
So it is done once, here, and each start begins from a copy of this process, with the trial's own
environment, arguments, folder and log. What comes of it is what `python -m MODULE ARGUMENT…` would be:

- the copy is made before anything touched an accelerator, and from one thread. Where the import itself broke
  either, the launcher says so and ends; the trials then start their engines from the command.
- whatever variable was read while importing must have had the value that the trial wants it to have, and so
  must every variable that something other than vLLM could have read; else that start is refused. So is one
  whose processors, priority or control group are not the launcher's.

It ends when its standard input closes, and leaves the engines that it started alone: each has a guard that
lives and dies with its trial.
"""

import atexit
import contextlib
import gc
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from cluster.node.guard import die_with_parent, guard, signals_as_bytes
from cluster.node.launcher_engine import (
    fork_the_core,
    import_all,
    leave_the_machine_undescribed,
    touched_accelerator,
)
from cluster.node.launcher_wire import Answer, Start, receive_start, send, surroundings
from cluster.node.owner import OWNER
from cluster.node.processes import is_running

READY = "launcher ready"
"""The line on standard output after which it takes requests."""

LOG_NAME = "launcher.log"
"""Beside the socket."""

_GUARD_SETS = "TMPDIR"
_READ_LATE = ("CUDA_VISIBLE_DEVICES",)
"""Beside vLLM's own variables: read by the driver when it is first touched, never before."""
_REQUEST_S = 10.0
"""How long a trial may take to send its request: it sends all of it at once."""


def main(arguments: Sequence[str] | None = None) -> int:
    path, module = sys.argv[1:] if arguments is None else arguments
    began_with = dict(os.environ)
    with _noting_reads() as read:
        import_all(module)
    if problem := _unfit():
        print(f"no warm starts: {problem}", flush=True)
        return 1
    gc.collect()
    # Else the first collection in each copy writes to, and so copies, every page with an object on it.
    gc.freeze()
    try:
        _Launcher(Path(path), module, began_with, frozenset(read)).serve()
    finally:
        _clear_away(Path(path))
    return 0


def _clear_away(path: Path) -> None:
    """Remove the socket, and its folder where nothing else of value is in it: who made them may be gone."""
    for name in (path.name, LOG_NAME, OWNER):
        path.with_name(name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _unfit() -> str | None:
    """Why a copy of this process would not be what a fresh one is; None where it would."""
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        return f"importing the engine started threads: {', '.join(others)}"
    return touched_accelerator()


@contextlib.contextmanager
def _noting_reads() -> Iterator[set[str]]:
    """Collects the names of environment variables that Python code reads meanwhile."""
    names: set[str] = set()

    class Noting(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> str:
            names.add(key)
            value: str = super().__getitem__(key)
            return value

    plain = os.environ.__class__
    os.environ.__class__ = Noting
    try:
        yield names
    finally:
        os.environ.__class__ = plain


class _Launcher:
    """Serves requests, one at a time, until its standard input closes."""

    def __init__(self, path: Path, module: str, began_with: Mapping[str, str], read: frozenset[str]) -> None:
        self._path = path
        self._module = module
        self._began_with = began_with
        self._read = read
        # vLLM and what it imports set variables for themselves and for their children.
        self._imported = {name: value for name, value in os.environ.items() if began_with.get(name) != value}
        self._surroundings = surroundings()

    def serve(self) -> None:
        wake = signals_as_bytes()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self._path))
            listener.listen()
            print(READY, flush=True)
            while True:
                ready, _, _ = select.select([listener, sys.stdin, wake], [], [])
                if sys.stdin in ready and not os.read(sys.stdin.fileno(), 1):
                    return
                if wake in ready and set(os.read(wake, 1024)) - {signal.SIGCHLD}:
                    return
                _collect_children()
                if listener in ready:
                    try:
                        self._answer(listener, wake)
                    except (OSError, ValueError) as error:  # the trial is gone, or is none of ours
                        print(f"a request failed: {error}", flush=True)

    def _answer(self, listener: socket.socket, wake: int) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_REQUEST_S)
            start, descriptors = receive_start(connection)
            try:
                if refused := self._refusal(start):
                    send(connection, Answer(refused=refused))
                    return
                pid = os.fork()
                if pid == 0:
                    for own in (connection, listener):
                        own.close()
                    os.close(wake)
                    self._be_the_guard(start, descriptors)
                send(connection, Answer(guard=pid))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _refusal(self, start: Start) -> str | None:
        """Why a copy of this process would not be what this start asks for."""
        python, flag, module = (*start.command, "", "", "")[:3]
        if (python, flag, module) != (sys.executable, "-m", self._module):
            return f"it has {self._module} imported, not what `{python} {flag} {module}` runs"
        names = self._began_with.keys() | start.environment.keys()
        differ = sorted(
            name
            for name in names - {_GUARD_SETS}
            if self._began_with.get(name) != start.environment.get(name) and not self._may_differ(name)
        )
        if differ:
            return f"it was started with another {', '.join(differ)}"
        other = [what for what, value in start.surroundings.items() if self._surroundings.get(what) != value]
        return f"it runs with another {', '.join(other)}" if other else None

    def _may_differ(self, name: str) -> bool:
        return name not in self._read and (name.startswith("VLLM_") or name in _READ_LATE)

    def _be_the_guard(self, start: Start, descriptors: Sequence[int]) -> NoReturn:
        """Never returns: what is above belongs to the launcher."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            held, log, told = descriptors
            os.dup2(held, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            for descriptor in (held, log):
                os.close(descriptor)
            status = guard(
                start.command,
                Path(start.log),
                Path(start.record),
                start.grace_s,
                Path(start.directory),
                start=partial(self._forked, start, told),
                owned=lambda: is_running(start.owner, start.owner_started),
            )
            os.write(told, str(status).encode())
        except BaseException:  # noqa: BLE001  # nothing may unwind into the launcher's own frames
            traceback.print_exc()
        finally:
            _flush()
            os._exit(status)

    def _forked(self, start: Start, told: int, scratch: str) -> "_Forked":
        """The engine as a copy of the guard, which is a copy of the launcher."""
        here = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(told)
                die_with_parent(here)
                os.setpgid(0, 0)
                status = self._be_the_engine(start, scratch)
            except BaseException:  # noqa: BLE001  # as above
                traceback.print_exc()
            finally:
                _flush()
                os._exit(status)
        return _Forked(pid)

    def _be_the_engine(self, start: Start, scratch: str) -> int:
        """Run the module as `python -m` does, to the end of the interpreter's own work at exit."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.chdir(start.directory)
        wanted = {**start.environment, **self._imported, _GUARD_SETS: scratch}
        for name in os.environ.keys() - wanted.keys():
            del os.environ[name]
        os.environ.update(wanted)
        tempfile.tempdir = None  # found anew, in the guard's folder
        sys.path[0] = start.directory
        sys.argv = ["-m", *start.command[3:]]
        if "VLLM_WORKER_MULTIPROC_METHOD" not in start.environment:
            fork_the_core()
        leave_the_machine_undescribed()
        # It runs as `__main__`, and nobody but this process had imported it under its own name.
        sys.modules.pop(self._module, None)
        try:
            runpy.run_module(self._module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as leaving:
            status = _status(leaving)
        except KeyboardInterrupt:
            traceback.print_exc()
            status = 128 + signal.SIGINT
        except Exception:  # noqa: BLE001  # as the interpreter does
            traceback.print_exc()
            status = 1
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        return status


class _Forked:
    """A forked child with what the guard asks of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        status = self._collect(0)
        assert status is not None
        return status

    def _collect(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _status(leaving: SystemExit) -> int:
    """The exit status that the interpreter makes of it."""
    match leaving.code:
        case None:
            return 0
        case int(code):
            return code & 0xFF
        case message:
            print(message, file=sys.stderr)
            return 1


def _collect_children() -> None:
    """Guards that have ended; what they did is told by their own pipe."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    raise SystemExit(main())
