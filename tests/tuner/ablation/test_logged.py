"""An ablation in MLflow: written once, completed, and caught up with when MLflow was down."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from cluster.order import Outcome
from objectives.factorial import Cell
from tests.tuner.ablation.desks import Desk, Q, measured, refused
from tuner.ablation.logged import family
from tuner.ablation.plan import PlannedRun
from tuner.family import Family
from tuner.ledger import Ledger
from tuner.records import read_trials

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


def answer(cell: Cell, run: PlannedRun) -> Outcome:
    return refused() if run.cell == {Q} else measured(e2e_mean_s=1.0 + run.number)


@pytest.fixture
def made(tmp_path: Path) -> Family:
    """Of one factor, whose cell is refused: its run, and four of the control."""
    desk = Desk(tmp_path)
    report = desk.run(answer, factors=(Q,))
    plan = desk.plan(factors=(Q,))
    return family(plan, report, read_trials(plan.folder))


class Kept:
    """An MLflow and a ledger that writes to it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.uri = uri
        self.said: list[str] = []
        self.folder = folder

    def write(self, family: Family) -> bool:
        return Ledger(self.uri, artifacts=self.folder / "artifacts", say=self.said.append).write_family(
            family
        )

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def runs(self) -> list[Run]:
        (experiment,) = (e for e in self.client.search_experiments() if e.name == "tuner/small")
        return list(self.client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL))


@pytest.fixture
def kept(tmp_path: Path, new_mlflow: Callable[[], str]) -> Kept:
    return Kept(tmp_path, new_mlflow())


def test_written_twice_it_is_there_once(kept: Kept, made: Family) -> None:
    assert kept.write(made)
    assert kept.write(made)
    members = [run for run in kept.runs() if "run" in run.data.tags]
    assert sorted(run.data.tags["run"] for run in members) == sorted(member.key for member in made.members)
    assert len(kept.runs()) == len(members) + 1
    assert {run.data.tags["cell"]: run.info.status for run in members} == {
        "base": "FINISHED",
        "all": "FAILED",
    }


def test_what_a_person_threw_away_is_not_written_again(kept: Kept, made: Family) -> None:
    assert kept.write(made)
    thrown = next(run for run in kept.runs() if "run" in run.data.tags)
    kept.client.delete_run(thrown.info.run_id)
    assert kept.write(made)
    assert len(kept.runs()) == len(made.members) + 1


def test_an_mlflow_that_is_down_is_told_of_and_caught_up_with(
    kept: Kept, made: Family, tmp_path: Path
) -> None:
    there, kept.uri = kept.uri, f"sqlite:///{tmp_path}/none.db/mlflow.db"
    (tmp_path / "none.db").write_text("")
    assert not kept.write(made)
    assert "cannot be written" in kept.said[0]
    kept.uri = there
    assert kept.write(made)
    assert len(kept.runs()) == len(made.members) + 1
