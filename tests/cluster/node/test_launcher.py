"""The launcher on a module that stands for vLLM: processes, sockets, pipes and forks are real."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cluster.node.guard import read_record
from cluster.node.guarded import COLD, PACKAGE_ROOT, RECORD_NAME, WARM, GuardedProcess
from cluster.node.launcher_client import Launcher, NoWarmStart, start_warm
from cluster.node.launcher_wire import Start, surroundings
from cluster.node.processes import process

MODULE = "standin.serve"

STANDIN = textwrap.dedent(
    """
    import json, os, sys, tempfile, threading, time, atexit

    HEAVY = os.getpid()
    STARTED_WITH = os.environ.get("STANDIN_EARLY")
    os.environ.setdefault("SET_BY_IMPORT", "yes")
    if os.environ.get("STANDIN_THREAD"):
        threading.Thread(target=time.sleep, args=(600,), daemon=True, name="busy").start()
    if os.environ.get("STANDIN_BREAKS"):
        raise RuntimeError("no such library")
    """
)
"""What takes long to import."""

SERVE = textwrap.dedent(
    """
    import standin.heavy
    if __name__ == "__main__":
        import atexit, json, os, subprocess, sys, tempfile
        atexit.register(print, "at exit", flush=True)
        told = {
            "pid": os.getpid(), "imported_by": standin.heavy.HEAVY, "arguments": sys.argv[1:],
            "program": sys.argv[0], "directory": os.getcwd(), "path": sys.path[0], "group": os.getpgid(0),
            "session": os.getsid(0), "temporary": tempfile.gettempdir(), "environment": dict(os.environ),
            "input": sys.stdin.read(),
        }
        print(json.dumps(told), flush=True)
        match sys.argv[1:]:
            case ["wait"]:
                children = [subprocess.Popen(["sleep", "300"]) for _ in range(2)]
                print("now serving", flush=True)
                children[0].wait()
            case ["fail"]:
                raise ValueError("a wrong setting")
            case ["exit", status]:
                raise SystemExit(int(status))
    """
)


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("path")
    package = folder / "standin"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "heavy.py").write_text(STANDIN)
    (package / "serve.py").write_text(SERVE)
    return folder


@pytest.fixture(scope="module")
def environment(standin: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(standin), "STANDIN_EARLY": "1", "VLLM_READ_LATE": "1"}


@pytest.fixture(scope="module")
def launcher(environment: dict[str, str]) -> Iterator[Launcher]:
    with Launcher(environment, module=MODULE) as launcher:
        assert launcher.problem is None
        yield launcher


Guarded = Callable[..., GuardedProcess]


@pytest.fixture
def guarded(launcher: Launcher, environment: dict[str, str], tmp_path: Path) -> Guarded:
    def make(*arguments: str, **variables: str) -> GuardedProcess:
        return GuardedProcess(
            [sys.executable, "-m", MODULE, *arguments],
            folder=tmp_path,
            log=tmp_path / "engine.log",
            environment=environment | variables,
            grace_s=5.0,
            launcher=launcher.path,
        )

    return make


def wait_until(holds: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def ended(engine: GuardedProcess) -> int:
    assert wait_until(lambda: engine.exit_status is not None)
    status = engine.exit_status
    assert status is not None
    return status


def log_of(folder: Path) -> str:
    return (folder / "engine.log").read_text()


def told(folder: Path) -> dict[str, object]:

    line = next(line for line in log_of(folder).splitlines() if line.startswith("{"))
    found: dict[str, object] = json.loads(line)
    return found


def running(pids: tuple[int, ...]) -> list[int]:
    return [pid for pid in pids if (found := process(pid)) is not None and not found.zombie]


def test_a_warm_start_is_what_the_command_would_be_but_imports_nothing(
    guarded: Guarded, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    both: dict[str, dict[str, object]] = {}
    for how in (WARM, COLD):
        engine = guarded("exit", "0", VLLM_READ_LATE="2", CUDA_VISIBLE_DEVICES="3")
        engine._launcher = launcher.path if how == WARM else None
        with engine:
            assert engine.launch == how
            assert ended(engine) == 0
        both[how] = told(tmp_path)
        assert log_of(tmp_path).splitlines()[-1] == "at exit"
        (tmp_path / "engine.log").unlink()
    warm, cold = both[WARM], both[COLD]
    assert cold["imported_by"] == cold["pid"]
    assert warm["imported_by"] == launcher.pid
    for differs in ("pid", "imported_by", "group", "session", "temporary"):
        assert warm.pop(differs) != cold.pop(differs)
    for found in (warm, cold):
        variables = found["environment"]
        assert isinstance(variables, dict)
        assert variables["VLLM_READ_LATE"] == "2"
        assert variables["SET_BY_IMPORT"] == "yes"
        del variables["TMPDIR"]
    assert warm == cold
    assert warm["directory"] == warm["path"] == str(here)


def test_an_exit_status_and_an_error_reach_the_trial(guarded: Guarded, tmp_path: Path) -> None:
    with guarded("exit", "7") as engine:
        assert ended(engine) == 7
    with guarded("fail") as engine:
        assert ended(engine) == 1
    assert log_of(tmp_path).splitlines()[-2:] == ["ValueError: a wrong setting", "at exit"]
    assert not (tmp_path / RECORD_NAME).exists()


def test_a_warm_engine_leads_a_group_in_its_guards_session_and_a_stop_leaves_nothing(
    guarded: Guarded, tmp_path: Path
) -> None:
    with guarded("wait") as engine:
        assert wait_until(lambda: "now serving" in log_of(tmp_path))
        record = read_record(tmp_path / RECORD_NAME)
        assert record is not None
        found = told(tmp_path)
        assert found["session"] == record.pid
        assert found["group"] == found["pid"] == record.command_pid
        assert found["temporary"] == record.scratch
        pids = engine.pids
        assert len(pids) == 4  # guard, engine, its two children
        assert engine.alive
    assert running(pids) == []
    assert not engine.alive
    assert engine.exit_status == 128 + signal.SIGTERM
    assert not (tmp_path / RECORD_NAME).exists()
    assert not Path(record.scratch).exists()


def test_kill_9_of_a_warm_guard_kills_the_engine_and_a_stop_sweeps_up_the_rest(
    guarded: Guarded, tmp_path: Path
) -> None:
    with guarded("wait") as engine:
        assert wait_until(lambda: "now serving" in log_of(tmp_path))
        guard, command, *children = engine.pids
        os.kill(guard, signal.SIGKILL)
        assert wait_until(lambda: not engine.alive)
        assert len(running(tuple(children))) == 2
        assert engine.stop() == -signal.SIGKILL
    assert running((guard, command, *children)) == []


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"STANDIN_EARLY": "2"}, "STANDIN_EARLY"),
        ({"NOBODY_KNOWS": "1"}, "NOBODY_KNOWS"),
        ({"VLLM_PLUGINS": ""}, None),
    ],
)
def test_a_variable_that_importing_could_have_read_is_a_cold_start(
    guarded: Guarded, tmp_path: Path, variables: Mapping[str, str], named: str | None
) -> None:
    with guarded("exit", "0", **variables) as engine:
        assert ended(engine) == 0
    if named is None:
        assert engine.launch == WARM
        return
    reason = f"not from the launcher: it was started with another {named}"
    assert engine.launch == f"cold: {reason}"
    assert log_of(tmp_path).splitlines()[0] == f"[tuner] a cold start: {reason}"
    assert told(tmp_path)["pid"] == told(tmp_path)["imported_by"]


def test_another_command_is_a_cold_start(launcher: Launcher, tmp_path: Path) -> None:
    with GuardedProcess(
        ["sh", "-c", "echo other"],
        folder=tmp_path,
        log=tmp_path / "engine.log",
        environment=os.environ,
        grace_s=1,
        launcher=launcher.path,
    ) as engine:
        assert ended(engine) == 0
    assert engine.launch.startswith("cold: not from the launcher: it has standin.serve imported")
    assert log_of(tmp_path).splitlines()[-1] == "other"


def test_other_processors_are_a_cold_start(
    guarded: Guarded, launcher: Launcher, environment: dict[str, str], tmp_path: Path
) -> None:
    assert launcher.path is not None
    start = Start(
        command=(sys.executable, "-m", MODULE, "exit", "0"),
        environment=environment,
        directory=str(tmp_path),
        log=str(tmp_path / "engine.log"),
        record=str(tmp_path / RECORD_NAME),
        grace_s=1.0,
        owner=os.getpid(),
        owner_started=0,
        surroundings=surroundings() | {"CPUs": "none"},
    )
    with (tmp_path / "engine.log").open("ab") as log, pytest.raises(NoWarmStart, match="another CPUs"):
        start_warm(launcher.path, start, log.fileno())


def test_an_engine_outlives_its_launcher_and_the_next_start_is_cold(
    environment: dict[str, str], guarded: Guarded, tmp_path: Path
) -> None:
    with Launcher(environment, module=MODULE) as launcher:
        assert launcher.pid is not None
        engine = guarded("wait")
        engine._launcher = launcher.path
        with engine:
            assert wait_until(lambda: "now serving" in log_of(tmp_path))
            os.kill(launcher.pid, signal.SIGKILL)
            folder = tmp_path / "next"
            folder.mkdir()
            with GuardedProcess(
                [sys.executable, "-m", MODULE, "exit", "0"],
                folder=folder,
                log=folder / "engine.log",
                environment=environment,
                grace_s=1,
                launcher=launcher.path,
            ) as later:
                assert ended(later) == 0
            assert later.launch.startswith("cold: not from the launcher: it does not answer")
            assert engine.alive
            pids = engine.pids
            assert len(pids) == 4
        assert running(pids) == []


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("STANDIN_BREAKS", "RuntimeError: no such library"),
        ("STANDIN_THREAD", "importing the engine started threads: busy"),
    ],
)
def test_a_launcher_that_cannot_be_copied_says_so_and_ends(
    environment: dict[str, str], variable: str, problem: str
) -> None:
    with Launcher(environment | {variable: "1"}, module=MODULE) as launcher:
        assert launcher.path is None
        assert launcher.problem is not None
        assert problem in launcher.problem


OWNER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from cluster.node.guarded import GuardedProcess
    from cluster.node.launcher_client import Launcher
    folder = Path(sys.argv[1])
    with Launcher(os.environ, module="standin.serve") as launcher:
        with GuardedProcess([sys.executable, "-m", "standin.serve", "wait"], folder=folder,
                            log=folder / "engine.log", environment=os.environ, grace_s=1.0,
                            launcher=launcher.path) as engine:
            (folder / "pids").write_text(f"{launcher.pid} {engine.launch} {launcher.path}")
            time.sleep(300)
    """
)


def test_kill_9_of_who_keeps_the_launcher_and_the_engine_leaves_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        cwd=PACKAGE_ROOT,
        env=environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}:{PACKAGE_ROOT}"},
    )
    assert wait_until(lambda: (tmp_path / "engine.log").exists() and "now serving" in log_of(tmp_path), 60)
    record = read_record(tmp_path / RECORD_NAME)
    assert record is not None
    assert wait_until(lambda: (tmp_path / "pids").exists() and bool((tmp_path / "pids").read_text()))
    launcher, launch, path = (tmp_path / "pids").read_text().split()
    assert launch == WARM
    pids = (int(launcher), *(one.pid for one in record.ours))
    assert Path(path).exists()
    assert len(pids) == 5
    owner.kill()
    owner.wait()
    assert wait_until(lambda: running(pids) == [])
    assert not (tmp_path / RECORD_NAME).exists()
    assert not Path(path).parent.exists()
