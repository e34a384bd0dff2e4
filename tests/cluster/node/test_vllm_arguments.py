"""Judged by the vLLM that is installed: one process for all of these, since it takes seconds to load."""

import importlib.util
import sys
from pathlib import Path

import pytest

from cluster.node.vllm_arguments import ArgumentFault, Checked, EngineMissing, check_arguments
from search_spaces.values import Json

GOOD: dict[str, Json] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "kv_cache_dtype": "fp8",
    "gpu_memory_utilization": 0.9,
    "kv_offloading_size": 16,
    "max_model_len": "8k",
    "quantization": "compressed-tensors",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
    "enforce_eager": None,
}

REFUSED: list[tuple[dict[str, Json], str, str]] = [
    ({"max_num_sequences": 3}, "max_num_sequences", "vLLM has no such argument; did you mean max_num_seqs?"),
    # A beginning of a name is no name, though argparse would take it.
    ({"max_num_s": 3}, "max_num_s", "vLLM has no such argument; did you mean max_num_seqs?"),
    ({"max_num_seqs": "many"}, "max_num_seqs", "invalid int value: 'many'"),
    ({"max_num_seqs": True}, "max_num_seqs", "expected one argument"),
    ({"enable_prefix_caching": "yes"}, "enable_prefix_caching", 'takes true or false, got "yes"'),
    ({"kv_cache_dtype": "int3"}, "kv_cache_dtype", "invalid choice: 'int3' (choose from 'auto'"),
    ({"quantization": "fp9"}, "quantization", 'vLLM has no scheme "fp9"; did you mean fp8?'),
    ({"port": 3}, "port", "is set by the tuner itself; leave it out"),
    ({"compilation_config": {"modus": 3}}, "compilation_config", "modus: Unexpected keyword argument"),
    (
        {"speculative_config": {"metod": "ngram"}},
        "speculative_config.metod",
        "vLLM has no such key; did you mean method?",
    ),
    (
        {"speculative_config": {"num_speculative_tokens": "x"}},
        "speculative_config.num_speculative_tokens",
        "input should be a valid integer",
    ),
    ({"speculative_config": {"method": "ngrams"}}, "speculative_config.method", "input should be 'ngram'"),
]


@pytest.fixture(scope="module")
def checked() -> Checked:
    """The good config twice, with all the refused ones between."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed; make test installs its CPU build")
    return check_arguments([GOOD, *(config for config, _, _ in REFUSED), GOOD])


@pytest.mark.real
def test_good_configs_have_no_fault(checked: Checked) -> None:
    assert [fault for fault in checked.faults if fault.index in (0, len(REFUSED) + 1)] == []


@pytest.mark.real
@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[name for _, name, _ in REFUSED])
def test_a_refused_argument_is_named_with_what_is_wrong(checked: Checked, number: int) -> None:
    _, argument, message = REFUSED[number]
    (fault,) = [fault for fault in checked.faults if fault.index == number + 1]
    assert fault == ArgumentFault(index=number + 1, argument=argument, message=fault.message)
    assert fault.message.startswith(message)
    assert "\n" not in fault.message


@pytest.mark.real
def test_the_version_is_told(checked: Checked) -> None:
    assert checked.version[0].isdigit()


def test_where_vllm_is_missing_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineMissing, match=r"vLLM is not installed here: pip install '\.\[gpu\]'"):
        check_arguments([{}])


def test_a_vllm_that_does_not_load_is_as_good_as_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('libcudart.so.13: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(EngineMissing, match=r"does not load: ImportError: libcudart\.so\.13: no such file"):
        check_arguments([{}])
