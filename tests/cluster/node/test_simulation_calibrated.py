"""The simulated engine with figures that were measured: step times, the API server's part, drafts' luck."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.node.engine import Replay
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions
from cluster.node.simulation.speculation import Acceptance, ngram_acceptance
from cluster.order import Limits, Order
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.accelerators import ACCELERATORS
from search_spaces.model_shape import SHAPES
from search_spaces.roofline import forward_pass
from search_spaces.schemes import FP8, UNQUANTISED, Scheme
from search_spaces.step_model import Constants, Served, StepLoad, step_parts, step_work
from search_spaces.values import Json

H100 = ACCELERATORS["H100-80G"]
LLAMA, DRAFT = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B"
MEASURED = Constants(
    bandwidth=0.4 * H100.bandwidth,
    compute={"unquantised": 2e13, "fp8": 5e13},
    step_s=3e-3,
    sequence_s=2e-4,
    draft_step_s=1e-3,
    lookup_step_s=2e-3,
    lookup_s=5e-4,
)
NEVER = Acceptance(rate=0.0)


def order(arguments: Mapping[str, Json], *, prompt: int = 64, output: int = 20, batch: int = 8) -> Order:
    """So many equal requests at once."""
    requests = (Request(arrival_s=0.0, input_length=prompt, output_length=output, hash_ids=()),) * batch
    return Order(
        study="calibrated",
        number=0,
        model=LLAMA,
        arguments={"max_model_len": 4096, **arguments},
        environment={},
        workload=Workload(trace=Trace(requests=requests), seed=1),
        slo=Slo(ttft_s=1.0),
        gpus=1,
        accelerator="H100",
    )


def play(given: Order, folder: Path, assumptions: Assumptions) -> Replay:
    with SimulatedEngine(assumptions).serve(given, folder) as endpoint:
        return endpoint.play(given.workload, Limits())


def speculating(method: str) -> dict[str, Json]:
    asked: dict[str, Json] = {"method": method, "num_speculative_tokens": 3}
    asked |= {"prompt_lookup_min": 2} if method == "ngram" else {"model": DRAFT}
    return {"speculative_config": asked}


@pytest.mark.parametrize(
    ("arguments", "scheme", "depth"),
    [
        ({}, UNQUANTISED, 0),
        ({"quantization": "fp8"}, FP8, 0),
        (speculating("draft_model"), UNQUANTISED, 3),
        (speculating("ngram"), UNQUANTISED, 3),
    ],
    ids=["plain", "fp8", "draft", "ngram"],
)
def test_steps_take_what_the_measured_constants_say(
    tmp_path: Path, arguments: dict[str, Json], scheme: Scheme, depth: int
) -> None:
    batch, prompt = 8, 64
    drafts = "ngram" not in str(arguments) and depth
    served = Served(
        target=forward_pass(SHAPES[LLAMA], scheme, H100),
        target_scheme=scheme.word,
        draft=forward_pass(SHAPES[DRAFT], UNQUANTISED, H100) if drafts else None,
        draft_scheme="unquantised" if drafts else "",
        depth=depth,
    )
    assumed = Assumptions(constants=MEASURED, acceptance={"draft_model": NEVER, "ngram": NEVER})
    record = play(order(arguments), tmp_path, assumed).records[0]
    # Nothing is accepted, so each step gives one token and the contexts are known.
    loads = [
        StepLoad(sequences=batch, queries=1.0 + depth, context=batch * (prompt + i)) for i in range(1, 20)
    ]
    steps = [step_parts(step_work(served, load), MEASURED).total_s for load in loads]
    assert np.diff(record.chunk_s) == pytest.approx(steps)


def test_a_scheme_that_was_not_measured_keeps_the_tables_compute(tmp_path: Path) -> None:
    def prefill_s(compute: dict[str, float]) -> float:
        constants = Constants(
            bandwidth=math.inf, compute=compute, step_s=0.0, sequence_s=0.0, draft_step_s=0.0
        )
        given = order({}, prompt=4000, output=1, batch=1)
        return play(given, tmp_path, Assumptions(constants=constants)).records[0].ttft_s

    of_table = forward_pass(SHAPES[LLAMA], UNQUANTISED, H100).compute
    assert prefill_s({}) == pytest.approx(prefill_s({"unquantised": of_table}))
    assert prefill_s({"unquantised": of_table / 2}) == pytest.approx(2 * prefill_s({}))


def test_the_api_servers_part_delays_every_answer_and_nothing_in_the_engine(tmp_path: Path) -> None:
    given = order({"max_num_seqs": 4})
    plain, delayed = (play(given, tmp_path, Assumptions(api_s=api_s)) for api_s in (0.0, 0.25))
    for one, other in zip(plain.records, delayed.records, strict=True):
        assert np.array(other.chunk_s) == pytest.approx(np.array(one.chunk_s) + 0.25)
        assert other.tpot_s == pytest.approx(one.tpot_s)
        assert (other.server_queue_s, other.server_ttft_s) == (one.server_queue_s, one.server_ttft_s)
    assert delayed.samples == plain.samples


def test_in_a_closed_loop_the_next_request_leaves_when_the_answer_has_come(tmp_path: Path) -> None:
    given = order({}, batch=3)
    with SimulatedEngine(Assumptions(api_s=0.25)).serve(given, tmp_path) as endpoint:
        records = endpoint.play_closed(given.workload, 1, Limits()).records
    for before, after in pairwise(records):
        assert after.due_s == pytest.approx(before.chunk_s[-1])


def test_measured_positions_of_n_gram_drafts_are_kept() -> None:
    measured = Acceptance(rate=0.5, found=0.3, positions=(0.6, 0.4, 0.35))
    assert ngram_acceptance(measured, 2) == measured


SHARE = st.floats(0.05, 0.95)


@given(rates=st.lists(SHARE, min_size=1, max_size=5), found=SHARE, shortest=st.integers(2, 8))
def test_acceptance_measured_at_one_shortest_match_comes_back_from_any_other(
    rates: list[float], found: float, shortest: int
) -> None:
    positions = tuple(np.cumprod(rates).tolist())
    base = Acceptance(rate=rates[-1], found=found, positions=positions)
    elsewhere = ngram_acceptance(base, shortest)
    assert elsewhere.positions is not None
    assert elsewhere.found <= found
    assert all(there >= here for there, here in zip(elsewhere.positions, positions, strict=True))
    back = ngram_acceptance(elsewhere, 2, known_at=shortest)
    assert back.positions == pytest.approx(positions)
    assert (back.rate, back.found) == pytest.approx((base.rate, base.found))
