"""Steps read off a replay's records: against timelines made by hand, and the simulated engine's own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import describe
from cluster.order import Limits, Order
from cluster.traffic.make import Recipe, make_trace
from cluster.traffic.workload import Workload
from objectives.measurement import Record
from objectives.slo import Slo
from objectives.step_times import Observed, replay_steps, steps_of_means
from search_spaces.accelerators import accelerator
from search_spaces.deployment import Reader
from search_spaces.settings import Settings
from search_spaces.step_model import Served, step_parts, step_work, table_constants
from search_spaces.values import Json
from tests.objectives.streams import STEP_S, stream


def decoding(observed: tuple[Observed, ...]) -> list[Observed]:
    return [one for one in observed if one.kind == "decode"]


def test_a_lone_sequence_decodes_a_step_a_gap() -> None:
    (alone,) = decoding(replay_steps([stream(0, first_s=1.0, steps=20)], depth=0).observed)
    assert alone.seconds == pytest.approx(STEP_S)
    assert alone.steps == 20
    assert alone.load.sequences == 1
    # 100 prompt tokens and 1, 2, … 20 of its own are cached in its twenty steps
    assert alone.load.context == pytest.approx(100 + np.mean(range(1, 21)))
    assert alone.load.prompt_tokens == 0


def test_the_batch_of_a_step_is_whoever_is_between_first_and_last_chunk() -> None:
    pair = [stream(0, first_s=1.0, steps=20), stream(1, first_s=1.0, steps=20, prompt=200)]
    (both,) = decoding(replay_steps(pair, depth=0).observed)
    assert both.load.sequences == 2
    assert both.load.context == pytest.approx(100 + 200 + 2 * np.mean(range(1, 21)))
    assert both.steps == 40  # each step is met by two tokens


def test_a_prefix_from_the_cache_is_read_by_decoding_and_not_computed() -> None:
    replay = replay_steps([stream(n, first_s=1.0 + 9 * n, steps=20, cached=64) for n in range(8)], depth=0)
    (alone,) = decoding(replay.observed)
    assert alone.load.context == pytest.approx(100 + np.mean(range(1, 21)))
    (prefill,) = [one for one in replay.observed if one.kind == "prefill"]
    assert prefill.load.prompt_tokens == pytest.approx(36)
    assert prefill.load.prompt_read == pytest.approx(100)
    # the first computed token attends to 65, the last to 100
    assert prefill.load.prompt_pairs == pytest.approx(sum(range(65, 101)))
    assert (replay.prompt_tokens, replay.cached_tokens) == (100, 64)


def _with_prompts(steps: int, every: int, long_s: float) -> list[Record]:
    """One sequence of so many steps, in every so many-th of which another's prompt is computed as well."""
    ends, now, others = [1.0], 1.0, []
    for step in range(1, steps + 1):
        now += long_s if step % every == 0 else STEP_S
        ends.append(now)
        if step % every == 0:
            others.append(now)
    main = Record(
        request=0,
        due_s=0.7,
        sent_s=0.7,
        chunk_s=tuple(ends),
        chunk_tokens=tuple(range(1, steps + 2)),
        tokens_in=100,
        tokens_out=steps + 1,
        tokens_asked=steps + 1,
        cached_tokens=0,
        server_ttft_s=0.3,
    )
    return [
        main,
        *(
            stream(1 + n, first_s=at, steps=0, prompt=500, prefill_s=long_s, sent_s=at - long_s - 0.05)
            for n, at in enumerate(others)
        ),
    ]


def test_steps_with_a_prompt_in_them_are_told_from_those_without() -> None:
    plain, mixed = decoding(replay_steps(_with_prompts(100, 5, 0.4), depth=0).observed)
    assert (plain.steps, mixed.steps) == (80, 20)
    assert plain.seconds == pytest.approx(0.1)
    assert plain.load.prompt_tokens == pytest.approx(0, abs=1e-6)
    assert mixed.seconds == pytest.approx(0.4)
    assert mixed.load.prompt_tokens == pytest.approx(500)
    assert mixed.load.prompts == pytest.approx(1)


@pytest.mark.parametrize("told", [True, False])
def test_prefill_counts_from_the_step_that_computed_it_and_the_rest_was_waiting(told: bool) -> None:
    records = _with_prompts(100, 5, 0.4)
    if not told:
        records = [_silent(record) for record in records]
    replay = replay_steps(records[1:] + records[:1], depth=0)
    (prefill,) = [one for one in replay.observed if one.kind == "prefill"]
    # twenty of 0.4 s beside a decoding sequence, and the first of 0.3 s
    assert prefill.seconds == pytest.approx((20 * 0.4 + 0.3) / 21)
    assert prefill.load.sequences == pytest.approx(20 / 21)
    assert replay.prefill_s == pytest.approx(prefill.seconds)
    assert replay.ttft_s == pytest.approx((20 * 0.45 + 0.3) / 21)


def _silent(record: Record) -> Record:
    return Record(
        request=record.request,
        due_s=record.due_s,
        sent_s=record.sent_s,
        chunk_s=record.chunk_s,
        chunk_tokens=record.chunk_tokens,
        tokens_in=record.tokens_in,
        tokens_out=record.tokens_out,
        tokens_asked=record.tokens_asked,
        cached_tokens=record.cached_tokens,
    )


