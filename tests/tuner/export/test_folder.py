"""What every export holds beside its launch files, whatever its target."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from objectives.measurement import Estimate
from tests.tuner.export.subjects import (
    PLAIN,
    QUALITY,
    SECRET,
    SECRETS,
    TRIAL,
    VERIFICATION,
    changed,
    subject,
)
from tuner.export.digest import PROVENANCE, disagreements
from tuner.export.folder import README, write_folder
from tuner.export.launch import launch_of
from tuner.export.refusals import ExportError, Mark
from tuner.export.subject import Subject
from tuner.export.targets import TARGETS
from tuner.verify.promised import promised_from

EVERY = pytest.mark.parametrize("target", sorted(TARGETS))


def _files(target: str, chosen: Subject = PLAIN) -> dict[str, str]:
    return TARGETS[target].files(chosen)


@EVERY
def test_the_folder_agrees_with_its_own_provenance(tmp_path: Path, target: str) -> None:
    write_folder(tmp_path / "out", _files(target))
    assert disagreements(tmp_path / "out") == ()


@EVERY
def test_the_promised_numbers_the_slo_and_both_verdicts_are_in_the_readme(target: str) -> None:
    told = _files(target)[README]
    assert "| capacity_rps (requests/s) | 7.5 | 7 to 8 |" in told
    assert "| tpot_p95_ms (ms) | 31.25 | 30 to 32.5 |" in told
    assert "SLO: 95% of the requests within TTFT 500 ms and TPOT 40 ms." in told
    assert "| capacity (requests/s) | 7.5 | 7.25 | 6.75 to 7.75 | yes |" in told
    assert "| greedy agreement (share) | 0.985 | 0.975 to 0.995 |" in told


@EVERY
def test_every_mark_is_in_the_readme_the_provenance_and_each_launch_file(target: str) -> None:
    marked = subject(marks=tuple(Mark))
    files = TARGETS[target].files(marked)
    assert json.loads(files[PROVENANCE])["marks"] == [mark.value for mark in Mark]
    for mark in Mark:
        assert f"**{mark.sentence}**" in files[README]
    for name in TARGETS[target].launch_files(marked):
        for mark in Mark:
            assert f"# {mark.sentence}\n" in files[name]


@EVERY
def test_an_export_without_marks_says_nothing_of_any(target: str) -> None:
    files = _files(target)
    for name, text in files.items():
        for mark in Mark:
            assert mark.sentence not in text, (name, mark)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"ray-serve"}))
def test_a_secret_is_named_by_its_variable_and_written_nowhere(target: str) -> None:
    for name, text in _files(target, SECRET).items():
        if name != PROVENANCE:
            assert "***" not in text, name
    readme = _files(target, SECRET)[README]
    for secret in launch_of(SECRET).secrets:
        assert f"`{secret.variable}`" in readme
    assert {secret.variable for secret in launch_of(SECRET).secrets} == {
        "HF_TOKEN",
        "HTTPS_PROXY",
        "SECRET_SPECULATIVE_CONFIG_HF_TOKEN",
        "SECRET_SPECULATIVE_CONFIG_URL",
        "VLLM_API_KEY",
    }


def test_ray_serve_refuses_what_it_could_only_hold_in_the_clear() -> None:
    with pytest.raises(ExportError, match="speculative_config of trial 17 held a secret"):
        _files("ray-serve", SECRET)


@EVERY
def test_the_same_trial_gives_the_same_bytes(target: str) -> None:
    assert _files(target) == _files(target)


def test_provenance_has_what_a_program_needs_to_hold_it_to_its_promise() -> None:
    said = json.loads(_files("vllm")[PROVENANCE])
    assert promised_from(said["promised"], "here") == PLAIN.promised
    assert said["measured"]["capacity_rps"] == {"value": 7.5, "low": 7.0, "high": 8.0}
    assert said["measured"]["tpot_p95_ms"]["value"] == 31.25
    assert said["launch"]["arguments"]["max_model_len"] == 8192
    assert said["verification"]["held"] is True
    assert said["quality"]["passed"] is True
    assert said["hardware"] == "NVIDIA H100 80GB HBM3"
    assert (said["study"], said["trial"], said["target"]) == ("chat_8B", 17, "vllm")
    assert said["revision"] is None


def test_a_pinned_revision_is_in_the_provenance() -> None:
    pinned = subject(changed(TRIAL, arguments={"revision": "c0ffee"}))
    assert json.loads(_files("vllm", pinned)[PROVENANCE])["revision"] == "c0ffee"


@pytest.mark.parametrize(
    ("again", "told"),
    [(0, "is a little lucky"), (1, "Measured again once after it was chosen"), (3, "Measured again 3 times")],
)
def test_the_readme_says_whether_its_numbers_are_fresh_ones(again: int, told: str) -> None:
    files = _files("vllm", subject(again=again))
    assert told in files[README]
    assert ("lucky" in files[README]) == (again == 0)
    assert json.loads(files[PROVENANCE])["measured_again"] == again


def test_what_was_not_verified_or_not_checked_is_said_and_how_to() -> None:
    told = _files("vllm", subject(quality=None, verification=None))[README]
    assert "`tuner verify chat_8B --trial 17`" in told
    assert "Not checked: nobody has compared its answers" in told


def test_a_share_close_to_all_is_not_rounded_to_all() -> None:
    strict = replace(PLAIN.study, slo=replace(PLAIN.study.slo, attainment=0.995))
    assert "SLO: 99.5% of the requests" in _files("vllm", subject(study=strict))[README]


def test_a_failed_promise_and_a_failed_quality_are_said_with_their_reasons() -> None:
    kept = replace(VERIFICATION.promises[0], held=False)
    verification = replace(VERIFICATION, held=False, why="capacity did not hold", promises=(kept,))
    quality = replace(QUALITY, passed=False, reasons=("agreement 0.4 is below 0.9",))
    told = _files("vllm", subject(quality=quality, verification=verification))[README]
    assert "**Not held**: capacity did not hold" in told
    assert "| **no** |" in told
    assert "**Failed**" in told
    assert "- agreement 0.4 is below 0.9" in told


def test_an_infinite_latency_promises_nothing() -> None:
    assert TRIAL.measurement is not None
    metrics = dict(TRIAL.measurement.metrics) | {"e2e_p95_s": Estimate(value=float("inf"))}
    late = replace(TRIAL, measurement=replace(TRIAL.measurement, metrics=metrics))
    files = _files("vllm", subject(late))
    assert "e2e_p95_ms" not in files[README]
    assert "e2e_p95_ms" not in json.loads(files[PROVENANCE])["measured"]


def test_an_export_replaces_an_export_but_no_other_folder(tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    write_folder(out, {PROVENANCE: "1", "old.yaml": ""})
    (out / ".env").write_text("HF_TOKEN=mine")
    write_folder(out, {PROVENANCE: "2"})
    assert (out / PROVENANCE).read_text() == "2"
    assert not (out / "old.yaml").exists()
    assert (out / ".env").read_text() == "HF_TOKEN=mine"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    with pytest.raises(ExportError, match="mine"):
        write_folder(mine, {PROVENANCE: "1"})
    assert (mine / "thesis.tex").exists()


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_the_folder_that_a_user_stands_in_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match="choose another --out"):
        write_folder(Path(out), {PROVENANCE: "1"})


@pytest.mark.parametrize("target", ["docker-compose", "kubernetes", "helm-values", "kserve", "llm-d"])
def test_without_the_engines_version_no_image_is_guessed(target: str) -> None:
    unknown = subject(replace(TRIAL, ran=replace(TRIAL.ran, version=None)))
    with pytest.raises(ExportError, match="no image can be named"):
        _files(target, unknown)
    assert "vllm serve" in _files("vllm", unknown)[README]


@pytest.mark.parametrize(
    ("model", "local"),
    [("org/Model-8B", False), ("gpt2", False), ("/srv/m", True), ("./m", True), ("runs/models/m", True)],
)
def test_a_model_is_local_where_its_name_is_a_path(model: str, local: bool) -> None:
    command = yaml.safe_load(_files("docker-compose", subject(replace(TRIAL, model=model)))["compose.yaml"])
    assert (command["services"]["vllm"]["command"][0] == model) != local


def test_two_local_models_of_one_name_cannot_share_a_container() -> None:
    two = changed(SECRETS, arguments={"tokenizer": "/elsewhere/Model-8B"})
    with pytest.raises(ExportError, match="local models of one name"):
        _files("kubernetes", subject(two))
