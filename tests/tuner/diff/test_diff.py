"""`tuner diff`: what differs, by which test it is told apart, and what is not compared."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cluster.order import Cause, Measured
from objectives.measurement import Estimate, Measurement, Record
from search_spaces.values import Json
from tests.tuner.export.subjects import PLAIN, STUDY, TRIAL, VERIFICATION
from tuner.ablation.plan import DESIGN
from tuner.cli import main
from tuner.diff.compare import Compared, How, Number, Setting, compared, differing
from tuner.diff.side import Side, read_side
from tuner.export.digest import PROVENANCE
from tuner.export.folder import write_folder
from tuner.export.targets import TARGETS
from tuner.records import State, StoredTrial, write_outcome, write_study
from tuner.verify.stored import VERIFICATION as FILE
from tuner.verify.stored import VERIFY, write_verification
from tuner.verify.verification import Source

CONTROL = replace(TRIAL, number=0, is_control=True, config=None, arguments={"tensor_parallel_size": 2})


def _measurement(**values: float | tuple[float, float, float]) -> Measurement:
    metrics = {
        name: Estimate(value=value[0], low=value[1], high=value[2])
        if isinstance(value, tuple)
        else Estimate(value=value)
        for name, value in values.items()
    }
    return Measurement(metrics=metrics, requests=40, failed_requests=0, duration_s=20.0)


def _records(factor: float) -> tuple[Record, ...]:
    """Forty requests, each `factor` times as slow as its own pace, which differs much between requests."""
    found = []
    for request in range(40):
        due, pace = 0.5 * request, factor * (0.1 + 0.05 * (request * 7 % 11))
        found.append(
            Record(
                request=request,
                due_s=due,
                sent_s=due,
                chunk_s=(due + pace, due + 2 * pace),
                chunk_tokens=(1, 5),
                finished_s=due + 2 * pace,
                tokens_out=5,
            )
        )
    return tuple(found)


def _write(
    folder: Path, trial: StoredTrial, measurement: Measurement | None, records: tuple[Record, ...] = ()
) -> None:
    outcome = Measured(measurement=measurement or _measurement(), records=records, samples=(), ran=trial.ran)
    write_outcome(folder, replace(trial, measurement=measurement), outcome)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The study chat_8B: its control, trial 17 which is 0.8 times as slow, and trial 18, which failed."""
    folder = tmp_path / "runs" / STUDY.name
    write_study(folder, STUDY)
    _write(
        folder, CONTROL, _measurement(capacity_rps=(5, 4.5, 5.5), tpot_p95_s=(0.04, 0.03, 0.05)), _records(1)
    )
    _write(
        folder, TRIAL, _measurement(capacity_rps=(7, 6.5, 7.5), tpot_p95_s=(0.035, 0.03, 0.04)), _records(0.8)
    )
    failed = replace(TRIAL, number=18, state=State.FAILED, cause=Cause.UNSUPPORTED, reason="no kernel")
    _write(folder, failed, None)
    return tmp_path / "runs"


def _verify(runs: Path, pairs: Mapping[int, tuple[float, float]], *, source: Source = "study") -> None:
    """A verification of trial 17 that measured these goodputs, config and control."""
    at = runs / STUDY.name / VERIFY / "trial-0017"
    planned: list[Json] = []
    for pair, values in pairs.items():
        for side, value in zip(("config", "control"), values, strict=True):
            run = replace(TRIAL, number=len(planned), is_control=side == "control")
            _write(at, run, _measurement(goodput_rps=value))
            planned.append({"number": len(planned), "pair": pair, "side": side})
    (at / DESIGN).write_text(json.dumps({"pairs": len(pairs), "runs": planned}))
    write_verification(at, replace(VERIFICATION, source=source))
    assert (at / FILE).is_file()


def _pair(runs: Path, a: str = "chat_8B:17", b: str = "chat_8B:control") -> Compared:
    return compared(read_side(a, runs), read_side(b, runs))


def _number(found: Compared, name: str) -> Number:
    return next(one for one in found.numbers if one.name == name)


