"""Where the wall time of a trial and of a study goes, on a real engine.

    python -m benchmarks.trial_cost starts [--space spaces/smollm2-135m.yaml] [--pairs 3] [--replays 1]
    python -m benchmarks.trial_cost study runs/NAME

`starts`: the control of the space is started cold (from its command) and warm (from a launcher), in turn, c w
w c …; each start plays the space's traffic `--replays` times. Printed: seconds until each stage, and the CPU
seconds that all of the engine's processes had taken by then, which a busy machine disturbs less; the ratio;
and latencies of both sides, which a launcher must not change.

`study`: the times of a finished search whose trials ran one after another, by what they went into.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.a_a import order_of
from cluster.node.command import engine_environment
from cluster.node.guard import read_record
from cluster.node.guarded import RECORD_NAME
from cluster.node.launcher_client import Launcher
from cluster.node.start_stages import READY, STAGES
from cluster.node.vllm_server import VllmEngine
from cluster.order import Order
from tuner.records import StoredTrial, read_trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    starts = commands.add_parser("starts")
    starts.add_argument("--space", default="spaces/smollm2-135m.yaml")
    starts.add_argument("--pairs", type=int, default=3)
    starts.add_argument("--requests", type=int, default=64)
    starts.add_argument("--replays", type=int, default=1)
    study = commands.add_parser("study")
    study.add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.command == "starts":
        compare_starts(order_of(asked.space, asked.requests, None), asked.pairs, asked.replays)
    else:
        print(study_table(read_trials(asked.folder)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One start of the engine and what it then did."""

    launch: str
    stages_s: Mapping[str, float]
    start_s: float
    cpu_s: float
    warm_up_s: float
    stop_s: float
    tpot_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    """Medians of each replay."""


def compare_starts(order: Order, pairs: int, replays: int) -> None:
    began_s = time.perf_counter()
    with Launcher(engine_environment(order.environment, os.environ)) as launcher:
        print(f"the launcher took {time.perf_counter() - began_s:.1f} s to come up", flush=True)
        if launcher.path is None:
            raise SystemExit(f"error: {launcher.problem}")
        cold, warm = VllmEngine(), VllmEngine(launcher.path)
        done: list[Started] = []
        for pair in range(pairs):
            for engine in (cold, warm) if pair % 2 == 0 else (warm, cold):
                done.append(start(engine, order, replays))
                one = done[-1]
                print(f"{one.launch}: {one.start_s:.1f} s, {one.cpu_s:.1f} s of CPU", flush=True)
    sides = [[one for one in done if one.launch == how] for how in ("cold", "warm")]
    print(starts_table(*sides))


def start(engine: VllmEngine, order: Order, replays: int) -> Started:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began_s = time.perf_counter()
        with engine.serve(order, folder) as endpoint:
            ready_s = time.perf_counter()
            cpu_s = cpu_of(folder)
            endpoint.warm_up(order.workload)
            warmed_s = time.perf_counter()
            played = []
            for _ in range(replays):
                endpoint.reset_caches()
                played.append(endpoint.play(order.workload, order.limits).records)
            over_s = time.perf_counter()
        return Started(
            launch=endpoint.launch,
            stages_s=endpoint.stages_s,
            start_s=ready_s - began_s,
            cpu_s=cpu_s,
            warm_up_s=warmed_s - ready_s,
            stop_s=time.perf_counter() - over_s,
            tpot_s=tuple(statistics.median(one.tpot_s for one in records) for records in played),
            ttft_s=tuple(statistics.median(one.ttft_s for one in records) for records in played),
        )


