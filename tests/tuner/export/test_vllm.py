"""The `vllm` target: what `vllm serve --config` reads back, and that the told line starts it."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.values import Json
from tests.tuner.export.subjects import ARGUMENTS, PLAIN, SECRET, TRIAL, changed, subject
from tuner.export.launch import launch_of
from tuner.export.vllm import CONFIG, TARGET, config_yaml, environment_file


def _files(name: str) -> str:
    return TARGET.files(PLAIN)[name]


def test_the_yaml_says_every_asked_argument_and_the_launch_deciding_ones_in_effect() -> None:
    assert yaml.safe_load(_files(CONFIG)) == {
        "model": "org/Model-8B",
        "compilation-config": ARGUMENTS["compilation_config"],
        "enable-chunked-prefill": True,
        "no-enable-prefix-caching": True,
        "gpu-memory-utilization": 0.9,
        "hf-overrides": ARGUMENTS["hf_overrides"],
        "max-model-len": 8192,
        "max-num-batched-tokens": 8192,
        "max-num-seqs": 96,
        "quantization": "fp8",
        "speculative-config": ARGUMENTS["speculative_config"],
        "tensor-parallel-size": 2,
        "trust-remote-code": True,
    }


def test_a_pool_asked_for_in_bytes_is_not_contradicted_by_a_share_of_memory() -> None:
    by_bytes = changed(TRIAL, arguments={"kv_cache_memory_bytes": 2**30})
    assert "gpu_memory_utilization" not in launch_of(subject(by_bytes)).arguments


@pytest.mark.parametrize("asked", [None, "auto", -1])
def test_a_length_that_was_left_to_the_engine_is_written_as_it_was_in_effect(asked: Json) -> None:
    assert launch_of(subject(changed(TRIAL, arguments={"max_model_len": asked}))).arguments[
        "max_model_len"
    ] == (8192)


def test_a_model_that_was_not_trusted_with_its_own_code_is_not_exported_so() -> None:
    plain = replace(TRIAL, trust_remote_code=False)
    assert "trust-remote-code" not in yaml.safe_load(TARGET.files(subject(plain))[CONFIG])


@given(
    environment=st.dictionaries(
        st.from_regex(r"TEST_[A-Z]{1,6}", fullmatch=True),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
        max_size=3,
    )
)
@settings(max_examples=15, deadline=None)
def test_a_shell_reads_the_environment_file_back_whatever_is_in_it(environment: dict[str, str]) -> None:
    shown = subprocess.run(
        ["sh", "-c", f'set -a; . /dev/stdin; exec "{sys.executable}" -c "$0"', _SHOW],
        input=environment_file(environment).encode(),
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
        capture_output=True,
        check=True,
    ).stdout
    found = {name: value for name, value in json.loads(shown).items() if name.startswith("TEST_")}
    assert found == environment


_SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.parametrize("told", ["line", "README.md"])
@pytest.mark.parametrize("name", ["plain", "secrets"])
def test_the_line_that_is_told_starts_vllm_as_it_was_measured(tmp_path: Path, told: str, name: str) -> None:
    chosen = {"plain": PLAIN, "secrets": SECRET}[name]
    out = tmp_path / "my deploy"
    out.mkdir()
    files = TARGET.files(chosen)
    for file, text in files.items():
        (out / file).write_text(text)
    vllm = tmp_path / "vllm"
    vllm.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))\n"
    )
    vllm.chmod(0o755)
    assert TARGET.line is not None
    line = TARGET.line(chosen, out)
    if told == "README.md":
        inside = next(text for text in files[told].splitlines() if "vllm serve" in text)
        line = f"cd '{out}' && {inside}"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    mine = {"SECRET_SPECULATIVE_CONFIG_URL": "http://me:pa$$@h", "SECRET_SPECULATIVE_CONFIG_HF_TOKEN": "a b"}
    words, where, environment = json.loads(
        subprocess.run(
            ["sh", "-c", line], env={"PATH": path} | mine, capture_output=True, text=True, check=True
        ).stdout
    )
    assert where == str(out)
    assert environment["SPACED"] == "two 'words' and \"$more\" 5%"
    assert words[:3] == ["serve", "--config", CONFIG]
    if name == "plain":
        assert words[3:] == []
        return
    assert words[3] == "--speculative-config"
    config = json.loads(words[4])
    assert config == {"method": "draft", "url": "http://me:pa$$@h", "hf_token": "a b"}
    assert "speculative-config" not in yaml.safe_load(files[CONFIG])


_PARSE = """
import json, os, sys
kept = os.dup(1); os.dup2(2, 1)  # vLLM logs to standard output
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
asked = make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", sys.argv[1]])
names = sys.argv[2].split(",")
found = {name: getattr(asked, name) for name in names}
os.write(kept, json.dumps(found, default=lambda value: value.__dict__).encode())
"""


@pytest.mark.real
@pytest.mark.slow
def test_vllms_own_reader_gets_back_what_was_measured(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    launch = launch_of(PLAIN)
    expected = {"model": launch.model, **launch.arguments}
    del expected["compilation_config"]  # its reader makes it whole, with all that was left out
    path = tmp_path / "config.yaml"
    path.write_text(config_yaml(launch.model, launch.arguments))
    run = subprocess.run(
        [sys.executable, "-c", _PARSE, str(path), ",".join(expected)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout) == expected