def test_settings_that_differ_are_listed_with_what_was_in_effect_where_one_side_left_it_open(
    runs: Path,
) -> None:
    found = _pair(runs)
    shown = {one.name: (one.a, one.b) for one in differing(found.settings, found.a, found.b)}
    assert shown["quantization"] == ("fp8", None)
    assert shown["speculative_config.num_speculative_tokens"] == (4, None)
    assert "max_num_seqs" not in shown  # the control left it to the engine, which has the very same in effect
    assert Setting(name="max_num_seqs", a=96, b=96) in found.settings


def test_promised_numbers_are_compared_by_their_two_intervals_and_overlap_is_no_verdict(runs: Path) -> None:
    capacity, tpot = (_number(_pair(runs), name) for name in ("capacity_rps", "tpot_p95_ms"))
    assert (capacity.how, tpot.how) == (How.INTERVALS, How.INTERVALS)
    # By hand, on logarithms: ln 1.4, low by √(ln²(7/6.5) + ln²(5.5/5)), high by √(ln²(7.5/7) + ln²(5/4.5)).
    assert capacity.contrast is not None
    assert capacity.contrast.value == pytest.approx(1.4)
    low = math.exp(math.log(1.4) - math.hypot(math.log(7 / 6.5), math.log(1.1)))
    assert capacity.contrast.low == pytest.approx(low)
    assert (capacity.different, capacity.better) == (True, "a")
    assert (tpot.different, tpot.better) == (False, None)
    assert capacity.is_objective


def test_latencies_of_the_same_requests_are_told_apart_where_the_promises_are_not(runs: Path) -> None:
    found = _pair(runs)
    assert [one.name.split()[0] for one in found.latencies] == ["ttft", "tpot", "e2e"]
    for one in found.latencies:
        assert one.how is How.ONE_RUN
        assert one.contrast is not None
        assert one.contrast.value == pytest.approx(0.8)
        assert one.better == "a"


def test_with_fresh_runs_on_both_sides_requests_are_compared_over_runs(runs: Path) -> None:
    folder = runs / STUDY.name
    for number, trial, factor in ((20, TRIAL, 0.82), (21, CONTROL, 1.0)):
        again = replace(trial, number=number, repeats=trial.number)
        _write(folder, again, _measurement(capacity_rps=6.0, tpot_p95_s=0.04), _records(factor))
    ttft = _pair(runs).latencies[0]
    assert (ttft.how, ttft.pairs) == (How.REQUESTS, 2)
    assert ttft.contrast is not None
    assert ttft.contrast.value == pytest.approx(math.sqrt(0.8 * 0.82))


def test_beside_the_control_that_it_was_verified_with_the_alternating_pairs_decide(runs: Path) -> None:
    _verify(runs, {0: (4.0, 2.0), 1: (6.0, 3.1), 2: (8.0, 3.9)})
    folder = runs / STUDY.name
    for trial in (CONTROL, TRIAL):
        again = replace(trial, number=trial.number + 30, repeats=trial.number)
        _write(folder, again, _measurement(capacity_rps=6.0, tpot_p95_s=0.04, goodput_rps=3.0))
    there, back = _pair(runs), _pair(runs, "chat_8B:control", "chat_8B:17")
    goodput = _number(there, "goodput_rps")
    assert (goodput.how, goodput.pairs) == (How.ALTERNATION, 3)
    assert goodput.contrast is not None
    expected = math.exp((math.log(2) + math.log(6 / 3.1) + math.log(8 / 3.9)) / 3)
    assert goodput.contrast.value == pytest.approx(expected)
    assert goodput.better == "a"
    turned = _number(back, "goodput_rps")
    assert turned.contrast is not None
    assert turned.contrast.value == pytest.approx(1 / expected)
    assert turned.better == "b"


def test_a_verification_of_a_server_elsewhere_is_no_run_of_this_config(runs: Path) -> None:
    _verify(runs, {0: (4.0, 2.0), 1: (6.0, 3.0)}, source="endpoint")
    assert read_side("chat_8B:17", runs).pairs == ()


