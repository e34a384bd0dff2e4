"""Samplers against each other on a real engine, with equal trials: studies made in turn, then compared.

    python -m benchmarks.real_search run --space spaces/smollm2-135m.yaml --speed 0.75 --trials 14 --seeds 3
    python -m benchmarks.real_search report runs/compare-*

`run` makes one study a sampler and seed, in turn, with the command line that a user would type (`tuner search
--measure fixed`), each with its own control; called again it goes on where it was stopped. `report` scores
the studies by what they recommend after so many trials: the front of what each had measured by then, taken
at the mean of what all studies together measured of each config, since a lucky measurement is no better
config. The share is the hypervolume over that of the front of all studies' configs, from a tenth of its
extent beyond its worst ends, as in `benchmarks.search`: the true front is not known here, only the best that
any of them found.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from objectives.front import hypervolume, non_dominated
from objectives.goal import Goal
from objectives.metrics import METRICS
from tuner.mistakes import Mistake
from tuner.records import State, StoredTrial, read_study, read_trials

Array = NDArray[np.float64]

SAMPLERS = ("ehvi", "tpe", "random")
"""`tpe` is Optuna's, multivariate; all three draw within what the space allows and learn what is refused."""
_MARGIN = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--space", default="spaces/smollm2-135m.yaml")
    run.add_argument("--speed", type=float, required=True)
    run.add_argument("--trials", type=int, default=14)
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--runs", type=Path, default=Path("runs"))
    report = commands.add_parser("report")
    report.add_argument("studies", nargs="+", type=Path)
    report.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        if asked.command == "run":
            make_studies(asked.space, asked.speed, asked.trials, asked.seeds, asked.runs)
        else:
            told = compared([Study.read(folder) for folder in asked.studies])
            print(json.dumps(told, indent=2) if asked.json else table(told))
    except (Mistake, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    except subprocess.CalledProcessError as error:  # it has said why
        raise SystemExit(error.returncode) from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on") from None


def make_studies(space: str, speed: float, trials: int, seeds: int, runs: Path) -> None:
    """One study a seed and sampler; their order turns with the seed, so that no sampler is always first."""
    for seed in range(seeds):
        for sampler in SAMPLERS[seed % len(SAMPLERS) :] + SAMPLERS[: seed % len(SAMPLERS)]:
            name = f"compare-{sampler}-{seed}"
            if (runs / name).exists():
                command = ["--resume", "--study", name, "--trials", str(trials)]
            else:
                command = [
                    "--space",
                    space,
                    "--measure",
                    "fixed",
                    "--speed",
                    str(speed),
                    "--sampler",
                    sampler,
                ]
                command += ["--seed", str(seed), "--trials", str(trials), "--study", name]
            tuner = str(Path(sys.executable).with_name("tuner"))
            whole = [tuner, "search", *command, "--runs", str(runs)]
            print(" ".join(whole), flush=True)
            subprocess.run(whole, check=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study measured, trial by trial."""

    sampler: str
    seed: int
    goal: Goal
    trials: tuple[StoredTrial, ...]
    """By number."""

    @classmethod
    def read(cls, folder: Path) -> "Study":
        """Raises RecordError where there is no study."""
        file = read_study(folder)
        goal = Goal.of(file.objectives)
        return cls(sampler=file.sampler, seed=file.seed, goal=goal, trials=tuple(read_trials(folder)))

    def losses(self, trial: StoredTrial) -> tuple[float, ...] | None:
        """None of a trial without a score."""
        if trial.state is not State.MEASURED or trial.measurement is None:
            return None
        return self.goal.losses(trial.measurement)


class Row(TypedDict):
    """What one study had after so many trials."""

    sampler: str
    seed: int
    trials: int
    failed: int
    share: dict[int, float]
    best: dict[int, float]
    """The first objective's, in people's units."""
    control: float
    control_share: float


class Compared(TypedDict):
    """All of them."""

    objectives: list[str]
    configs: int
    front: list[list[float]]
    """Of all studies' configs, in people's units."""
    studies: list[Row]


def key_of(trial: StoredTrial) -> str:
    """The config that a trial measured, the same in every study."""
    return json.dumps([trial.model, dict(trial.arguments), dict(trial.environment)], sort_keys=True)


def compared(studies: Sequence[Study]) -> Compared:
    """By study, what it had after each number of trials.

    Raises ValueError for studies of different objectives or none measured.
    """
    if len({study.goal.names for study in studies}) != 1:
        raise ValueError("the studies have different objectives")
    means = pooled(studies)
    if not means:
        raise ValueError("none of these studies has measured anything")
    worths = np.array(list(means.values()))
    front = worths[non_dominated(worths)]
    best, worst = front.min(axis=0), front.max(axis=0)
    extent = np.where(best < worst, worst - best, np.abs(worst))  # a front of one has none
    reference = tuple(float(x) for x in worst + _MARGIN * extent)
    whole = hypervolume(front, reference)
    rows: list[Row] = []
    for study in studies:
        measured = [(study.losses(trial), trial) for trial in study.trials]
        counts = sorted({*range(4, len(measured), 2), len(measured)})
        shares, goods = {}, {}
        for count in counts:
            seen = [(losses, trial) for losses, trial in measured[:count] if losses is not None]
            mask = non_dominated([losses for losses, _ in seen])
            told = [means[key_of(trial)] for (_, trial), on in zip(seen, mask, strict=True) if on]
            shares[count] = hypervolume(told, reference) / whole if told else 0.0
            goods[count] = _shown(study.goal, 0, min((row[0] for row in told), default=float("nan")))
        failed = sum(losses is None for losses, _ in measured)
        control = means[key_of(study.trials[0])]
        rows.append(
            {
                "sampler": study.sampler,
                "seed": study.seed,
                "trials": len(measured),
                "failed": failed,
                "share": shares,
                "best": goods,
                "control_share": hypervolume([control], reference) / whole,
                "control": _shown(study.goal, 0, control[0]),
            }
        )
    return {
        "objectives": list(studies[0].goal.names),
        "configs": len(means),
        "front": [[_shown(studies[0].goal, j, row[j]) for j in range(len(row))] for row in front],
        "studies": rows,
    }


def pooled(studies: Sequence[Study]) -> Mapping[str, tuple[float, ...]]:
    """By config, the mean of what all studies measured of it."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for study in studies:
        for trial in study.trials:
            losses = study.losses(trial)
            if losses is not None:
                found[key_of(trial)].append(losses)
    return {
        key: tuple(float(x) for x in np.mean(np.array(rows, dtype=np.float64), axis=0))
        for key, rows in found.items()
    }


def _shown(goal: Goal, j: int, loss: float) -> float:
    """A loss in people's units."""
    objective = goal.objectives[j]
    return METRICS[objective.metric].factor * (-loss if objective.direction == "maximise" else loss)


def table(told: Compared) -> str:
    """For people: each study, and the median of each sampler."""
    rows = told["studies"]
    first = told["objectives"][0]
    counts = sorted({count for row in rows for count in row["share"]})
    head = [*(f"share {count}" for count in counts), f"best {first}", "failed", "control", "its share"]
    lines = [
        "| sampler | seed | " + " | ".join(head) + " |",
        "| --- | --- |" + " --- |" * len(head),
    ]
    samplers = sorted({row["sampler"] for row in rows}, key=lambda name: (*SAMPLERS, name).index(name))
    for row in sorted(rows, key=lambda row: (samplers.index(row["sampler"]), row["seed"])):
        shares = [f"{row['share'][count]:.2f}" if count in row["share"] else "" for count in counts]
        last = row["best"][max(row["best"])]
        cells = [*shares, f"{last:.2f}", f"{row['failed']}", f"{row['control']:.2f}"]
        lines.append(
            f"| {row['sampler']} | {row['seed']} | {' | '.join(cells)} | {row['control_share']:.2f} |"
        )
    for sampler in samplers:
        of_it = [row for row in rows if row["sampler"] == sampler]
        shares = [[row["share"][count] for row in of_it if count in row["share"]] for count in counts]
        medians = [f"{statistics.median(some):.2f}" if some else "" for some in shares]
        lines.append(f"| **{sampler}** | median | {' | '.join(medians)} | | | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
