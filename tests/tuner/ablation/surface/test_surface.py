"""`tuner ablate --acceptance` as a user meets it, on the simulated engine, with MLflow."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.dispatch.in_process import InProcess
from cluster.order import Order
from tests.tuner.ablation.conftest import Run, runs_in
from tuner.records import read_trials

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

SMALL = ("ablate", "--trial", "1", "--acceptance", "0.8,0.1", "--depths", "1,4")
RUNS = 2 * (2 * 2 + 2)
FOLDER = Path("runs/s/ablations/trial-0001-acceptance")


def test_two_depths_at_two_acceptances_from_one_command(run: Run, sent: list[int], tmp_path: Path) -> None:
    result = run(*SMALL)
    assert result.exit_code == 0, result.output
    assert sent == list(range(RUNS))
    assert "4 cells; 2 blocks of all cells, no speculation twice in each: 12 runs" in result.output
    assert "SIMULATED" in result.output
    assert "What it shows" in result.output
    report = json.loads((FOLDER / "report.json").read_text())
    assert [(cell["depth"], cell["acceptance"]) for cell in report["cells"]] == [
        (1, 0.1),
        (1, 0.8),
        (4, 0.1),
        (4, 0.8),
    ]
    assert report["progress"] == {"planned": RUNS, "done": RUNS, "failed": 0, "blocks": 2}
    assert (FOLDER / "report.txt").read_text().rstrip() in result.output
    _ratios_are_of_the_runs_on_disk(report)


def _ratios_are_of_the_runs_on_disk(report: Mapping[str, Any]) -> None:
    design = json.loads((FOLDER / "design.json").read_text())
    tpots: dict[str, list[float]] = {}
    for planned, trial in zip(design["runs"], read_trials(FOLDER), strict=True):
        assert trial.measurement is not None
        value = trial.measurement.value("tpot_mean_s")
        assert value is not None
        tpots.setdefault(planned["cell"], []).append(value)
    base = sum(tpots["no speculation"]) / 4  # the simulated engine has no noise
    for cell in report["cells"]:
        assert cell["ratios"]["tpot_mean_ms"]["ratio"] == pytest.approx(tpots[cell["name"]][0] / base)
        steps, tokens = cell["ratios"]["step_ms"], cell["metrics"]["accepted_tokens_per_target_step"]["mean"]
        assert steps["ratio"] == pytest.approx(cell["ratios"]["tpot_mean_ms"]["ratio"] * tokens, rel=1e-6)
    deep = {cell["acceptance"]: cell for cell in report["cells"] if cell["depth"] == 4}
    better = deep[0.8]["metrics"]["accepted_tokens_per_target_step"]["mean"]
    assert better > deep[0.1]["metrics"]["accepted_tokens_per_target_step"]["mean"]


def test_an_interrupted_surface_goes_on_and_measures_nothing_twice(
    run: Run, sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = InProcess.submit

    def submitted(self: InProcess, order: Order) -> None:
        if order.number == 5:
            raise KeyboardInterrupt
        submit(self, order)

    with monkeypatch.context() as patched:
        patched.setattr(InProcess, "submit", submitted)
        assert run(*SMALL).exit_code == 130
    assert sent == list(range(5))
    again = run(*SMALL[:-2])  # the depths are those that were begun
    assert again.exit_code == 0, again.output
    assert "5 of them are not to be run any more" in again.output
    assert sent == list(range(RUNS))
    assert run(*SMALL, "--replicates", "3").exit_code == 0
    assert sent == list(range(RUNS + 6))
    there = runs_in(tmp_path)
    cells = Counter(one.data.tags["run"] for one in there if "run" in one.data.tags)
    assert cells == Counter(map(str, range(RUNS + 6)))
    (own,) = (one for one in there if one.data.tags.get("ablated_trial") == "1")
    assert own.info.status == "FINISHED"
    assert own.info.run_name == "simulated · cost surface · s/trial-0001-acceptance"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trial", "0", "--acceptance", "0.5"), "trial 0 does not speculate"),
        (("--trial", "1", "--acceptance", "0.5,1.2"), "--acceptance 0.5,1.2: give numbers from 0 to 1"),
        (("--trial", "1", "--acceptance", "nan"), "--acceptance nan: give numbers from 0 to 1"),
        (("--trial", "1", "--acceptance", "much"), "--acceptance much: give numbers from 0 to 1"),
        (("--trial", "1", "--acceptance", "0.5", "--depths", "0"), "--depths 0: give whole numbers from 1"),
        (("--trial", "1", "--depths", "1"), "say at which acceptances with --acceptance"),
        (("--trial", "1", "--acceptance", "0.5", "--factors", "speculation"), "are of a factorial"),
    ],
)
def test_mistakes_are_one_line(run: Run, sent: list[int], words: tuple[str, ...], told: str) -> None:
    result = run("ablate", *words)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert told in line
    assert sent == []
