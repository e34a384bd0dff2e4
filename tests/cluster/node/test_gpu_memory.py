from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.node.engine import EngineFailure
from cluster.node.gpu_memory import GpuMemory, wait_for_room
from cluster.node.hardware import gpu_holders, gpu_memory_mib
from cluster.node.vllm_server import VllmEngine
from cluster.order import Cause, Order
from search_spaces.values import Json
from tests.tuner import stories


def order(gpus: int = 1, **arguments: Json) -> Order:
    return replace(stories.order(0), gpus=gpus, arguments=arguments)


def waited(order: Order, *used_mib: int, wait_s: float = 60.0) -> str | None:
    """What is said where the GPU, of 80,000 MiB, has these in use, one look after another."""
    looks: Iterator[int] = iter(used_mib)

    def read() -> tuple[GpuMemory, ...]:
        return (GpuMemory(used_mib=next(looks), total_mib=80_000),)

    return wait_for_room(order, read=read, holders=lambda: ((4711, 40_000),), wait_s=wait_s, poll_s=0)


def test_memory_that_comes_back_late_is_waited_for() -> None:
    assert waited(order(), 60_000, 60_000, 30_000, 300) is None


def test_memory_that_never_comes_back_is_told_with_who_holds_it() -> None:
    assert waited(order(), 40_000, wait_s=-1) == (
        "GPU 0 has 40000 of 80000 MiB in use without an engine of ours, held by process 4711 (40000 MiB); "
        "the config takes 90%"
    )


@pytest.mark.parametrize(("share", "fits"), [(0.94, True), (0.96, False)])
def test_what_leaves_room_for_the_config_stops_nothing(share: float, fits: bool) -> None:
    # A display holds 4,000 of 80,000 MiB for good: 95 % is free.
    assert (waited(order(gpu_memory_utilization=share), 4_000, wait_s=-1) is None) is fits


def test_only_what_is_waited_for_is_told_and_once() -> None:
    def told(*used_mib: int) -> int:
        looks, times = iter(used_mib), list[None]()
        read = lambda: (GpuMemory(used_mib=next(looks), total_mib=80_000),)  # noqa: E731
        assert wait_for_room(order(), read=read, poll_s=0, waiting=lambda: times.append(None)) is None
        return len(times)

    assert told(300) == 0
    assert told(60_000, 30_000, 300) == 1


def test_without_a_gpu_nothing_is_asked() -> None:
    def never() -> tuple[GpuMemory, ...]:
        raise AssertionError

    assert wait_for_room(order(gpus=0), read=never) is None
    assert wait_for_room(order(), read=tuple) is None


SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) echo "4711, 70000" ;;
  *memory.total*) echo "70100, 80000" ;;
  *) echo 70100 ;;
esac
"""


@pytest.fixture
def full_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that tells of one GPU, nearly full."""
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("full_gpu")
def test_the_driver_is_asked_by_its_own_command() -> None:
    assert gpu_memory_mib() == ((70_100, 80_000),)
    assert gpu_holders() == ((4711, 70_000),)


@pytest.mark.usefixtures("full_gpu")
def test_an_engine_is_not_started_into_a_full_gpu_and_its_config_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cluster.node.vllm_server.wait_for_room", lambda order, **_: wait_for_room(order, wait_s=0.0)
    )
    with pytest.raises(EngineFailure, match="process 4711") as caught, VllmEngine().serve(order(), tmp_path):
        pass
    assert caught.value.cause is Cause.GPU_HELD
    assert not caught.value.cause.blames_config