def test_an_exported_folder_is_a_side_and_says_when_it_was_changed(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    write_folder(out, TARGETS["vllm"].files(PLAIN))
    found = _pair(runs, str(out))
    assert _number(found, "capacity_rps").how is How.INTERVALS
    assert found.latencies == ()
    assert found.a.held is True
    assert found.notes == ()
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("96", "97"))
    assert any("config.yaml was changed" in note for note in _pair(runs, str(out)).notes)


def test_an_export_beside_its_own_trial_has_the_same_settings(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    write_folder(out, TARGETS["kubernetes"].files(PLAIN))
    found = _pair(runs, str(out), "chat_8B:17")
    assert differing(found.settings, found.a, found.b) == ()


def test_numbers_of_other_traffic_or_another_load_are_shown_and_not_compared(runs: Path) -> None:
    a, b = read_side("chat_8B:17", runs), read_side("chat_8B:control", runs)

    def _elsewhere(side: Side, **changes: Json) -> Side:
        traffic = replace(side.promised.traffic, **changes)  # type: ignore[arg-type]
        return replace(side, promised=replace(side.promised, traffic=traffic, study_id="another"))

    for changes, told in (
        ({"digest": "cd" * 32}, "their traffic differs"),
        ({"speed": 2.0}, "different loads"),
    ):
        found = compared(a, _elsewhere(b, **changes))
        assert any(told in note for note in found.notes)
        assert {one.contrast for one in found.numbers} == {None}
        assert found.latencies == ()
        assert _number(found, "capacity_rps").a is not None


def test_what_may_be_the_machine_and_what_failed_is_said(runs: Path) -> None:
    a, b = read_side("chat_8B:17", runs), read_side("chat_8B:control", runs)
    notes = compared(replace(a, hardware="A100", quality=False, held=False), b).notes
    assert "their hardware differs (A100, NVIDIA H100 80GB HBM3), and may be what is seen here" in notes
    assert any("failed its check of quality" in note for note in notes)
    assert any("did not hold its promise" in note for note in notes)


Run = Callable[..., Result]


@pytest.fixture
def run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(runs.parent)
    return lambda *words: CliRunner().invoke(main, ["diff", *words])


def test_a_person_reads_both_sides_and_the_verdicts(run: Run) -> None:
    told = run("chat_8B:17", "chat_8B:control").output
    assert (
        "a: chat_8B:17: trial 17 of study chat_8B; measured once, not verified, quality not checked" in told
    )
    assert "b: chat_8B:control: trial 0 of study chat_8B, the control" in told
    assert "yes, a is better" in told
    assert "capacity_rps, tpot_p95_ms: from the two promised intervals" in told
    assert "max_num_seqs" not in told
    assert "max_num_seqs" in run("chat_8B:17", "chat_8B:control", "--all").output


def test_a_program_reads_the_same(run: Run) -> None:
    told = json.loads(run("chat_8B:17", "chat_8B:control", "--json").output)
    capacity = next(one for one in told["numbers"] if one["name"] == "capacity_rps")
    assert capacity["against"]["value"] == pytest.approx(1.4)
    assert (capacity["told_apart"], capacity["winner"], capacity["against_is"]) == (True, "a", "ratio")
    assert {"name": "quantization", "a": "fp8", "b": None, "differs": True, "launched_with": True} in told[
        "settings"
    ]
    assert told["b"]["control"] is True


def test_a_config_beside_itself_differs_in_nothing(run: Run) -> None:
    told = run("chat_8B:17", "chat_8B:17").output
    assert "no setting differs" in told
    assert "is better" not in told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "is no config: STUDY:TRIAL, STUDY:control or the folder of an export is one"),
        ("chat_8B:x", "is no config"),
        ("chat_8B:", "is no config"),
        ("other:1", "no study 'other'"),
        ("chat_8B:99", "no finished trial 99"),
        ("chat_8B:18", "has no measurement to compare (failed: no kernel)"),
    ],
)
def test_what_is_no_config_is_one_line(run: Run, name: str, told: str) -> None:
    refused = run(name, "chat_8B:control")
    assert refused.exit_code == 2
    assert told in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_damaged_export_is_one_line(run: Run, runs: Path) -> None:
    out = runs.parent / "deploy"
    out.mkdir()
    (out / PROVENANCE).write_text('{"promised": {}}')
    refused = run("deploy", "chat_8B:control")
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
