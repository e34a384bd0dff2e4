"""What a node has, as it says itself: hardware, versions, models. Reads only, takes well under a second."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.node.command import installed_version
from cluster.node.hardware import hardware_name
from cluster.node.model_files import ModelName, ModelState, state_of

_ASK_S = 20.0
"""nvidia-smi takes seconds where the driver has to be loaded first."""

_QUERY = ("name", "memory.total", "driver_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU of a node."""

    name: str
    """As its driver calls it: "NVIDIA H100 80GB HBM3"."""
    memory_mib: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node."""

    name: str = ""
    """What trials that ran there have as their node."""
    hardware: str
    """As `Ran.hardware` has it of a trial that takes all of the node."""
    accelerators: tuple[Accelerator, ...] = ()
    accelerator_type: str | None = None
    """Ray's name of it, which `resources.accelerator` of a space names."""
    gpus: float = 0.0
    """That Ray gives out."""
    cpus: float = 0.0
    """That Ray gives out."""
    memory_bytes: int
    python: str
    ray: str | None
    vllm: str | None
    """None: not installed."""
    models: Mapping[str, ModelState] = field(default_factory=dict)
    """What it has of those it was asked for."""


def node_facts(models: tuple[ModelName, ...] = ()) -> NodeFacts:
    """Of the machine that this runs on; what Ray knows of it is left out."""
    return NodeFacts(
        hardware=hardware_name(),
        accelerators=_accelerators(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        ray=_version("ray"),
        vllm=installed_version(),
        models={str(model): state_of(model) for model in models},
    )


def _accelerators() -> tuple[Accelerator, ...]:
    """Every GPU of the machine, whoever may use it: this asks for none, and Ray shows it none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):  # no GPU here, or a driver that does not answer
        return ()
    return parse_accelerators(told.stdout)


def parse_accelerators(told: str) -> tuple[Accelerator, ...]:
    """What nvidia-smi said, a line a GPU: `NVIDIA H100 80GB HBM3, 81559, 550.54.15`."""
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]
    return tuple(
        Accelerator(name=name, memory_mib=int(memory) if memory.isdecimal() else 0, driver=driver)
        for name, memory, driver in (row for row in rows if len(row) == len(_QUERY))
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
