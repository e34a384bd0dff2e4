"""`tuner export` as a user asks for it: of a study on disk, refused or written."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cluster.order import Cause, Measured, Ran
from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from search_spaces.values import Json
from tuner.cli import main
from tuner.export.digest import PROVENANCE
from tuner.export.targets import TARGETS
from tuner.export_commands import export
from tuner.records import State, StoredTrial, StudyFile, write_outcome, write_study

WHEN = datetime(2026, 11, 30, tzinfo=UTC)

STUDY = StudyFile(
    name="s",
    id="1",
    space_name="space",
    space_text="model: m",
    trace="made",
    trace_digest="ab" * 32,
    objectives=("goodput", "tpot_p95"),
    slo=Slo(ttft_s=0.5),
    sampler="tpe",
    seed=0,
    engine="vllm",
    created=WHEN,
    tuner_version="0.1.0",
)

ARGUMENTS: dict[str, Json] = {
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
    "trust_remote_code": True,
}

TRIAL = StoredTrial(
    study="s",
    number=5,
    is_control=False,
    config={"prefix_cache": "off", "speculation": "ngram", "speculation.depth": 4},
    state=State.MEASURED,
    measurement=Measurement(
        metrics={"goodput_rps": Estimate(value=3.25, low=3.0, high=3.5), "tpot_p95_s": Estimate(value=0.05)},
        requests=60,
        failed_requests=0,
        duration_s=20.0,
    ),
    model="org/model",
    arguments=ARGUMENTS,
    environment={"VLLM_CPU_KVCACHE_SPACE": "4", "HF_TOKEN": "***", "SPACED": "two words"},
    gpus=0,
    ran=Ran(
        engine="vllm",
        version="0.32.0",
        hardware="a CPU",
        effective={
            "max_model_len": 2048,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 512,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False,
        },
    ),
    started=WHEN,
    finished=WHEN,
    tuner_version="0.1.0",
)

Run = Callable[..., Result]

LETTING = ("--allow-unverified", "--allow-quality", "unchecked")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `tuner` where study s lies."""
    monkeypatch.chdir(tmp_path)
    study_on_disk(tmp_path / "runs")
    return lambda *words: CliRunner().invoke(main, words)


def study_on_disk(runs: Path) -> Path:
    """Study s, with trial 5 measured and trial 6 failed; its folder."""
    folder = runs / STUDY.name
    write_study(folder, STUDY)
    assert TRIAL.measurement is not None
    outcome = Measured(measurement=TRIAL.measurement, records=(), samples=(), ran=TRIAL.ran)
    failed = replace(
        TRIAL, number=6, state=State.FAILED, cause=Cause.UNSUPPORTED, reason="no kernel", measurement=None
    )
    for trial in (TRIAL, failed):
        write_outcome(folder, trial, outcome)
    return folder


def _export(run: Run, *more: str, trial: int = 5) -> Result:
    return run("export", "s", "--trial", str(trial), "--to", "vllm", "--out", "d", *more)


def test_the_command_takes_exactly_the_targets_there_are() -> None:
    (choice,) = (option.type for option in export.params if option.name == "target")
    assert list(choice.choices) == list(TARGETS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", [(), LETTING[:1], LETTING[1:]])
def test_what_was_not_verified_and_checked_is_refused_in_one_line_and_nothing_is_written(
    run: Run, more: tuple[str, ...]
) -> None:
    refused = _export(run, *more)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: trial 5 is not exported")
    assert refused.stderr.count("\n") == 1
    assert ("--allow-unverified" in refused.stderr) == ("--allow-unverified" not in more)
    assert ("--allow-quality unchecked" in refused.stderr) == ("--allow-quality" not in more)
    assert not Path("d").exists()


def test_a_failed_trial_is_exported_by_no_flag(run: Run) -> None:
    refused = _export(run, *LETTING, "--allow-simulated", "--allow-not-held", trial=6)
    assert refused.exit_code == 2
    assert "no kernel" in refused.stderr


def test_what_was_let_pass_is_said_and_marked(run: Run) -> None:
    done = _export(run, *LETTING)
    assert done.exit_code == 0, done.output
    assert "! Unverified" in done.output
    assert "start it with: cd d && " in done.output
    assert json.loads(Path("d", PROVENANCE).read_text())["marks"] == ["unverified", "quality-unchecked"]


def test_json_says_the_same_to_a_program(run: Run) -> None:
    told = json.loads(_export(run, *LETTING, "--json").output)
    assert told["trial"] == 5
    assert told["target"] == "vllm"
    assert told["marks"] == ["unverified", "quality-unchecked"]
    assert sorted(told["files"]) == sorted(path.name for path in Path("d").iterdir())
    assert told["start"].startswith("cd d && ")


def test_a_folder_of_somebody_elses_is_refused_and_kept(run: Run) -> None:
    Path("d").mkdir()
    Path("d/thesis.tex").write_text("x")
    refused = _export(run, *LETTING)
    assert refused.exit_code == 2
    assert "choose another --out" in refused.stderr
    assert Path("d/thesis.tex").read_text() == "x"


def test_a_target_that_takes_several_lines_says_where_they_are(run: Run) -> None:
    done = run("export", "s", "--trial", "5", "--to", "systemd", "--out", "my d", *LETTING)
    assert done.exit_code == 0, done.output
    assert "'my d/README.md' says how to start" in done.output
