"""Studies with curves, on disk and in an MLflow, as a search leaves them: a small one and a large one."""

import dataclasses
from pathlib import Path

from cluster.order import Cause, Outcome
from tests.tuner import loads, stories
from tuner.front import read_view
from tuner.ledger import Ledger
from tuner.records import write_outcome, write_study

LARGE = 300


def small_study(runs: Path) -> Path:
    """Its folder: a control, a front of two, one dominated, one failed."""
    outcomes: list[Outcome] = [
        loads.measured(tpot_p95_s=0.04),
        loads.measured((loads.whole(1.5), loads.whole(6.0), loads.cut(6.3)), tpot_p95_s=0.02),
        loads.measured((loads.whole(1.5), loads.whole(9.0), loads.cut(9.3)), tpot_p95_s=0.03),
        loads.measured(loads.BELOW, tpot_p95_s=0.09),
        stories.failed(Cause.OUT_OF_MEMORY, "no room for <b>weights</b>"),
    ]
    return _written(runs, "tea", outcomes)


def large_study(runs: Path) -> Path:
    """Its folder: 300 trials, a control, every tenth failed, and a front of some 30, whose TPOT rises with
    their capacity."""
    outcomes: list[Outcome] = [loads.measured(tpot_p95_s=0.04)]
    for number in range(1, LARGE):
        speed = 3.0 + 9.0 * (number % 31) / 30
        # Every other trial is slower than one of the front by a tenth.
        slower = 1.0 if number < 32 else 1.1 + number % 7 / 20
        outcomes.append(
            stories.failed(Cause.OUT_OF_MEMORY, "no room for weights")
            if number % 10 == 9
            else loads.measured(
                (loads.whole(1.5), loads.whole(speed), loads.cut(1.05 * speed)),
                tpot_p95_s=0.002 * speed * slower,
            )
        )
    return _written(runs, "kettle", outcomes)


def _written(runs: Path, name: str, outcomes: list[Outcome]) -> Path:
    folder = runs / name
    write_study(folder, dataclasses.replace(loads.study(), name=name, id=f"{name}-1f"))
    for number, outcome in enumerate(outcomes):
        stored = stories.stored(outcome, number)
        write_outcome(folder, stored, outcome)
    return folder


def logged(runs: Path, folder: Path) -> None:
    """Into MLflow under the runs folder, ended."""
    uri = f"sqlite:///{runs.resolve() / 'mlflow.db'}"
    ledger = Ledger(uri, artifacts=runs / "mlartifacts", say=print)
    assert ledger.sync(folder, read_view(folder), "FINISHED")
