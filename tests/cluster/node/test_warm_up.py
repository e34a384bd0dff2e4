import pytest

from cluster.node.warm_up import ROUNDS, compiled, until_steady


def rounds(*took_s: float) -> tuple[str | None, int]:
    """What is said of rounds that take so long, and how many were played."""
    played = []

    def play_round(number: int) -> float:
        played.append(number)
        return took_s[number]

    said = until_steady(play_round)
    assert played == list(range(len(played)))
    return said, len(played)


def test_two_rounds_that_take_as_long_are_enough() -> None:
    assert rounds(3.0, 2.8, 1.0) == (None, 2)


def test_warming_up_goes_on_while_rounds_get_faster() -> None:
    assert rounds(9.0, 4.0, 3.0, 2.9, 1.0) == (None, 4)


def test_a_round_may_be_longer_than_the_one_before_by_a_tenth() -> None:
    assert rounds(0.9, 1.0) == (None, 2)
    assert rounds(0.8, 1.0, 1.0) == (None, 3)


def test_after_five_rounds_it_is_said_that_nothing_settled() -> None:
    said, played = rounds(*(2.0**-number for number in range(9)))
    assert played == ROUNDS
    assert said == (
        "the engine had not settled after 5 rounds of warm-up, which took 1, 0.5, 0.25, 0.12, 0.062 s"
    )


PREFIX = "(EngineCore pid=1) WARNING 11-30 09:00:00 [jit_monitor.py:137] "


@pytest.mark.parametrize(
    "line",
    [
        "Triton kernel JIT compilation during inference: _fwd_kernel. This causes a latency spike;",
        "CuTeDSL JIT compilation during inference: gemm. This causes a latency spike;",
        "[backbone] Starting torch.compile",
        "torch.compile took 12.31 s in total",
        "Compiling a graph for compile range (1, 8192) takes 9.91 s",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|#####     | 1/2",
        "Graph capturing finished in 4 secs, took 0.51 GiB",
        "Triton autotuning for function _kernel,",
    ],
)
def test_compilation_and_capture_are_seen_in_the_log(line: str) -> None:
    said = compiled(f"INFO before\n{PREFIX}{line}\nINFO after\n")
    assert said is not None
    assert said.startswith(f"the engine compiled meanwhile: {line[:20]}")


@pytest.mark.parametrize(
    "line",
    [
        "Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn.",
        "Engine 000: Avg prompt throughput: 120.1 tokens/s, Avg generation throughput: 30.0 tokens/s",
        "vLLM's torch.compile cache is disabled.",
        "Warming up model for the compilation...",
        'INFO:     127.0.0.1:54321 - "POST /v1/completions HTTP/1.1" 200 OK',
    ],
)
def test_other_lines_are_no_compilation(line: str) -> None:
    assert compiled(f"{PREFIX}{line}\n") is None
