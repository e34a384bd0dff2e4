import dataclasses
from datetime import timedelta
from pathlib import Path

from cluster.order import Cause, Outcome, Ran
from objectives.factorial import Cell
from objectives.slo import Slo
from tests.tuner import stories
from tests.tuner.ablation.desks import Desk, measured, refused
from tuner.ablation.plan import PlannedRun
from tuner.ablation.setup import setup


def test_what_a_reader_asks_before_believing_is_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.study = dataclasses.replace(
        desk.study,
        trace="chat.jsonl",
        trace_figures={"requests": 10, "input_mean": 100.4, "prefix_share": 0.25, "rate": 4.0},
        slo=Slo(ttft_s=0.5, tpot_s=0.04, attainment=0.95),
    )
    told = desk.run(lambda cell, run: measured(goodput_rps=4.0), factors=("speculation",)).setup
    assert told.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (told.engine, told.hardware, told.nodes, told.gpus) == (("simulated",), ("a chip",), ("here",), 1)
    assert told.traffic == (
        f"chat.jsonl ({desk.study.trace_digest[:12]})",
        "10 requests",
        "100 tokens in on average",
        "recorded at 4 requests/s",
        "25% of prompt tokens shared",
        "sessions recorded",
    )
    assert told.slo == "TTFT at most 500 ms, TPOT at most 40 ms, for 95% of requests"


def test_runs_on_different_hardware_or_versions_are_all_told(tmp_path: Path) -> None:
    def answer(cell: Cell, run: PlannedRun) -> Outcome:
        if run.number == 0:
            return refused(Cause.LOST_NODE, "gone")  # nothing is known of it
        ran = Ran(engine="vllm", version=f"0.32.{run.block}", hardware="H100" if cell else "H200")
        return dataclasses.replace(measured(goodput_rps=4.0), ran=ran)

    told = Desk(tmp_path).run(answer, factors=("speculation",)).setup
    assert set(told.engine) == {"vllm 0.32.0", "vllm 0.32.1"}
    assert set(told.hardware) == {"H100", "H200"}
    assert told.nodes == ()


def test_the_time_is_from_the_first_start_to_the_last_end_whatever_the_zone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    first, second = desk.trials
    second = dataclasses.replace(second, finished=stories.MORNING + timedelta(hours=30))
    told = setup(desk.plan(), [second, first])
    assert told.begun == "2026-01-02 03:04 UTC"
    assert told.ended == "2026-01-03 09:04 UTC"


def test_before_anything_ran_nothing_is_claimed(tmp_path: Path) -> None:
    told = setup(Desk(tmp_path).plan(), [])
    assert (told.engine, told.hardware, told.nodes, told.begun, told.ended) == ((), (), (), None, None)
