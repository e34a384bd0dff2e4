"""Exports: what they hold, what they refuse, and that vLLM's own reader gets back the measured arguments."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from cluster.order import Cause, Ran
from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from search_spaces.values import Json
from tuner.export.folder import ExportError, check_exportable, launch_arguments, write_folder
from tuner.export.vllm import CONFIG, ENVIRONMENT, config_yaml, environment_file, start_line, vllm_files
from tuner.records import State, StoredTrial, StudyFile

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


def test_the_yaml_says_every_asked_argument_and_the_memory_deciding_ones_in_effect() -> None:
    written = yaml.safe_load(vllm_files(STUDY, TRIAL)[CONFIG])
    assert written == {
        "model": "org/model",
        "no-enable-prefix-caching": True,
        "gpu-memory-utilization": 0.9,
        "max-model-len": 2048,
        "max-num-batched-tokens": 512,
        "max-num-seqs": 16,
        "speculative-config": ARGUMENTS["speculative_config"],
        "trust-remote-code": True,
    }


def test_a_pool_asked_for_in_bytes_is_not_contradicted_by_a_share_of_memory() -> None:
    by_bytes = replace(TRIAL, arguments={"kv_cache_memory_bytes": 2**30})
    assert "gpu_memory_utilization" not in launch_arguments(by_bytes)


def test_the_environment_file_is_read_back_by_a_shell_and_names_secrets_without_them(tmp_path: Path) -> None:
    text = environment_file(TRIAL.environment)
    assert "***" not in text
    assert "# HF_TOKEN" in text
    (tmp_path / ENVIRONMENT).write_text(text)
    shown = subprocess.run(
        ["sh", "-c", f"set -a; . ./{ENVIRONMENT}; env"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "VLLM_CPU_KVCACHE_SPACE=4" in shown
    assert "SPACED=two words" in shown


def test_a_model_that_was_trusted_with_its_own_code_is_exported_so() -> None:
    arguments = {name: value for name, value in ARGUMENTS.items() if name != "trust_remote_code"}
    trusted = replace(TRIAL, arguments=arguments, trust_remote_code=True)
    assert yaml.safe_load(vllm_files(STUDY, trusted)[CONFIG])["trust-remote-code"] is True
    plain = replace(TRIAL, arguments=arguments)
    assert "trust-remote-code" not in yaml.safe_load(vllm_files(STUDY, plain)[CONFIG])


def test_secret_arguments_are_left_out_however_deep_and_named_where_a_person_looks() -> None:
    arguments: dict[str, Json] = {
        "hf_token": "***",
        "max_num_seqs": 16,
        "api_key": ["***", "***"],
        "speculative_config": {"method": "ngram", "hf_token": "***", "url": "http://me:***@h", "empty": {}},
        "only_secret": {"token": "***"},
    }
    environment = {"HF_TOKEN": "***", "HTTPS_PROXY": "http://me:***@h", "A": "1"}
    files = vllm_files(STUDY, replace(TRIAL, arguments=arguments, environment=environment))
    written = yaml.safe_load(files[CONFIG])
    assert written["speculative-config"] == {"method": "ngram", "empty": {}}
    assert not {"hf-token", "api-key", "only-secret"} & set(written)
    for name in (CONFIG, ENVIRONMENT, "README.md"):
        assert "***" not in files[name]
    names = ("--hf-token", "--api-key", "--speculative-config.hf_token", "--speculative-config.url")
    for name in (*names, "--only-secret.token", "HF_TOKEN", "HTTPS_PROXY"):
        assert f"# {name} was" in files[ENVIRONMENT]
        assert f"`{name}`" in files["README.md"]


@pytest.mark.parametrize("told", ["start_line", "README.md"])
def test_the_line_that_is_told_starts_vllm_with_the_measured_environment(tmp_path: Path, told: str) -> None:
    out = tmp_path / "my deploy"
    out.mkdir()
    files = vllm_files(STUDY, TRIAL)
    for name, text in files.items():
        (out / name).write_text(text)
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "$VLLM_CPU_KVCACHE_SPACE $SPACED $@"; pwd\n')
    vllm.chmod(0o755)
    line = start_line(out)
    if told == "README.md":
        inside = next(text.strip() for text in files[told].splitlines() if "vllm serve" in text)
        line = f"cd '{out}' && {inside}"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    shown = subprocess.run(
        ["sh", "-c", line], env={"PATH": path}, capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines() == [f"4 two words serve --config {CONFIG}", str(out)]


def test_the_same_trial_gives_the_same_bytes() -> None:
    assert vllm_files(STUDY, TRIAL) == vllm_files(STUDY, TRIAL)


def test_provenance_and_readme_carry_the_measured_numbers() -> None:
    files = vllm_files(STUDY, TRIAL)
    said = json.loads(files["provenance.json"])
    assert said["measured"]["goodput_rps"] == {"value": 3.25, "low": 3.0, "high": 3.5}
    assert said["measured"]["tpot_p95_ms"]["value"] == 50.0
    assert said["trial"] == 5
    assert "| goodput_rps (requests/s) | 3.25 | 3 to 3.5 |" in files["README.md"]


@pytest.mark.parametrize(
    ("again", "told"),
    [(0, "is a little lucky"), (1, "Measured again once after it was chosen"), (3, "Measured again 3 times")],
)
def test_the_readme_says_whether_its_numbers_are_fresh_ones(again: int, told: str) -> None:
    files = vllm_files(STUDY, TRIAL, again=again)
    assert told in files["README.md"]
    assert ("lucky" in files["README.md"]) == (again == 0)
    assert json.loads(files["provenance.json"])["measured_again"] == again


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        (replace(TRIAL, state=State.FAILED, cause=Cause.UNSUPPORTED, reason="no kernel"), "no kernel"),
        (replace(TRIAL, state=State.UNSCORED, reason="no p95"), "no p95"),
        (replace(TRIAL, ran=Ran(engine="simulated")), "--allow-simulated"),
    ],
)
def test_a_trial_without_a_real_measurement_is_refused_with_the_reason(trial: StoredTrial, told: str) -> None:
    with pytest.raises(ExportError, match=told):
        check_exportable(trial, allow_simulated=False)


def test_a_simulated_export_is_marked_in_every_file_that_promises() -> None:
    trial = replace(TRIAL, ran=replace(TRIAL.ran, engine="simulated"))
    check_exportable(trial, allow_simulated=True)
    files = vllm_files(STUDY, trial)
    assert "Simulated" in files["README.md"]
    assert json.loads(files["provenance.json"])["simulated"] is True


def test_an_export_replaces_an_export_but_no_other_folder(tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    write_folder(out, {"provenance.json": "1"})
    write_folder(out, {"provenance.json": "2"})
    assert (out / "provenance.json").read_text() == "2"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    with pytest.raises(ExportError, match="mine"):
        write_folder(mine, {"provenance.json": "1"})
    assert (mine / "thesis.tex").exists()


_PARSE = """
import json, os, sys
kept = os.dup(1); os.dup2(2, 1)  # vLLM logs to standard output
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
asked = make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", sys.argv[1]])
names = ("model", "enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs", "speculative_config",
         "trust_remote_code", "max_model_len")
os.write(kept, json.dumps({name: getattr(asked, name) for name in names}).encode())
"""


@pytest.mark.real
@pytest.mark.slow
def test_vllms_own_reader_gets_back_what_was_measured(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    path = tmp_path / "config.yaml"
    path.write_text(config_yaml(TRIAL.model, launch_arguments(TRIAL)))
    run = subprocess.run(
        [sys.executable, "-c", _PARSE, str(path)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout) == {"model": "org/model", "max_model_len": 2048, **ARGUMENTS}
