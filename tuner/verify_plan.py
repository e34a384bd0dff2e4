"""What a verification will run: the config and the control in alternation, a pair of runs for each traffic.

    <folder>/design.json          all of that, written before anything runs
            /trials/0000/         one folder a run, as a trial's (`tuner.records`)
            /verification.json    what they show, once all are over (`tuner.verify.stored`)

Runs alternate a b b a, so that what drifts in one direction falls on both alike. Each pair has traffic of its
own. After the pairs that promises are judged by comes one for each kind of stress.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cluster.traffic.stress import burst, permuted
from cluster.traffic.workload import Workload
from objectives.factorial import Cell
from search_spaces.values import Json, Scalar
from tuner.ablation.plan import DESIGN, PlannedRun
from tuner.mistakes import Mistake
from tuner.records import REQUESTS, RecordError, StoredTrial, trial_folder
from tuner.series import read_records
from tuner.verify.judge import Pair, Side, limit_shares
from tuner.verify.promised import Promised
from tuner.verify.stored import VERIFICATION, VERIFY
from tuner.verify.traffic import HeldOut
from tuner.verify.verification import Source

CONFIG: Cell = frozenset()
"""A run of it that fails by its own fault ends a verification: there is nothing left to find out."""
CONTROL: Cell = frozenset({"control"})

STRESSES: tuple[Literal["permuted arrivals", "burst"], ...] = ("permuted arrivals", "burst")

SCHEMA = 1
"""Of design.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """The runs of one verification (a `tuner.ablation.plan.Runs`)."""

    promised: Promised
    folder: Path
    source: Source
    traffic: HeldOut
    draw: int
    """Of the traffic: how many verifications of this config there were before."""
    trace: str | None
    """The file of held-out traffic that was given."""
    with_control: bool
    stress: bool
    is_control_itself: bool
    """Whether the config is the control: the two sides are one and the same (A/A)."""
    not_judged: tuple[str, ...] = ()
    """What of the promise cannot be told this way, one sentence each."""
    remarks: tuple[str, ...] = ()
    """What a reader must know beside what the runs tell."""

    @property
    def pairs(self) -> int:
        """Those that promises are judged by."""
        return len(self.traffic.workloads)

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        found: list[PlannedRun] = []
        for block in range(self.pairs + (len(STRESSES) if self.stress else 0)):
            sides = (CONFIG, CONTROL) if block % 2 == 0 else (CONTROL, CONFIG)
            for cell in sides if self.with_control else (CONFIG,):
                found.append(PlannedRun(number=len(found), block=block, cell=cell))
        return tuple(found)

    def workload(self, block: int) -> Workload:
        """What both runs of a pair are played."""
        if block < self.pairs:
            return self.traffic.workloads[block]
        first = self.traffic.workloads[0]
        kind = STRESSES[block - self.pairs]
        hard = burst(first.trace) if kind == "burst" else permuted(first.trace, seed=first.seed)
        return replace(first, trace=hard)

    def name(self, cell: Cell) -> str:
        return "control" if cell else "config"

    def levels(self, cell: Cell) -> dict[str, Scalar]:
        return {"side": self.name(cell)}

    def is_control(self, cell: Cell) -> bool:
        return bool(cell) or self.is_control_itself

    def raw(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "study": self.promised.study,
            "trial": self.promised.trial,
            "source": self.source,
            "pairs": self.pairs,
            "stress": self.stress,
            "control": self.with_control,
            "trace": self.trace,
            "draw": self.draw,
            "digests": [workload.trace.digest for workload in self.traffic.workloads],
            "speeds": [workload.speed for workload in self.traffic.workloads],
            "runs": [
                {"number": run.number, "pair": run.block, "side": self.name(run.cell)} for run in self.runs
            ],
        }


def place(folder: Path, trial: int) -> tuple[Path, int]:
    """Where the next verification of a config goes, and how many there were: one that was begun and is not
    over goes on."""
    at, draw = folder / VERIFY / f"trial-{trial:04d}", 0
    while (at / VERIFICATION).exists():
        draw += 1
        at = folder / VERIFY / f"trial-{trial:04d}-{draw + 1}"
    return at, draw


def check_begun(plan: VerifyPlan) -> None:
    """Raise Mistake where the verification was begun otherwise than this."""
    path = plan.folder / DESIGN
    if not path.exists():
        return
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name, value in plan.raw().items() if begun[name] != value and name != "runs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if differing:
        plain = [name for name in differing if name not in ("digests", "speeds")]
        was = ", ".join(f"{name} {begun[name]}" for name in plain) or "other traffic"
        raise Mistake(f"{plan.folder} was begun with {was}; ask the same to go on, or move that folder away")


def pairs_of(plan: VerifyPlan, finished: Sequence[StoredTrial]) -> tuple[Pair, ...]:
    """Every pair with what was measured of it, those of stress last, as far as they were planned."""
    there = {trial.number: trial for trial in finished}
    found: dict[int, dict[str, Side | None]] = {}
    for run in plan.runs:
        trial = there.get(run.number)
        found.setdefault(run.block, {})[plan.name(run.cell)] = None if trial is None else _side(plan, trial)
    return tuple(Pair(config=pair["config"], control=pair.get("control")) for pair in found.values())


def _side(plan: VerifyPlan, trial: StoredTrial) -> Side | None:
    if trial.measurement is None:
        return None
    path = trial_folder(plan.folder, trial.number) / REQUESTS
    try:
        records = read_records(path)
    except (OSError, ValueError) as error:  # what pyarrow raises is one of the two
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    return Side(measurement=trial.measurement, met=limit_shares(records, plan.promised.slo))
