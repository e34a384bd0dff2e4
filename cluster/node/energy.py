"""Energy that the node's chips have taken, where they count it: joules, only ever growing.

GPUs count for themselves (NVML, since Volta). Where a trial is served by CPU, its packages do (RAPL), for
everything that runs on them, if this user may read it. Nobody's estimate is taken for a reading.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

_POWERCAP = Path("/sys/class/powercap")

Joules = Callable[[], float | None]
"""Reads the counters' sum; None once one of them cannot be read."""


class _Nvml(Protocol):
    """The part of `pynvml` that is used here; vLLM brings it along where there are GPUs."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any: ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, /) -> int: ...


def energy_counter(gpus: int) -> Joules:
    """The counters of the GPUs that this process may use, or of the CPUs where the trial takes no GPU."""
    return _of_gpus() if gpus else _of_packages(_POWERCAP)


def _of_gpus() -> Joules:
    try:
        nvml: _Nvml = importlib.import_module("pynvml")
    except ImportError:
        return _untold
    try:
        nvml.nvmlInit()
        handles = [_handle(nvml, name) for name in _visible(nvml)]
    except nvml.NVMLError:
        return _untold

    def read() -> float | None:
        try:
            millijoules = [nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        except nvml.NVMLError:
            return None
        return sum(millijoules) / 1000 if millijoules else None

    return read


def _visible(nvml: _Nvml) -> list[str]:
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [name.strip() for name in told.split(",") if name.strip() not in ("", "-1")]


def _handle(nvml: _Nvml, name: str) -> Any:
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def _of_packages(root: Path) -> Joules:
    """Packages alone: what else RAPL names (cores, memory) lies within them or is not everywhere."""
    packages = [_Package(path) for path in sorted(root.glob("intel-rapl:*")) if _is_package(path)]
    return (lambda: _sum(packages)) if packages else _untold


def _is_package(path: Path) -> bool:
    try:
        return (path / "name").read_text().startswith("package")
    except OSError:
        return False


class _Package:
    """One package's counter, which starts anew at its range."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: int | None = None
        self._turns = 0

    def joules(self) -> float | None:
        try:
            now = int((self._path / "energy_uj").read_text())
            whole = int((self._path / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            return None
        if self._last is not None and now < self._last:
            self._turns += 1
        self._last = now
        return (self._turns * whole + now) / 1e6


def _sum(packages: list[_Package]) -> float | None:
    read = [package.joules() for package in packages]
    known = [joules for joules in read if joules is not None]
    return sum(known) if len(known) == len(read) else None


def _untold() -> None:
    return None
