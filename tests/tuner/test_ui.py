"""`tuner ui`: what it starts, what it says, and what it keeps to itself."""

import json
import os
import socket
from pathlib import Path

import pytest

from tuner.mistakes import Mistake
from tuner.ui import serve_ui

_FAKE = """
import json, os, sys
with open("told.json", "w") as file:
    json.dump({"arguments": sys.argv[1:], "store": os.environ.get("MLFLOW_BACKEND_STORE_URI")}, file)
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def fake_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An mlflow that writes down how it was started and ends; the folder it does so in."""
    package = tmp_path / "fake" / "mlflow"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(package.parent), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_databases_password_is_neither_said_nor_an_argument(fake_mlflow: Path, port: int) -> None:
    uri = "postgresql+psycopg://me:hunter2@db/mlflow"
    said: list[str] = []
    serve_ui(uri, host="127.0.0.1", port=port, say=said.append)
    told = json.loads((fake_mlflow / "told.json").read_text())
    arguments = ["ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    assert told == {"arguments": arguments, "store": uri}
    assert said == [
        f"MLflow on postgresql+psycopg://me:***@db/mlflow: http://127.0.0.1:{port} (Ctrl-C ends it)"
    ]


def test_a_server_that_is_up_is_named_without_its_password() -> None:
    said: list[str] = []
    serve_ui("https://me:hunter2@mlflow.example", host="127.0.0.1", port=1, say=said.append)
    assert said == ["MLflow is served at https://me:***@mlflow.example"]


@pytest.mark.parametrize("uri", ["foo", "ftp://me:hunter2@h", "./mlruns", "httpx://h", "sqlite:x.db", ""])
def test_a_uri_that_names_no_store_is_refused_in_one_line_with_what_is_allowed(uri: str, port: int) -> None:
    with pytest.raises(Mistake) as caught:
        serve_ui(uri, host="127.0.0.1", port=port, say=pytest.fail)
    told = str(caught.value)
    assert "\n" not in told
    assert "hunter2" not in told
    assert told.endswith("one of sqlite://, postgresql://, mysql://, mssql://, http://, https://")


def test_the_pages_of_the_study_are_named(fake_mlflow: Path, port: int) -> None:
    said: list[str] = []
    uri = "postgresql+psycopg://me:hunter2@db/mlflow"
    serve_ui(
        uri,
        host="127.0.0.1",
        port=port,
        say=said.append,
        pages=lambda store: {"study tea": "#/a", "front of tea": "#/b"},
    )
    assert said[-2:] == [
        f"study tea: http://127.0.0.1:{port}/#/a",
        f"front of tea: http://127.0.0.1:{port}/#/b",
    ]
    serve_ui(
        "https://me:hunter2@mlflow.example/",
        host="127.0.0.1",
        port=port,
        say=said.append,
        pages=lambda store: {"study tea": "#/a"},
    )
    assert said[-1] == "study tea: https://me:***@mlflow.example/#/a"
