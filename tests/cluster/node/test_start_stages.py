"""Stamps of a start, from a log that grows as vLLM's does and a clock that is set by hand."""

from pathlib import Path

import pytest

from cluster.node.start_stages import READY, STAGES, StartStages
from tests.cluster.node.starts import Clock, clock, log

__all__ = ["clock", "log"]  # fixtures

LOG = (
    (
        "server imported",
        "(APIServer pid=7) INFO 11-30 15:13:56 [model.py:733] Resolved architecture: Llama\n",
    ),
    ("core imported", "(EngineCore pid=8) INFO 11-30 15:14:08 [core.py:133] Initializing a V1 LLM engine\n"),
    ("worker imported", "(VllmWorker-0 pid=9) WARNING 11-30 15:14:19 [vllm.py:725] Model Runner V2\n"),
    ("weights begun", "(Worker pid=9) INFO [cpu_model_runner.py:68] Starting to load model m...\n"),
    ("weights loaded", "(Worker pid=9) INFO [default_loader.py:501] Loading weights took 0.45 seconds\n"),
    ("compilation begun", "(Worker pid=9) INFO [monitor.py:40] [backbone] Starting torch.compile\n"),
    (
        "capture begun",
        "(Worker pid=9) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|  | 0/7\r",
    ),
    (
        "engine made",
        "(EngineCore pid=8) INFO [core.py:402] init engine (profile, create kv cache) took 1 s\n",
    ),
    ("server made", "(APIServer pid=7) INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:1\n"),
)
"""Lines of vLLM 0.32, shortened; in its order."""


def test_each_stage_has_the_time_at_which_its_line_was_first_seen(log: Path, clock: Clock) -> None:
    stages = StartStages(log, now=clock)
    for number, (_, line) in enumerate(LOG, 1):
        clock.at_s = 100.0 + number
        with log.open("a") as file:
            file.write(line)
        stages.look()
        clock.at_s += 0.5
        stages.look()
    clock.at_s = 110.0
    stages.reached(READY)
    assert [stage for stage, _ in LOG] == list(STAGES)
    expected = {stage: float(number) for number, (stage, _) in enumerate(LOG, 1)}
    assert stages.seconds == expected | {READY: 10.0}


def test_what_goes_on_follows_from_the_last_stage_that_was_reached(log: Path, clock: Clock) -> None:
    stages = StartStages(log, now=clock)
    seen = [stages.under_way]
    for _, line in LOG:
        with log.open("a") as file:
            file.write(line)
        stages.look()
        seen.append(stages.under_way)
    assert seen == [
        "importing",
        "importing",
        "initialising",
        "initialising",
        "loading weights",
        "profiling memory",
        "compiling",
        "capturing graphs",
        "starting the server",
        "starting the server",
    ]
    stages.reached(READY)
    assert stages.under_way == "reading back its settings"


def test_an_engine_without_workers_skips_their_stage(log: Path, clock: Clock) -> None:
    stages = StartStages(log, now=clock)
    log.write_text("".join(line.replace("Worker", "EngineCore") for _, line in LOG if "Vllm" not in line))
    clock.at_s = 103.0
    stages.look()
    assert set(stages.seconds) == STAGES.keys() - {"worker imported"}
    assert set(stages.seconds.values()) == {3.0}


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_line_that_is_read_in_two_parts_is_recognised(log: Path, clock: Clock, cut: int) -> None:
    stages = StartStages(log, now=clock)
    text = LOG[4][1]
    for part in (text[:cut], text[cut:]):
        with log.open("a") as file:
            file.write(part)
        stages.look()
    assert "weights loaded" in stages.seconds
