"""A small study with curves, on disk and in an MLflow, as a search leaves it."""

from pathlib import Path

from cluster.order import Cause, Outcome
from tests.tuner import loads, stories
from tuner.front import read_view
from tuner.ledger import Ledger
from tuner.records import write_outcome, write_study


def small_study(runs: Path) -> Path:
    """Its folder: a control, a front of two, one dominated, one failed."""
    folder = runs / "tea"
    write_study(folder, loads.study())
    outcomes: list[Outcome] = [
        loads.measured(tpot_p95_s=0.04),
        loads.measured((loads.whole(1.5), loads.whole(6.0), loads.cut(6.3)), tpot_p95_s=0.02),
        loads.measured((loads.whole(1.5), loads.whole(9.0), loads.cut(9.3)), tpot_p95_s=0.03),
        loads.measured(loads.BELOW, tpot_p95_s=0.09),
        stories.failed(Cause.OUT_OF_MEMORY, "no room for <b>weights</b>"),
    ]
    for number, outcome in enumerate(outcomes):
        write_outcome(folder, stories.stored(outcome, number), outcome)
    return folder


def logged(runs: Path, folder: Path) -> None:
    """Into MLflow under the runs folder, ended."""
    uri = f"sqlite:///{runs.resolve() / 'mlflow.db'}"
    ledger = Ledger(uri, artifacts=runs / "mlartifacts", say=print)
    assert ledger.sync(folder, read_view(folder), "FINISHED")
