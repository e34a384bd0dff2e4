"""Which GPUs a process may use, by a made-up nvidia-smi."""

from pathlib import Path

import pytest

from cluster.node.hardware import hardware_name

_SMI = """#!/bin/sh
case "$*" in
  *"-i 0,1"*) printf 'NVIDIA L4\\nNVIDIA L4\\n' ;;
  *"-i 1"*) echo 'NVIDIA L4' ;;
  *-i*) exit 1 ;;
  *) printf 'NVIDIA L4\\nNVIDIA L4\\nNVIDIA L4\\n' ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize(
    ("visible", "name"),
    [(None, "3 × NVIDIA L4"), ("1", "NVIDIA L4"), ("0,1", "2 × NVIDIA L4")],
)
def test_hardware_is_what_is_visible(visible: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware_name() == name


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_hidden_gpus_leave_the_cpu(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert hardware_name().endswith("cores")
