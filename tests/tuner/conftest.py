"""One MLflow database, made once a session: making its tables takes seconds, copying the file does not."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("mlflow") / "template.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # MLflow 3.17 on SQLAlchemy 2.1
        MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments()
    return database


@pytest.fixture
def new_mlflow(mlflow_template: Path, tmp_path: Path) -> Callable[[], str]:
    """Makes an empty MLflow database under the test's own folder; its URI."""

    def make() -> str:
        database = tmp_path / "mlflow.db"
        shutil.copy(mlflow_template, database)
        return f"sqlite:///{database}"

    return make
