"""One MLflow database, made once a session: making its tables takes seconds, copying the file does not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.ledger import Ledger


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow")
    database = folder / "template.db"
    complaints: list[str] = []
    ledger = Ledger(f"sqlite:///{database}", artifacts=folder / "artifacts", say=complaints.append)
    assert ledger.prepare(), complaints
    return database


@pytest.fixture
def new_mlflow(mlflow_template: Path, tmp_path: Path) -> Callable[[], str]:
    """Makes an empty MLflow database under the test's own folder; its URI."""

    def make() -> str:
        database = tmp_path / "mlflow.db"
        shutil.copy(mlflow_template, database)
        return f"sqlite:///{database}"

    return make