def cpu_of(folder: Path) -> float:
    """CPU seconds that the engine's processes have taken, those that have ended included."""
    record = read_record(folder / RECORD_NAME)
    assert record is not None
    ticks = 0
    for one in record.ours:
        # utime, stime, cutime and cstime: fields 14 to 17 (man 5 proc), after the command in parentheses.
        fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def starts_table(cold: Sequence[Started], warm: Sequence[Started]) -> str:
    """Medians and ranges of both sides, and warm over cold."""
    rows = [f"{'':26}{'cold':>24}{'warm':>24}{'warm / cold':>14}"]

    def row(name: str, sides: Sequence[Sequence[float]], unit: str = "s", scale: float = 1.0) -> None:
        shown = [
            f"{statistics.median(side) * scale:.2f} ({min(side) * scale:.2f}-{max(side) * scale:.2f}) {unit}"
            for side in sides
        ]
        ratio = statistics.median(sides[1]) / statistics.median(sides[0])
        rows.append(f"{name:26}{shown[0]:>24}{shown[1]:>24}{ratio:14.2f}")

    for stage in (*STAGES, READY):
        sides = [[one.stages_s[stage] for one in side if stage in one.stages_s] for side in (cold, warm)]
        if all(sides):
            row(f"until {stage}", sides)
    row("start, settings read back", [[one.start_s for one in side] for side in (cold, warm)])
    row("CPU of the start", [[one.cpu_s for one in side] for side in (cold, warm)])
    row("warm-up", [[one.warm_up_s for one in side] for side in (cold, warm)])
    row("stop", [[one.stop_s for one in side] for side in (cold, warm)])
    row("median TTFT", [[each for one in side for each in one.ttft_s] for side in (cold, warm)], "ms", 1e3)
    row("median TPOT", [[each for one in side for each in one.tpot_s] for side in (cold, warm)], "ms", 1e3)
    return "\n".join(rows)


def study_table(trials: Sequence[StoredTrial]) -> str:
    """Seconds and shares of the time from the first trial's start to the last one's end."""
    trials = sorted(trials, key=lambda trial: trial.started)
    wall_s = (trials[-1].finished - trials[0].started).total_seconds()
    rans = [trial.ran for trial in trials]
    parts = {
        "engine start": sum(ran.start_s or 0 for ran in rans),
        "warm-up": sum(ran.warm_up_s or 0 for ran in rans),
        "replay": sum(ran.replay_s or 0 for ran in rans),
        "quality probe": sum(ran.probe_s or 0 for ran in rans),
        "engine stop": sum(ran.stop_s or 0 for ran in rans),
    }
    parts["rest on the node"] = sum(ran.total_s or 0 for ran in rans) - sum(parts.values())
    flight_s = [(trial.finished - trial.started).total_seconds() for trial in trials]
    on_node_s = [ran.total_s or 0 for ran in rans]
    # The first on a node waits for its launcher, and for Ray to start a worker there.
    parts["before the first trial's engine"] = flight_s[0] - on_node_s[0]
    between_s = [flight - on_node for flight, on_node in zip(flight_s[1:], on_node_s[1:], strict=True)]
    parts["between driver and node"] = sum(between_s)
    idle_s = [
        (after.started - before.finished).total_seconds() for before, after in itertools.pairwise(trials)
    ]
    parts["driver, nothing under way"] = wall_s - sum(flight_s)
    ours_s = sum(list(parts.values())[-4:])
    ways: dict[str, list[float]] = {}
    for ran in rans:
        ways.setdefault(ran.launch.partition(":")[0], []).append(ran.start_s or 0)
    rows = [f"{len(trials)} trials in {wall_s:.1f} s"]
    rows += [f"{name:34}{took:9.2f} s {took / wall_s:7.2%}" for name, took in parts.items()]
    rows.append(f"{'the last four, which are ours':34}{ours_s:9.2f} s {ours_s / wall_s:7.2%}")
    if between_s:
        rows.append(
            f"of each but the first: median {statistics.median(between_s):.2f} s between driver and node, "
            f"{statistics.median(idle_s):.2f} s with nothing under way"
        )
    rows += [
        f"{len(took)} {how or 'other'} starts: median {statistics.median(took):.1f} s"
        for how, took in ways.items()
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
