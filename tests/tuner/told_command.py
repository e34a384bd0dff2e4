"""`python -m tests.tuner.told_command WORDS…`: the `tuner` command, its simulated engine told by files."""

import cluster.node.simulated
from tests.tuner.told_engine import ToldEngine
from tuner.cli import main

if __name__ == "__main__":
    setattr(cluster.node.simulated, "SimulatedEngine", ToldEngine)  # noqa: B010 - another type, by intent
    main(prog_name="tuner")
