"""An export in a real MLflow: its version, its alias, the folder as artifact."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mlflow.tracking import MlflowClient

from tests.tuner.test_export import LETTING, study_on_disk
from tuner.cli import main
from tuner.export.digest import PROVENANCE
from tuner.front import read_view
from tuner.ledger import Ledger
from tuner.mistakes import Mistake
from tuner.registry import check_alias

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow 3.17 on SQLAlchemy 2.1


@pytest.fixture
def uri(new_mlflow: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An MLflow that has the study."""
    monkeypatch.chdir(tmp_path)
    folder = study_on_disk(tmp_path / "runs")
    found = new_mlflow()
    ledger = Ledger(found, artifacts=tmp_path / "mlartifacts", say=print)
    assert ledger.sync(folder, read_view(folder), "FINISHED")
    return found


def _export(uri: str, *more: str, target: str = "vllm", out: str = "d") -> Result:
    words = ("export", "s", "--trial", "5", "--to", target, "--out", out, *LETTING, "--tracking-uri", uri)
    return CliRunner().invoke(main, [*words, *more])


def test_the_version_has_the_alias_the_folder_and_where_it_comes_from(uri: str, tmp_path: Path) -> None:
    done = _export(uri, "--register")
    assert done.exit_code == 0, done.output
    assert "registered as version 1, models:/tuner-space@production" in done.output
    client = MlflowClient(uri)
    found = client.get_model_version_by_alias("tuner-space", "production")
    assert found.tags["study"] == "s"
    assert found.tags["trial"] == "5"
    assert found.tags["marks"] == "unverified, quality-unchecked"
    said = json.loads((tmp_path / "d" / PROVENANCE).read_text())
    assert found.tags["tuner.digest"] == said["digest"]
    assert found.run_id is not None
    assert found.source is not None
    run = client.get_run(found.run_id)
    assert run.data.tags["trial"] == "5"
    kept = Path(
        client.download_artifacts(found.run_id, found.source.removeprefix(f"{run.info.artifact_uri}/"))
    )
    for path in (tmp_path / "d").iterdir():
        assert (kept / path.name).read_bytes() == path.read_bytes()


def test_the_same_folder_is_registered_once_and_an_alias_moves(uri: str) -> None:
    first = json.loads(_export(uri, "--register", "--json").output)["registered"]
    again = json.loads(_export(uri, "--register", "--alias", "canary", "--json").output)["registered"]
    other = json.loads(_export(uri, "--register", "--json", target="systemd", out="e").output)["registered"]
    assert (first["version"], first["before"]) == ("1", None)
    assert (again["version"], again["uri"]) == ("1", "models:/tuner-space@canary")
    assert (other["version"], other["before"]) == ("2", "1")
    client = MlflowClient(uri)
    named = {
        alias: str(client.get_model_version_by_alias("tuner-space", alias).version)
        for alias in ("production", "canary")
    }
    assert named == {"production": "2", "canary": "1"}


def test_an_mlflow_that_does_not_have_the_trial_is_told_and_not_made(uri: str, tmp_path: Path) -> None:
    refused = _export(f"sqlite:///{tmp_path}/none.db", "--register")
    assert refused.exit_code == 2
    assert "does not have trial 5 of study s yet, so nothing was registered" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "none.db").exists()
    assert (tmp_path / "d" / PROVENANCE).exists()


def test_without_the_flag_nothing_is_registered(uri: str) -> None:
    assert json.loads(_export(uri, "--json").output)["registered"] is None
    assert MlflowClient(uri).search_registered_models() == []


@pytest.mark.parametrize("alias", ["latest", "v1", "a b", "", "a/b"])
def test_an_alias_that_mlflow_does_not_take_is_refused_before_anything_is_written(alias: str) -> None:
    with pytest.raises(Mistake, match="--alias"):
        check_alias(alias)
