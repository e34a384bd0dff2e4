"""A workload: a trace made playable, with a speed, sampling settings and a seed."""

from dataclasses import dataclass

from cluster.traffic.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every config of a study is played. Frozen, pickles."""

    trace: Trace
    speed: float = 1.0
    """Arrival times are divided by this: 2 plays the trace in half its recorded time."""
    seed: int = 0
    tokenizer: str = ""
    """Model (hub id or local folder) whose tokenizer turns blocks into prompts: the space's own model,
    so that a config with another checkpoint still gets the same tokens."""
    temperature: float = 0.0