def test_chunks_that_reach_the_client_unevenly_change_no_mean() -> None:
    generator = np.random.default_rng(3)
    records = []
    for record in _with_prompts(400, 5, 0.4):
        late = generator.uniform(0.0, 0.01, len(record.chunk_s))  # up to a tenth of a step
        records.append(
            Record(
                request=record.request,
                due_s=record.due_s,
                sent_s=record.sent_s,
                chunk_s=tuple((np.array(record.chunk_s) + late).tolist()),
                chunk_tokens=record.chunk_tokens,
                tokens_in=record.tokens_in,
                tokens_out=record.tokens_out,
                tokens_asked=record.tokens_asked,
                cached_tokens=0,
                server_ttft_s=record.server_ttft_s,
            )
        )
    observed = decoding(replay_steps(records, depth=0).observed)
    plain = [one for one in observed if one.load.prompts < 0.2]
    mixed = [one for one in observed if one.load.prompts >= 0.2]
    assert sum(one.steps for one in mixed) == pytest.approx(80, abs=2)
    assert np.average([one.seconds for one in plain], weights=[one.steps for one in plain]) == pytest.approx(
        0.1, rel=0.02
    )
    assert np.average([one.seconds for one in mixed], weights=[one.steps for one in mixed]) == pytest.approx(
        0.4, rel=0.02
    )


def test_a_chunk_with_what_two_steps_gave_counts_as_two() -> None:
    merged = stream(0, first_s=1.0, steps=20, step_s=2 * STEP_S, tokens_a_step=2)
    (alone,) = decoding(replay_steps([merged], depth=0).observed)
    assert alone.seconds == pytest.approx(STEP_S)
    assert alone.steps == 40


def test_with_a_draft_several_tokens_are_one_step() -> None:
    replay = replay_steps([stream(0, first_s=1.0, steps=20, tokens_a_step=3)], depth=4)
    (alone,) = decoding(replay.observed)
    assert alone.seconds == pytest.approx(STEP_S)
    assert replay.tokens_per_step == pytest.approx(3)
    assert alone.load.queries == 5


def test_too_few_steps_are_no_mean() -> None:
    assert decoding(replay_steps([stream(0, first_s=1.0, steps=5)], depth=0).observed) == []


def test_nothing_answered_is_nothing_seen() -> None:
    replay = replay_steps([Record(request=0, due_s=0.0, sent_s=None, error="refused")], depth=0)
    assert replay.observed == ()
    assert replay.tokens_per_step is None


def test_means_alone_give_one_rough_observation() -> None:
    metrics = {
        "tpot_mean_s": 0.05,
        "accepted_tokens_per_target_step": 2.0,
        "batch_mean": 10.0,
        "tokens_per_target_step": 170.0,
        "prefix_hit_rate": 0.5,
        "target_steps": 300.0,
    }
    (one,) = steps_of_means(metrics, input_tokens=600, output_tokens=100, queries=3.0)
    assert one.seconds == pytest.approx(0.1)
    assert one.load.sequences == 10
    assert one.load.context == 10 * 650
    # 170 tokens a step less the 20 that decoding gave; a prompt has 300 to compute, so half a prompt a step
    assert one.load.prompt_tokens == pytest.approx(150)
    assert one.load.prompts == pytest.approx(0.5)
    assert steps_of_means({}, input_tokens=600, output_tokens=100, queries=1.0) == ()


TRACE = make_trace(
    Recipe(
        requests=120,
        rate=20,
        input_mean=800,
        input_max=3000,
        output_mean=80,
        output_max=400,
        shared_prefix=0.4,
        prefixes=3,
        block_tokens=64,
        seed=1,
    )
)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DRAFT = "meta-llama/Llama-3.2-1B-Instruct"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"quantization": "fp8", "kv_cache_dtype": "fp8"},
        {"max_num_seqs": 16, "enable_prefix_caching": False},
        {"speculative_config": {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2}},
    ],
)
def test_the_simulated_engines_step_times_are_found_again(
    arguments: Mapping[str, Json], tmp_path: Path
) -> None:
    """The engine plays step by step with its own code for step times; what the records say of its steps, put
    into the split with the same constants, gives back how long they took."""
    workload = Workload(trace=TRACE)
    order = Order(
        study="s",
        number=0,
        model=MODEL,
        arguments={"max_model_len": 4096, **arguments},
        environment={},
        workload=workload,
        slo=Slo(ttft_s=1.0),
        gpus=1,
        accelerator="H100-80G",
    )
    with SimulatedEngine().serve(order, tmp_path) as endpoint:
        records = endpoint.play(workload, Limits()).records
    device = accelerator("H100-80G")
    settings = Settings(model=MODEL, arguments=order.arguments, environment={})
    deployment = Reader(device, describe).read(settings)
    served = Served(
        target=deployment.target,
        target_scheme="t",
        draft=deployment.draft,
        draft_scheme="d" if deployment.draft else "",
        depth=deployment.depth,
    )
    # The simulated engine's n-gram lookup takes time for each sequence only.
    constants = replace(table_constants(device, [served]), lookup_step_s=0.0)
    replay = replay_steps(records, depth=deployment.depth, budget=deployment.max_num_batched_tokens)
    assert sum(one.steps for one in replay.observed if one.kind == "decode") > 3000
    for one in replay.observed:
        model_s = sum(
            part.share * step_parts(step_work(served, part.load), constants).total_s for part in one.slices
        )
        # Where memory binds some steps and compute others, a slice can hold both.
        mixed = 0 < one.load.prompt_tokens < 400
        assert model_s == pytest.approx(one.seconds, rel=0.02 if mixed else 0.005)
        assert sum(part.share for part in one.slices) == pytest.approx(1)
