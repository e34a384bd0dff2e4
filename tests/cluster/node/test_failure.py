"""Causes and reasons, from logs that vLLM 0.32 (CPU build) wrote and from well-known texts of GPU builds."""

import signal
from pathlib import Path

import pytest

from cluster.node.failure import LONGEST_REASON, Phase, diagnose, last_line, port_was_taken
from cluster.order import Cause

DATA = Path(__file__).with_name("data")


@pytest.mark.parametrize(
    ("name", "cause", "reason"),
    [
        (
            "unsupported_fp8_on_cpu",
            Cause.UNSUPPORTED,
            "RuntimeError: _C::static_scaled_fp8_quant() expected at",
        ),
        (
            "invalid_budget_below_seqs",
            Cause.INVALID_ARGUMENT,
            "max_num_batched_tokens (64) must be greater than",
        ),
        (
            "invalid_budget_below_context",
            Cause.INVALID_ARGUMENT,
            "max_num_batched_tokens (512) is smaller than max_model_len (1024).",
        ),
        ("invalid_unknown_argument", Cause.INVALID_ARGUMENT, "unrecognized arguments: --max-num-sequences"),
        ("invalid_choice", Cause.INVALID_ARGUMENT, "argument --kv-cache-dtype: invalid choice: 'int3'"),
        (
            "memory_kv_larger_than_ram",
            Cause.OUT_OF_MEMORY,
            "Available memory on node 0 (10.15/12.96 GiB) on kv",
        ),
        (
            "memory_share_larger_than_ram",
            Cause.OUT_OF_MEMORY,
            "ValueError: Available memory on node 0 (11.86/13.96 GiB) on startup is less than desired CPU",
        ),
        (
            "memory_no_pool_left",
            Cause.OUT_OF_MEMORY,
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        ),
    ],
)
def test_a_real_log_gives_its_cause_and_its_own_words(name: str, cause: Cause, reason: str) -> None:
    found, said = diagnose((DATA / f"log_{name}.txt").read_text(), 1, Phase.START)
    assert found is cause
    assert said.startswith(reason)
    assert "\n" not in said
    assert "[type=" not in said


CORE = "(EngineCore pid=7) ERROR 11-30 09:00:00 [core.py:1510] "
ECHO = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 79.11 GiB of which 1.20 GiB is free.",
            Cause.OUT_OF_MEMORY,
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
            "when initializing the engine.",
            Cause.OUT_OF_MEMORY,
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (9.10 GiB).",
            Cause.OUT_OF_MEMORY,
        ),
        (
            "ValueError: Free memory on device cuda:0 (20.1/79.1 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 71.2 GiB).",
            Cause.OUT_OF_MEMORY,
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate",
            Cause.OUT_OF_MEMORY,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", Cause.OUT_OF_MEMORY),
        (
            "ValueError: The quantization method gptq_marlin is not supported for the current GPU. Minimum "
            "capability: 80. Current capability: 75.",
            Cause.UNSUPPORTED,
        ),
        ("NotImplementedError: Speculative decoding is not yet supported with pipeline", Cause.UNSUPPORTED),
        (
            "NotImplementedError: Could not run '_C::awq_dequantize' with arguments from the 'CPU' backend.",
            Cause.UNSUPPORTED,
        ),
        ("ValueError: Total number of attention heads (9) must be divisible by 2.", Cause.INVALID_ARGUMENT),
        ("OSError: org/x is not a local folder and is not a valid model identifier", Cause.INVALID_ARGUMENT),
        ("RuntimeError: NCCL error: unhandled system error", Cause.DIED_AT_START),
    ],
)
def test_a_cause_is_found_under_the_echoes_of_the_other_processes(line: str, cause: Cause) -> None:
    log = (
        f"{CORE}EngineCore failed to start.\n{CORE}Traceback (most recent call last):\n{CORE}{line}\n{ECHO}\n"
    )
    assert diagnose(log, 1, Phase.START) == (cause, line)


def test_what_would_be_unsupported_at_start_is_a_death_under_load_later() -> None:
    line = "NotImplementedError: this batch shape"
    assert diagnose(line, 1, Phase.LOAD) == (Cause.DIED_UNDER_LOAD, line)


def test_memory_that_runs_out_under_load_is_still_memory() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    log = f"{CORE}{line}\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    assert diagnose(log, 1, Phase.LOAD) == (Cause.OUT_OF_MEMORY, line)


def test_an_echo_is_the_reason_only_where_nothing_else_was_said() -> None:
    assert diagnose(ECHO, 1, Phase.START) == (Cause.DIED_AT_START, ECHO)


def test_a_signal_without_a_word_is_named() -> None:
    cause, reason = diagnose("INFO all is well\n", 128 + signal.SIGSEGV, Phase.START)
    assert (cause, reason) == (
        Cause.DIED_AT_START,
        "the engine was ended by SIGSEGV, without a word of its own",
    )


def test_the_kernels_memory_killer_is_recognised_only_where_it_struck() -> None:
    killed = diagnose("", 128 + signal.SIGKILL, Phase.LOAD, killed_for_memory=True)
    assert killed[0] is Cause.OUT_OF_MEMORY
    assert diagnose("", 128 + signal.SIGKILL, Phase.LOAD)[0] is Cause.DIED_UNDER_LOAD


def test_a_warning_that_mentions_an_error_is_none() -> None:
    log = (
        "WARNING 11-30 09:20:09 [system_utils.py:255] may cause errors like `OSError: [Errno 24] Too many`.\n"
    )
    assert diagnose(log, 3, Phase.START)[1] == "the engine exited with status 3, with no error in its log"


def test_a_reason_is_one_line_of_bounded_length() -> None:
    reason = diagnose(f"ValueError: {'x ' * 4000}", 1, Phase.START)[1]
    assert len(reason) == LONGEST_REASON


def test_a_taken_port_is_seen() -> None:
    assert port_was_taken("OSError: [Errno 98] Address already in use\n")
    assert not port_was_taken((DATA / "log_invalid_choice.txt").read_text())


def test_the_last_line_is_the_last_that_says_something() -> None:
    assert last_line("(Worker pid=3) INFO 11-30 09:00:00 [x.py:1] loading\n\n") == "loading"
    assert last_line("") == "its log is empty"
