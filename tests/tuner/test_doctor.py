import json
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.node.vllm_arguments import Checked, EngineMissing
from tests.tuner import stories
from tuner import doctor
from tuner.cli import main
from tuner.doctor import Check, Diagnosis, diagnosis_lines, examine
from tuner.records import write_study


@pytest.fixture(autouse=True)
def _a_vllm_that_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loading the real one takes many seconds; tests/real does that."""
    monkeypatch.setattr(doctor, "check_arguments", lambda configs: Checked(version="9.9", faults=()))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


@pytest.fixture(autouse=True)
def _few_distributions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going through all that are installed takes a second, once is enough."""
    if "all_distributions" not in request.fixturenames:
        monkeypatch.setattr("importlib.metadata.packages_distributions", dict)


@pytest.fixture
def all_distributions() -> None:
    """As they are."""


def check(diagnosis: Diagnosis, name: str) -> Check:
    (found,) = (one for one in diagnosis.checks if one.name == name)
    return found


@pytest.mark.usefixtures("all_distributions")
def test_it_tells_what_there_is(tmp_path: Path) -> None:
    write_study(tmp_path / "tea", stories.study_file())
    seen = examine(tmp_path)
    assert seen.could_run
    assert check(seen, "engine").found.startswith("vLLM 9.9 for ")
    assert "optuna" in check(seen, "libraries").found
    assert check(seen, "studies").found == f"1 study under {tmp_path}"
    assert all(one.fix is None for one in seen.checks if one.state == "ok")
    assert all(one.fix is not None for one in seen.checks if one.state != "ok")


def test_a_package_that_another_distribution_owns_is_a_fault_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"cluster": ["cluster"]})
    found = check(examine(tmp_path), "tuner")
    assert (found.state, found.fix) == ("fault", "pip uninstall cluster, then install the tuner again")


def test_an_engine_that_does_not_load_is_a_fault_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(configs: object) -> Checked:
        raise EngineMissing("the installed vLLM does not load: libcudart.so.12: cannot open")

    monkeypatch.setattr(doctor, "check_arguments", missing)
    ran = CliRunner().invoke(main, ["doctor", "--runs", str(tmp_path)])
    assert ran.exit_code == 1
    assert "fault    engine" in ran.stdout
    assert "libcudart.so.12" in ran.stdout
    assert "→ pip install '.[gpu]'" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "no trial can run here"
    ran = CliRunner().invoke(main, ["doctor", "--runs", str(tmp_path), "--json"])
    answer = json.loads(ran.stdout)
    assert answer["could_run"] is False
    assert [one["name"] for one in answer["checks"] if one["state"] == "fault"] == ["engine"]


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seen = examine(tmp_path / "file" / "runs")
    assert check(seen, "runs folder").state == "fault"
    assert not seen.could_run


def test_a_folder_that_is_not_there_yet_is_none(tmp_path: Path) -> None:
    assert check(examine(tmp_path / "new" / "runs"), "runs folder").state != "fault"


@pytest.mark.parametrize("name", ["mlflow.db", "studies.db"])
@pytest.mark.parametrize("text", [b"no database at all", b"SQLite format 3\0" + b"\1" * 4096])
def test_a_database_that_is_none_any_more_is_named_with_the_way_to_make_it_again(
    tmp_path: Path, name: str, text: bytes
) -> None:
    (tmp_path / name).write_bytes(text)
    found = check(examine(tmp_path), "studies")
    assert found.state == "fault"
    assert str(tmp_path / name) in found.found
    assert found.fix is not None
    assert ("tuner sync" if name == "mlflow.db" else "--resume") in found.fix


def test_tables_left_half_made_are_damage_too(tmp_path: Path) -> None:
    """As MLflow leaves them where it is killed while it makes them; it refuses the file from then on."""
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE _alembic_tmp_tags (key TEXT)")
    assert "half-made" in check(examine(tmp_path), "studies").found


def test_a_database_in_use_is_no_damage(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "studies.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE t (x)")
        database.execute("BEGIN EXCLUSIVE")
        assert check(examine(tmp_path), "studies").state == "ok"


def test_few_open_files_are_a_warning(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        found = check(examine(tmp_path), "open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (found.state, found.found) == ("warning", "1024 at once")


SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) echo "4711, {used}" ;;
  *memory.total*) echo "{used}, 81920" ;;
  *name*) echo "NVIDIA H100" ;;
esac
"""


@pytest.mark.parametrize(
    ("used", "cpu_build", "state", "words"),
    [
        (40_000, False, "warning", "40000 MiB in use by process 4711 (40000 MiB)"),
        (100, False, "ok", "NVIDIA H100, 80 GiB each"),
        (100, True, "warning", "the engine is the one for CPUs"),
    ],
)
def test_gpus_are_told_with_who_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: int, cpu_build: bool, state: str, words: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI.format(used=used))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "_is_cpu_build", lambda: cpu_build)
    found = check(examine(tmp_path), "accelerators")
    assert found.state == state
    assert words in found.found


def test_leftovers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tea" / "trials" / ".0001.part").mkdir(parents=True)
    found = check(examine(tmp_path), "leftovers")
    assert (found.found, found.fix) == ("1 thing of a crash", "tuner doctor --clean")


def test_every_line_has_its_check_and_every_fix_its_own() -> None:
    seen = Diagnosis(
        checks=(Check(name="a", state="ok", found="x"), Check(name="long", state="fault", found="y", fix="z"))
    )
    assert diagnosis_lines(seen) == [
        "ok       a     x",
        "fault    long  y",
        "               → z",
        "no trial can run here",
    ]


def test_yes_alone_says_nothing() -> None:
    assert CliRunner().invoke(main, ["doctor", "--yes"]).exit_code == 2
