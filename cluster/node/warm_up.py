"""When an engine has warmed up, and whether it compiled after that all the same."""

import re
from collections.abc import Callable

ROUNDS = 5
"""Most rounds of warm-up: what has not settled by then will not."""
STEADY = 0.1
"""Two rounds in a row are alike if they differ by no more than this share of the longer."""


def until_steady(play_round: Callable[[int], float]) -> str | None:
    """Play rounds of the same work until two in a row take about as long.

    Args:
        play_round: plays the round of this number, from 0, and gives the seconds that it took.

    Returns:
        What to tell a reader, in one sentence, where that never happened; None where it did.
    """
    took_s = [play_round(0)]
    while len(took_s) < ROUNDS:
        took_s.append(play_round(len(took_s)))
        if abs(took_s[-1] - took_s[-2]) <= STEADY * max(took_s[-2:]):
            return None
    shown = ", ".join(f"{took:.2g}" for took in took_s)
    return f"the engine had not settled after {ROUNDS} rounds of warm-up, which took {shown} s"


def compiled(log: str) -> str | None:
    """Says that an engine whose log this is compiled or captured a graph, by its first line of it; else None.

    Lines of vLLM 0.32: its monitor of kernels compiled after start-up (utils/jit_monitor.py), torch.compile
    (compilation/monitor.py, compilation/backends.py), CUDA graphs (v1/worker/gpu_model_runner.py); and
    Triton's own of its autotuner.
    """
    found = _COMPILED.search(log)
    return None if found is None else f"the engine compiled meanwhile: {' '.join(found[0].split())}"


_COMPILED = re.compile(
    r"[\w ]*compilation during inference: [\w.]+"
    r"|(?:\[\w+\] )?Starting torch\.compile"
    r"|(?:\[\w+\] )?torch\.compile (?:took|and initial profiling).*"
    r"|(?:\[\w+\] )?Compiling a graph for compile range .*"
    r"|(?:\[\w+\] )?Dynamo bytecode transform time: .*"
    r"|Capturing .*(?:CUDA graphs|model for).*"
    r"|Graph capturing finished .*"
    r"|Autotuning kernel \S+|Triton autotuning for function [^\s,]+"
)
