"""Names of vLLM's engine arguments, for an engine that has no vLLM to ask: a misspelt one is not played.

`vllm_arguments.txt` lists the names that the parser of vLLM 0.32 takes; a test holds it against the parser
of the vLLM installed. Values are not judged here: what the simulation reads it refuses at start.
"""

import importlib.resources
from collections.abc import Mapping, Sequence

from cluster.node.vllm_arguments import ArgumentFault, Checked, no_such_argument
from search_spaces.values import Json

VERSION = "0.32.0"


def known_names() -> frozenset[str]:
    """Every argument, by vLLM's own spelling with underscores."""
    text = (importlib.resources.files("cluster.node.simulation") / "vllm_arguments.txt").read_text()
    return frozenset(text.split())


def check_names(configs: Sequence[Mapping[str, Json]]) -> Checked:
    """The arguments of these configs that vLLM does not have, with the nearest that it has."""
    known = known_names()
    faults = tuple(
        ArgumentFault(index=index, argument=name, message=no_such_argument(name, known))
        for index, config in enumerate(configs)
        for name in config
        if name not in known
    )
    return Checked(version=VERSION, faults=faults)
