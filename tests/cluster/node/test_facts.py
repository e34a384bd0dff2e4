"""What a node says of itself."""

import platform

import psutil

from cluster.node.facts import Accelerator, node_facts, parse_accelerators
from cluster.node.model_files import ModelName, ModelState


def test_what_this_machine_has_agrees_with_another_tool() -> None:
    facts = node_facts((ModelName("/nowhere"),))
    assert facts.memory_bytes == psutil.virtual_memory().total
    assert facts.python == platform.python_version()
    assert facts.models == {"/nowhere": ModelState.MISSING}


def test_gpus_are_read_off_a_line_each_and_what_is_no_line_is_left_out() -> None:
    told = "NVIDIA H100 80GB HBM3, 81559, 550.54.15\nNVIDIA L4, [N/A], 550.54.15\nFailed to initialise\n\n"
    assert parse_accelerators(told) == (
        Accelerator(name="NVIDIA H100 80GB HBM3", memory_mib=81559, driver="550.54.15"),
        Accelerator(name="NVIDIA L4", memory_mib=0, driver="550.54.15"),
    )
