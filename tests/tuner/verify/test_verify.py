"""`tuner verify` as a user meets it, on the simulated engine, with MLflow."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.winners_curse import rows_of
from cluster.dispatch import in_process
from cluster.dispatch.in_process import InProcess
from cluster.order import Cause, Failed, Order
from tests.tuner.ablation.conftest import runs_in
from tests.tuner.verify.conftest import Run
from tuner.verify.stored import latest_verification, verifications
from tuner.verify_commands import verify
from tuner.verify_endpoint import DEFAULT_RATE
from tuner.verify_usecases import DEFAULT_PAIRS

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

VERIFY = ("verify", "s", "--trial", "1", "--pairs", "2")


def told(run: Run, *words: str, code: int = 0) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def damaged(tmp_path: Path, trial: int, change: Callable[[dict[str, Any]], None]) -> None:
    path = tmp_path / "runs" / "s" / "trials" / f"{trial:04d}" / "outcome.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def test_what_is_true_holds_and_the_front_carries_its_numbers(run: Run, tmp_path: Path) -> None:
    result = run(*VERIFY)
    assert result.exit_code == 0, result.output
    assert "Verification of trial 1, study s (SIMULATED, not measured): held" in result.output
    assert "[4 of 4 done]" in result.output
    found = latest_verification(tmp_path / "runs" / "s", 1)
    assert found is not None
    assert found.held
    assert found.traffic.held_out
    assert [kept.name for kept in found.promises] == [
        "goodput",
        "tpot_p95",
        "ttft_p95_ms",
        "tpot_p95_ms",
        "slo_attainment",
    ]
    front = told(run, "front", "s")
    shown = front["recommended"]["verified"]
    assert shown["held"] is True
    assert shown["numbers"]["goodput"]["value"] == found.promises[0].verified.value  # type: ignore[union-attr]
    assert "trial 1 verified" in run("front", "s").output
    goodput, tpot = rows_of(tmp_path / "runs" / "s")
    assert (goodput.objective, tpot.objective) == ("goodput", "tpot_p95")
    assert goodput.ratio == found.promises[0].ratio
    # Nothing was measured again, so what it was chosen by is what is promised.
    assert goodput.fresh == 0
    assert goodput.ratio_to_choice == pytest.approx(goodput.ratio.value)
    assert latest_verification(tmp_path / "runs" / "s", 0) is None


def test_the_control_against_itself_is_exactly_as_promised_over_itself(run: Run) -> None:
    """Without noise both sides of a pair do the same on the same traffic."""
    found = told(run, "verify", "s", "--trial", "0", "--pairs", "2")
    for kept in found["promises"]:
        if kept["kind"] == "objective":
            assert kept["against_control"]
            assert kept["ratio"]["value"] == pytest.approx(1.0)
            assert kept["verified"] == kept["control"]


def test_a_promise_that_was_never_true_is_told_and_ends_in_its_own_exit_code(
    run: Run, tmp_path: Path
) -> None:
    def faster(raw: dict[str, Any]) -> None:
        estimate = raw["measurement"]["metrics"]["tpot_p95_s"]
        estimate |= {name: end / 4 for name, end in estimate.items() if end is not None}

    damaged(tmp_path, 1, faster)
    found = told(run, "verify", "s", "--trial", "1", code=3)
    assert found["held"] is False
    assert [kept["name"] for kept in found["promises"] if not kept["held"]] == ["tpot_p95"]
    assert found["why"].startswith("tpot_p95 did not hold: over the control, ×")
    (broken,) = (kept for kept in found["promises"] if kept["name"] == "tpot_p95")
    assert 3 < broken["ratio"]["value"] < 5
    assert 1 < broken["bound"] < broken["ratio"]["value"]
    assert "NOT HELD" in run("front", "s").output
    again = told(run, "verify", "s", "--trial", "1", "--pairs", "1", code=3)
    assert "1 of 1 earlier verifications of this config did not hold" in again["notes"]


def test_the_same_command_verifies_anew_on_other_traffic(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert run(*VERIFY).exit_code == 0
    first, second = verifications(tmp_path / "runs" / "s")
    digests = (*first.traffic.digests, *second.traffic.digests)
    study = json.loads((tmp_path / "runs" / "s" / "study.json").read_text())
    assert len({*digests, study["trace_digest"]}) == 5


def test_stopped_in_the_middle_it_goes_on_and_measures_nothing_twice(
    run: Run, sent: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = InProcess.submit

    def interrupted(self: InProcess, order: Order) -> None:
        if order.number == 2:
            raise KeyboardInterrupt
        before(self, order)

    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "submit", interrupted)
        assert run(*VERIFY).exit_code == 130
    assert sent == [0, 1]
    assert latest_verification(tmp_path / "runs" / "s", 1) is None
    other = run("verify", "s", "--trial", "1", "--pairs", "3")
    assert other.exit_code == 2
    assert "was begun with pairs 2" in other.stderr
    again = run(*VERIFY)
    assert again.exit_code == 0, again.output
    assert sent == [0, 1, 2, 3]
    assert {one.data.tags.get("run") for one in runs_in(tmp_path)} >= {"0", "1", "2", "3"}


def test_a_machine_at_fault_breaks_no_promise(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(order: Order, engine: object, folder: Path, phases: object = None) -> Failed:
        return Failed(cause=Cause.CLIENT_LATE, reason="too busy")

    monkeypatch.setattr(in_process, "run_trial", lost)
    result = run("verify", "s", "--trial", "1", "--pairs", "1")
    assert result.exit_code == 2
    assert "no run of the config was measured (client late: too busy)" in result.stderr
    assert latest_verification(tmp_path / "runs" / "s", 1) is None


def test_mlflow_has_the_promises_beside_what_was_verified(run: Run, tmp_path: Path) -> None:
    assert run(*VERIFY).exit_code == 0
    there = runs_in(tmp_path)
    (own,) = (one for one in there if one.data.tags.get("verified_trial") == "1")
    assert own.info.status == "FINISHED"
    assert own.data.tags["held"] == "true"
    assert own.data.tags["simulated"] == "true"
    assert own.data.metrics["held/goodput"] == 1
    assert own.data.metrics["ratio/tpot_p95"] == pytest.approx(1, rel=0.2)
    members = [one for one in there if one.data.tags.get("side")]
    assert sorted(one.data.tags["side"] for one in members) == ["config", "config", "control", "control"]
    (study,) = (one for one in there if one.data.tags.get("front") is not None)
    assert study.data.tags["verified"].startswith("1 held ")


def test_stress_is_shown_and_decides_nothing(run: Run) -> None:
    found = told(run, *VERIFY, "--stress")
    assert [stress["name"] for stress in found["stress"]] == ["permuted arrivals", "burst"]
    for stress in found["stress"]:
        assert stress["words"].endswith("nothing is promised here")
        assert stress["metrics"].keys() == stress["control"].keys() >= {"tpot_p95_ms", "slo_attainment"}
    assert found["pairs"] == 2


def test_held_out_traffic_may_be_given_and_what_was_searched_on_is_no_such(run: Run, tmp_path: Path) -> None:
    figures = {"requests": 60, "rate": 20, "input-mean": 300, "output-mean": 20, "block-tokens": 64}
    words = [word for name, value in figures.items() for word in (f"--{name}", str(value))]
    assert run("trace", "make", "--out", "other.jsonl", *words, "--seed", "9").exit_code == 0
    found = told(run, *VERIFY, "--trace", "other.jsonl")
    assert found["traffic"]["held_out"] is True
    assert "other.jsonl" in found["traffic"]["words"]
    missing = run(*VERIFY, "--trace", "nowhere.jsonl")
    assert missing.exit_code == 2
    assert "nowhere.jsonl" in missing.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("s",), "no trial is named"),
        (("nothing",), "there is no folder nothing"),
        (("s", "--trial", "7"), "has no finished trial 7; finished are 0, 1"),
        (("t", "--trial", "1"), "no study 't'"),
        (("s", "--trial", "1", "--may-load"), "go with --endpoint"),
        (("s", "--trial", "1", "--endpoint", "http://127.0.0.1:1"), "--may-load"),
        (("s", "--trial", "1", "--endpoint", "ftp://x", "--may-load"), "is the root of a server"),
        (("s", "--trial", "1", "--endpoint", "http://me:pw@x", "--may-load"), "by --key-variable"),
        (("s", "--trial", "1", "--endpoint", "http://127.0.0.1:1", "--may-load"), "was simulated"),
    ],
)
def test_what_a_user_got_wrong_is_one_line(run: Run, words: tuple[str, ...], said: str) -> None:
    result = run("verify", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "pw@" not in result.output
    assert len([line for line in result.stderr.splitlines() if line.startswith("error: ")]) == 1


def test_what_help_says_of_defaults_is_so() -> None:
    defaults = {option.name: option.default for option in verify.params}
    assert defaults["pairs"] == DEFAULT_PAIRS
    assert defaults["rate"] == DEFAULT_RATE


def test_a_trial_without_a_measurement_promises_nothing(run: Run, tmp_path: Path) -> None:
    def failed(raw: dict[str, Any]) -> None:
        raw |= {"state": "failed", "cause": "out of memory", "reason": "no room", "measurement": None}

    damaged(tmp_path, 1, failed)
    result = run(*VERIFY)
    assert result.exit_code == 2
    assert "trial 1 was not measured (no room); nothing is promised of it" in result.stderr


def test_an_exported_folder_is_verified_where_the_study_is_not(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    exported = run("export", "s", "--trial", "1", "--to", "vllm", "--out", str(out), "--allow-simulated")
    assert exported.exit_code == 0, exported.output
    before = {path: path.read_bytes() for path in out.iterdir()}
    shutil.rmtree(tmp_path / "runs" / "s")
    found = told(run, "verify", str(out), "--pairs", "2")
    assert found["held"] is True
    assert found["source"] == "folder"
    assert all(kept["against_control"] for kept in found["promises"] if kept["kind"] == "objective")
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_that_a_hand_has_changed_is_refused_before_anything_starts(
    run: Run, sent: list[int], tmp_path: Path
) -> None:
    out = tmp_path / "deploy"
    run("export", "s", "--trial", "1", "--to", "vllm", "--out", str(out), "--allow-simulated")
    config = out / "config.yaml"
    config.write_text(config.read_text() + "max-num-seqs: 7\n")
    result = run("verify", str(out))
    assert result.exit_code == 2
    assert "disagree: config.yaml was changed after it was exported" in result.stderr
    assert sent == []
