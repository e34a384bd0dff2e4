"""`tuner ablate` as a user meets it, on the simulated engine, with MLflow."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.dispatch.in_process import InProcess
from cluster.order import Order
from tests.tuner.ablation.conftest import Run, runs_in
from tuner import usecases
from tuner.ablation.plan import Asked
from tuner.records import read_trials

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


def test_eight_cells_twice_from_one_command(run: Run, sent: list[int], tmp_path: Path) -> None:
    result = run("ablate", "--trial", "1")
    assert result.exit_code == 0, result.output
    assert sent == list(range(18))
    assert "8 cells; 2 blocks of all cells, none on twice in each: 18 runs" in result.output
    assert "SIMULATED" in result.output
    assert "[18 of 18 done]" in result.output
    folder = tmp_path / "runs" / "s" / "ablations" / "trial-0001"
    assert len(read_trials(folder)) == 18
    report = json.loads((folder / "report.json").read_text())
    assert report["progress"] == {"planned": 18, "done": 18, "failed": 0, "blocks": 2}
    assert {cell["name"]: len(cell["runs"]) for cell in report["cells"]}["control"] == 4
    assert (folder / "report.txt").read_text() in result.output


def test_the_simulated_engine_answers_equal_cells_alike(run: Run) -> None:
    """No noise and one seed: every run of a cell is the same, and the intervals have no width."""
    raw = json.loads(run("ablate", "--trial", "1", "--factors", "quantisation", "--json").stdout)
    for cell in raw["cells"]:
        tpot = cell["metrics"]["tpot_mean_ms"]
        assert tpot["least"] == tpot["most"]
    combined = raw["outcomes"][-1]["combination"]
    assert combined["low"] == pytest.approx(combined["high"])


def test_killed_in_the_middle_it_goes_on_and_measures_nothing_twice(
    run: Run, sent: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("ablate", "--trial", "1", "--factors", "quantisation,speculation")
    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "submit", _interrupted(InProcess.submit, at=4))
        stopped = run(*command)
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1] == "interrupted"
    assert sent == list(range(4))
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert "4 of them are not to be run any more" in again.output
    assert sent == list(range(10))
    assert run(*command).exit_code == 0
    assert sent == list(range(10))
    cells = Counter(one.data.tags["run"] for one in runs_in(tmp_path) if "run" in one.data.tags)
    assert cells == Counter(map(str, range(10)))  # each once in MLflow, too


def _interrupted(
    submit: Callable[[InProcess, Order], None], *, at: int
) -> Callable[[InProcess, Order], None]:
    def submitted(self: InProcess, order: Order) -> None:
        if order.number == at:
            raise KeyboardInterrupt
        submit(self, order)

    return submitted


def test_mlflow_holds_the_ablation_and_every_run_of_a_cell_below_it(run: Run, tmp_path: Path) -> None:
    assert run("ablate", "--trial", "1", "--factors", "quantisation").exit_code == 0
    there = runs_in(tmp_path)
    (own,) = (one for one in there if one.data.tags.get("ablated_trial") == "1")
    members = [one for one in there if "run" in one.data.tags]
    assert own.info.status == "FINISHED"
    assert own.info.run_name == "simulated · ablation · s/trial-0001-quantisation"
    assert own.data.metrics["runs_done"] == 6
    assert own.data.metrics["combination/tpot_mean_ms"] < 1
    assert len(members) == 6
    for one in members:
        assert one.data.tags["mlflow.parentRunId"] == own.info.run_id
        assert one.data.metrics["tpot_mean_ms"] > 0
        assert one.data.params["quantisation"] in ("on", "off")
        assert "trial" not in one.data.tags  # the study's own trials are told by that
    kept = Path(own.info.artifact_uri.removeprefix("file://"))
    assert {"report.json", "report.txt", "report.html", "design.json"} <= {
        path.name for path in kept.iterdir()
    }


def test_an_ablation_lies_below_its_study_which_takes_none_of_its_runs_for_its_own(
    run: Run, tmp_path: Path
) -> None:
    resume = ("search", "--resume", "--study", "s", "--trials")
    assert run(*resume, "2").exit_code == 0
    assert run("ablate", "--trial", "1", "--factors", "speculation").exit_code == 0
    resumed = run(*resume, "3")
    assert resumed.exit_code == 0, resumed.output
    there = runs_in(tmp_path)
    (study,) = (one for one in there if one.data.tags.get("tuner.study_id") and "trial" not in one.data.tags)
    (own,) = (one for one in there if one.data.tags.get("ablated_trial") == "1")
    assert own.data.tags["mlflow.parentRunId"] == study.info.run_id
    assert sorted(one.data.tags["trial"] for one in there if "trial" in one.data.tags) == ["0", "1", "2"]


def test_some_factors_more_often(run: Run, sent: list[int], tmp_path: Path) -> None:
    result = run("ablate", "s", "--trial", "1", "--factors", "speculation", "--replicates", "3")
    assert result.exit_code == 0, result.output
    assert len(sent) == 3 * 3
    assert "against trial 1 without speculation" in result.output
    assert (tmp_path / "runs/s/ablations/trial-0001-speculation/report.json").exists()


def test_nothing_is_run_that_was_not_agreed_to(run: Run, sent: list[int], tmp_path: Path) -> None:
    said: list[str] = []
    asked = usecases.AblationRequest(study="s", ablation=Asked(trial=1))
    assert usecases.ablate(asked, lambda line: said.append(str(line)), lambda: False) is None
    assert sent == []
    assert said[-1].startswith("18 runs of about ")
    assert not (tmp_path / "runs" / "s" / "ablations").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trial", "7"), "no finished trial 7; finished are 0, 1"),
        (("--trial", "0"), "trial 0 is the control"),
        (
            ("--trial", "1", "--factors", "tea"),
            "--factors tea: trial 1 differs from the control in quantisation",
        ),
        (("--trial", "1", "--fraction", "V"), "3 factors have no fraction of resolution V"),
    ],
)
def test_mistakes_are_one_line(run: Run, words: tuple[str, ...], told: str) -> None:
    result = run("ablate", *words)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert told in line


def test_another_trace_than_the_studys_is_a_mistake(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "s" / "study.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"trace_digest": "0" * 64}))
    result = run("ablate", "--trial", "1")
    assert result.exit_code == 2
    assert "replayed another trace (000000000000, not " in result.stderr
