"""Why an engine failed, from its log, its exit status and when it happened. Pure.

vLLM is a tree of processes, and each repeats its child's failure in its own words: a worker raises, the
engine core says that a worker failed, the API server says that the core failed. The reason is the last
error line that is not such an echo.
"""

import enum
import re
import signal
from collections.abc import Iterator

from cluster.order import Cause

LONGEST_REASON = 400
"""Characters. vLLM's own messages run to a paragraph; the whole is in the log."""


class Phase(enum.Enum):
    """When the engine failed."""

    START = "start"
    LOAD = "load"


def diagnose(
    log: str, exit_status: int | None, phase: Phase, *, killed_for_memory: bool = False
) -> tuple[Cause, str]:
    """The cause of a failure and a one-line reason.

    Args:
        log: what the engine wrote, all processes together.
        exit_status: of the API server, 128 + n for signal n; None where it still runs.
        phase: whether the engine had been ready.
        killed_for_memory: whether the kernel killed a process of this control group for memory meanwhile.
    """
    errors = tuple(error_lines(log))
    telling = [line for line in errors if not _ECHO.search(line)]
    ended = _ending(exit_status)
    by_signal = exit_status is not None and exit_status > 128
    reason = shortened((telling or ([ended] if by_signal else errors) or [ended])[-1])
    if killed_for_memory and not telling:
        return Cause.OUT_OF_MEMORY, f"the kernel killed a process of the engine for memory; {ended}"
    if any(_MEMORY.search(line) for line in telling):
        told = [line for line in telling if _MEMORY.search(line)]
        return Cause.OUT_OF_MEMORY, shortened(told[-1])
    if phase is Phase.LOAD:
        return Cause.DIED_UNDER_LOAD, reason
    for cause, pattern in ((Cause.UNSUPPORTED, _UNSUPPORTED), (Cause.INVALID_ARGUMENT, _INVALID)):
        if telling and pattern.search(telling[-1]):
            return cause, reason
    return Cause.DIED_AT_START, reason


def port_was_taken(log: str) -> bool:
    """Whether the engine ended because its port had been taken between the choice and its start."""
    return any(re.search(r"address already in use", line, re.IGNORECASE) for line in error_lines(log))


def error_lines(log: str) -> Iterator[str]:
    """The messages of exceptions and of refused command lines, in order, each on one line.

    A pydantic error has its message on the second line; its first only counts the faults.
    """
    lines = [bare(line) for line in log.splitlines()]
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if refused := _USAGE.match(line):
            yield refused["message"]
        elif _RAISED.match(line):
            if "validation error" in line and following.startswith("  "):
                yield _PYDANTIC_TAIL.sub("", following.strip()).removeprefix("Value error, ")
            else:
                told = _RELAYED.match(line)
                yield told["message"] if told else line.strip()


def bare(line: str) -> str:
    """A log line without what vLLM's logger puts before it: process, level, time, place."""
    return _PREFIX.sub("", line)


def last_line(log: str) -> str:
    """The last thing that the engine said, for a failure without an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return shortened(bare(lines[-1])) if lines else "its log is empty"


def shortened(line: str) -> str:
    """One line of a length that a table can hold."""
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"


def _ending(exit_status: int | None) -> str:
    if exit_status is None:
        return "the engine said nothing about why"
    if exit_status - 128 in signal.valid_signals():
        name = signal.Signals(exit_status - 128).name
        return f"the engine was ended by {name}, without a word of its own"
    return f"the engine exited with status {exit_status}, with no error in its log"


_PREFIX = re.compile(
    r"^(?:\([\w-]+(?: pid=\d+)?\) ?)?"  # (EngineCore pid=123)
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?)?"
)
"""What vLLM's logger puts before a line."""

_RAISED = re.compile(r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Died)\b(?:: .+|$)")
"""The last line of a traceback: a class, and what it says. Not indented."""

_USAGE = re.compile(r"^[\w.\-]+(?: serve)?: error: (?P<message>.+)$")
"""argparse's refusal."""

_RELAYED = re.compile(
    r"^RuntimeError: Worker failed with error '(?P<message>.+)', please check the stack trace"
)
"""The engine core relaying what a worker said, which the log may not hold elsewhere."""

_PYDANTIC_TAIL = re.compile(r" \[type=\w+, input_value=.*$")

_ECHO = re.compile(
    r"See (?:root cause above|stack trace for root cause)"
    r"|Engine ?[Cc]ore (?:initialization failed|encountered an issue|proc .* died)"
    r"|EngineDeadError|EngineGenerateError"
    r"|WorkerProc (?:initialization failed|failed to start)"
    r"|cancelled|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|ConnectionResetError"
    r"|RPC call to \w+ timed out"
)
"""One process saying that another failed."""

_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|bad_alloc|[Cc]annot allocate memory"
    r"|can't allocate memory|not enough memory|[Ii]nsufficient memory"
    r"|No available memory for the cache blocks"
    r"|KV cache is needed, which is larger than the available"
    r"|is larger than the maximum number of tokens that can be stored in (?:the )?KV cache"
    r"|Free memory on device .* is less than desired"
    r"|Available memory on node .* is less than (?:requested|desired)"
    r"|(?:KV cache|memory).* exceeds? .*(?:available|total) memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
)
"""CUDA's, the allocator's, the kernel's and vLLM's own words (vllm/v1/core/kv_cache_utils.py,
vllm/v1/worker/utils.py, vllm/v1/worker/cpu_worker.py)."""

_UNSUPPORTED = re.compile(
    r"not (?:currently |yet |officially )?supported|[Uu]nsupported|(?:does not|doesn't|cannot|can't) support"
    r"|only support|NotImplementedError|not (?:yet )?implemented|not available (?:on|for|in)"
    r"|No valid \w+ backend|no (?:suitable )?kernel|[Mm]inimum capability|requires? (?:compute )?capability"
    r"|[Nn]o module named|requires .* to be installed|is not installed"
    r"|Could not run '[^']+' with arguments from the"  # an operator with no kernel for this device
    r"|_C::\w+\(\) expected at most 0 argument"  # an operator that this build only declares
    r"|no kernel image is available|incompatible"
)

_INVALID = re.compile(
    r"unrecognized arguments?|invalid choice|expected (?:one|at least one) argument|^argument -"
    r"|must (?:be|have|not)|should (?:be|have)|[Ii]nvalid|not a valid|Input should|[Uu]nexpected keyword"
    r"|is (?:smaller|larger|greater|less) than|is not (?:divisible|a multiple)|[Uu]nknown"
    r"|^(?:\w+\.)*(?:ValueError|AssertionError|TypeError|KeyError)\b"
    r"|Extra inputs are not permitted|Field required|does not exist|[Nn]o such file"
    r"|is not a local folder|Repo id must"
)
