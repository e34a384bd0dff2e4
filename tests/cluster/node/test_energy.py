"""Energy is what the chips count, and nothing where they do not."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.node import energy
from cluster.node.energy import energy_counter


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, kind, joules in (("0", "package-0", 5), ("0:0", "core", 3), ("1", "package-1", 7)):
        folder = tmp_path / f"intel-rapl:{name}"
        folder.mkdir()
        (folder / "name").write_text(f"{kind}\n")
        (folder / "energy_uj").write_text(f"{joules * 1_000_000}\n")
        (folder / "max_energy_range_uj").write_text("100000000\n")
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    return tmp_path


def test_packages_are_summed_and_what_lies_within_them_is_not(powercap: Path) -> None:
    assert energy_counter(0)() == pytest.approx(12)


def test_a_counter_that_starts_anew_goes_on_growing(powercap: Path) -> None:
    read = energy_counter(0)
    assert read() == pytest.approx(12)
    (powercap / "intel-rapl:1" / "energy_uj").write_text("2000000\n")
    assert read() == pytest.approx(5 + 100 + 2)


def test_a_counter_that_may_not_be_read_gives_no_sum(powercap: Path) -> None:
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert energy_counter(0)() is None


def test_a_machine_without_counters_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    assert energy_counter(0)() is None


class Refused(Exception):
    pass


def nvml(millijoules: dict[str, int]) -> SimpleNamespace:
    def total(handle: str) -> int:
        if handle not in millijoules:
            raise Refused
        return millijoules[handle]

    return SimpleNamespace(
        NVMLError=Refused,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: f"gpu {uuid}",
        nvmlDeviceGetTotalEnergyConsumption=total,
    )


@pytest.mark.parametrize(
    ("visible", "joules"),
    [(None, 5.5), ("1", 4.0), ("0,1", 5.5), ("GPU-a", 9.0), ("", None), ("-1", None), ("7", None)],
)
def test_the_gpus_that_may_be_used_are_summed(
    visible: str | None, joules: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        nvml({"gpu 0": 1500, "gpu 1": 4000, "gpu GPU-a": 9000}),
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert energy_counter(1)() == (None if joules is None else pytest.approx(joules))


def test_gpus_without_their_library_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy_counter(1)() is None
