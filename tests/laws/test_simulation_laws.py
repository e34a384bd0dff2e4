"""What every replay of the simulated engine keeps, and that it is what vLLM's scheduler would do."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.node.engine import Replay
from cluster.node.simulated import SimulatedEndpoint
from cluster.node.simulation.arrivals import Arrivals
from cluster.node.simulation.kv_pool import KvPool
from cluster.node.simulation.play import Play
from cluster.node.simulation.served import Job
from cluster.node.simulation.settings import Assumptions, Settings, resolve
from cluster.node.simulation.speculation import Plan, plain_plan, speculative_plan
from cluster.order import Limits, Order
from cluster.traffic.sessions import Sessions, turns
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.measurement import Record, Sample
from objectives.reconcile import disagreements
from objectives.slo import Slo
from search_spaces.values import Json
from tests.cluster.node.slow_scheduler import SlowScheduler

TRACE_BLOCK = 32
MAX_LEN = 9 * TRACE_BLOCK + 60

Row = tuple[float, int, int, int, int]
"""Gap to the next request in seconds, shared blocks, own blocks, tokens in the last one, output tokens."""

requests = st.tuples(
    st.one_of(st.just(0.0), st.floats(0, 0.05)),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(1, TRACE_BLOCK),
    st.integers(1, 60),
)

SPECULATION: list[dict[str, Json]] = [
    {"method": "ngram", "num_speculative_tokens": 3},
    {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 2},
    {"method": "eagle", "model": "an-eagle-head", "num_speculative_tokens": 4},
]


def _config(
    seqs: int, tokens: int, size: int, spare: int, caching: bool, speculation: dict[str, Json] | None
) -> dict[str, Json]:
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "block_size": size,
        # vLLM's null block, one longest sequence, and a little: short of blocks most of the time
        "num_gpu_blocks_override": 1 + -(-MAX_LEN // size) + spare,
        "enable_prefix_caching": caching,
        "speculative_config": speculation,
    }


configs = st.builds(
    _config,
    seqs=st.integers(1, 8),
    tokens=st.integers(10, 200),
    size=st.sampled_from([8, 16, 48]),
    spare=st.integers(0, 20),
    caching=st.booleans(),
    speculation=st.one_of(st.none(), st.sampled_from(SPECULATION)),
)


Wait = tuple[str | None, float | None]
"""A request's session, and how long it took when it was recorded."""

waits = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.none() | st.floats(0, 0.1)), min_size=14, max_size=14
)


def in_sessions(trace: Trace, drawn: list[Wait]) -> Trace:
    """The trace's requests dealt to sessions; those that nothing was drawn for are of none."""
    drawn = [*drawn, *[(None, None)] * len(trace.requests)]
    dealt = [
        replace(request, session_id=session, duration_s=lasted_s)
        for request, (session, lasted_s) in zip(trace.requests, drawn, strict=False)
    ]
    return replace(trace, requests=tuple(dealt))


def trace_of(rows: list[Row]) -> Trace:
    """Prompts that begin with some of four shared blocks, and go on with their own."""
    arrival, found = 0.0, []
    for at, (gap, shared, own, partial, output) in enumerate(rows):
        ids = [*range(shared), *(1000 + 10 * at + i for i in range(own))] or [1000 + 10 * at]
        found.append(
            Request(
                arrival_s=arrival,
                input_length=(len(ids) - 1) * TRACE_BLOCK + partial,
                output_length=output,
                hash_ids=tuple(ids),
            )
        )
        arrival += gap
    return Trace(requests=tuple(found), block_tokens=TRACE_BLOCK)


def order_of(arguments: dict[str, Json], trace: Trace, *, number: int = 0) -> Order:
    return Order(
        study="laws",
        number=number,
        model="meta-llama/Llama-3.1-8B",
        arguments={"max_model_len": MAX_LEN, **arguments},
        environment={},
        workload=Workload(trace=trace, seed=3),
        slo=Slo(),
        gpus=1,
        accelerator="H100",
    )


def jobs_of(trace: Trace) -> list[Job]:
    return [
        Job(
            request=at,
            due_s=request.arrival_s,
            prompt=request.input_length,
            output=request.output_length,
            hash_ids=request.hash_ids,
            after=turn.after,
            think_s=turn.think_s,
        )
        for at, (request, turn) in enumerate(zip(trace.requests, turns(trace), strict=True))
    ]


def plan_of(resolved: Settings, jobs: list[Job]) -> Plan:
    outputs = [job.output for job in jobs]
    drafting = resolved.drafting
    if drafting is None:
        return plain_plan(outputs)
    return speculative_plan(outputs, drafting.acceptance, drafting.depth, 3)


def gains_of(plan: Plan, jobs: list[Job]) -> list[list[int]]:
    """Tokens of each decode step; as many ones at the end as a preempted request may still need."""
    if not plan.accepted:
        return [[1] * job.output for job in jobs]
    return [
        [*(int(n) + 1 for n in kept), *([1] * job.output)]
        for kept, job in zip(plan.accepted, jobs, strict=True)
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs, st.just([]) | waits)
def test_the_play_is_the_scheduler_played_one_step_and_one_block_at_a_time(
    rows: list[Row], arguments: dict[str, Json], drawn: list[Wait]
) -> None:
    trace = in_sessions(trace_of(rows), drawn)
    jobs = jobs_of(trace)
    resolved = resolve(order_of(arguments, trace), Assumptions())
    plan = plan_of(resolved, jobs)
    pool = KvPool(resolved.kv_blocks - 1, resolved.block_size, TRACE_BLOCK)
    play = Play(resolved, pool, Arrivals(jobs), plan)
    play.run()
    slow = SlowScheduler(resolved, jobs, gains_of(plan, jobs), TRACE_BLOCK)
    slow.run()
    assert len(play.log.preempted) == slow.preemptions
    served = sorted(play.served, key=lambda one: one.job.request)
    for fast, reference in zip(served, slow.all, strict=True):
        assert math.isclose(fast.job.due_s, reference.due_s, rel_tol=1e-9)
        ends = [play.log.step_end_s[at] for first, n in fast.steps for at in range(first, first + n)]
        assert fast.plan.tolist() == reference.chunk_tokens
        assert fast.cached_tokens == reference.cached
        np.testing.assert_allclose(ends, reference.chunk_s, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs, waits, st.sampled_from([0.5, 1.0, 8.0]))
def test_no_turn_leaves_before_its_predecessor_has_ended_and_thinking_is_not_scaled(
    rows: list[Row], arguments: dict[str, Json], drawn: list[Wait], speed: float
) -> None:
    trace = in_sessions(trace_of(rows), drawn)
    order = order_of(arguments, trace)
    workload = replace(order.workload, sessions=Sessions.CAUSAL, speed=speed)
    endpoint = SimulatedEndpoint(resolve(order, Assumptions()), order, Assumptions())
    records = endpoint.play(workload, Limits()).records
    for record, request, turn in zip(records, trace.requests, turns(trace), strict=True):
        assert record.ok
        assert record.sent_s == record.due_s
        if turn.after is None:
            assert record.due_s == request.arrival_s / speed
        else:
            ended_s = records[turn.after].finished_s
            assert ended_s is not None
            assert record.due_s == ended_s + turn.think_s


@settings(max_examples=30, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs, waits)
def test_sessions_replayed_as_recorded_make_no_difference_to_any_record(
    rows: list[Row], arguments: dict[str, Json], drawn: list[Wait]
) -> None:
    bare = trace_of(rows)
    order = order_of(arguments, bare)

    def records(trace: Trace) -> tuple[Record, ...]:
        endpoint = SimulatedEndpoint(resolve(order, Assumptions()), order, Assumptions())
        return endpoint.play(replace(order.workload, trace=trace), Limits()).records

    assert records(in_sessions(bare, drawn)) == records(bare)


def _replayed(
    rows: list[Row], arguments: dict[str, Json], number: int = 0, assumptions: Assumptions | None = None
) -> tuple[Trace, Settings, SimulatedEndpoint, Replay]:
    trace = trace_of(rows)
    order = order_of(arguments, trace, number=number)
    assumed = assumptions or Assumptions()
    resolved = resolve(order, assumed)
    endpoint = SimulatedEndpoint(resolved, order, assumed)
    return trace, resolved, endpoint, endpoint.play(order.workload, Limits())


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs)
def test_every_request_gets_what_it_asked_for_and_time_only_goes_on(
    rows: list[Row], arguments: dict[str, Json]
) -> None:
    trace, _, _, replay = _replayed(rows, arguments)
    assert [record.request for record in replay.records] == list(range(len(trace.requests)))
    for record, request in zip(replay.records, trace.requests, strict=True):
        assert record.ok
        assert record.tokens_in == request.input_length
        assert record.tokens_out == record.tokens_asked == record.chunk_tokens[-1] == request.output_length
        assert record.due_s == record.sent_s == request.arrival_s
        assert record.due_s < record.chunk_s[0]
        assert all(before < after for before, after in pairwise(record.chunk_s))
        assert all(before < after for before, after in pairwise(record.chunk_tokens))
        assert record.finished_s == record.chunk_s[-1]
        assert record.cached_tokens is not None
        assert 0 <= record.cached_tokens < request.input_length


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs)
def test_no_limit_is_ever_passed_and_every_block_comes_back(
    rows: list[Row], arguments: dict[str, Json]
) -> None:
    trace = trace_of(rows)
    jobs = jobs_of(trace)
    resolved = resolve(order_of(arguments, trace), Assumptions())
    pool = KvPool(resolved.kv_blocks - 1, resolved.block_size, TRACE_BLOCK)
    play = Play(resolved, pool, Arrivals(jobs), plan_of(resolved, jobs))
    play.run()
    log = play.log
    assert pool.free == pool.blocks
    assert log.most_tokens <= resolved.max_num_batched_tokens
    assert max(running for _, running, _, _ in log.state) <= resolved.max_num_seqs
    ends = [step for step, *_ in log.state[1:]] + [len(log.step_end_s)]
    for (start, _, _, other), end in zip(log.state, ends, strict=True):
        used = log.decode_blocks[start:end] + other
        assert np.all((used >= 0) & (used <= pool.blocks))


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs)
def test_counters_only_grow_and_end_at_what_the_records_say(
    rows: list[Row], arguments: dict[str, Json]
) -> None:
    trace, resolved, _, replay = _replayed(rows, arguments)
    samples = replay.samples
    totals = [name for name in Sample.__dataclass_fields__ if name.endswith("_total")]
    for name in totals:
        readings = [getattr(sample, name) for sample in samples]
        if readings[0] is None:
            assert readings == [None] * len(samples)
        else:
            assert all(np.all(np.less_equal(a, b)) for a, b in pairwise(readings))
    last = samples[-1]
    records = replay.records
    prompts = sum(request.input_length for request in trace.requests)
    assert last.prompt_tokens_total == prompts
    assert last.generation_tokens_total == sum(record.tokens_out for record in records)
    cached = sum(record.cached_tokens or 0 for record in records)
    assert last.step_tokens_total == prompts - cached + sum(record.tokens_out for record in records)
    assert last.running == last.waiting == last.kv_usage == 0
    if resolved.prefix_caching:
        assert (last.prefix_queries_total, last.prefix_hits_total) == (prompts, cached)
    times = sum(record.e2e_s for record in records)
    assert last.queue_time_s_total is not None
    assert last.inference_time_s_total is not None
    assert math.isclose(last.queue_time_s_total + last.inference_time_s_total, times, rel_tol=1e-9)
    if resolved.drafting is None:
        assert last.drafts_total is None
        assert last.accepted_per_position_total is None
    else:
        assert last.accepted_per_position_total is not None
        assert last.accepted_tokens_total == sum(last.accepted_per_position_total)
        assert last.draft_tokens_total == resolved.drafting.depth * (last.drafts_total or 0)
        # What a request did not need of its last draft was accepted all the same.
        gained = sum(record.tokens_out - len(record.chunk_s) for record in records)
        assert gained <= (last.accepted_tokens_total or 0) <= gained + len(records) * resolved.drafting.depth


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, min_size=1, max_size=14), configs)
def test_what_is_told_of_each_request_and_what_is_told_in_total_are_one(
    rows: list[Row], arguments: dict[str, Json]
) -> None:
    _, resolved, _, replay = _replayed(rows, arguments)
    records, last = replay.records, replay.samples[-1]
    assert disagreements(records, replay.samples) == ()
    assert last.finished_total == len(records)
    for record in records:
        queue_s, ttft_s, rest_s = record.server_queue_s, record.server_ttft_s, record.server_generation_s
        assert queue_s is not None
        assert ttft_s is not None
        assert rest_s is not None
        assert min(queue_s, ttft_s, rest_s) >= 0
        assert math.isclose(queue_s + ttft_s, record.ttft_s, rel_tol=1e-9)
        assert math.isclose(queue_s + ttft_s + rest_s, record.e2e_s, rel_tol=1e-9)
        if record.tokens_out == 1:
            assert record.server_itl_mean_s is None
        else:
            assert math.isclose(record.server_itl_mean_s or 0, rest_s / (record.tokens_out - 1))
    if resolved.drafting is None:
        assert {record.drafts for record in records} == {None}
    else:
        assert sum(record.drafts or 0 for record in records) == last.drafts_total
        assert sum(record.draft_tokens or 0 for record in records) == last.draft_tokens_total
        assert sum(record.accepted_tokens or 0 for record in records) == last.accepted_tokens_total
    gaps = [later - earlier for record in records for earlier, later in pairwise(record.chunk_s)]
    tpot = [(record.chunk_s[-1] - record.chunk_s[0]) / max(record.tokens_out - 1, 1) for record in records]
    for histogram, values in (
        (last.ttft_histogram, [record.ttft_s for record in records]),
        (last.itl_histogram, gaps),
        (last.tpot_histogram, tpot),
        (last.e2e_histogram, [record.e2e_s for record in records]),
    ):
        assert histogram is not None
        assert list(histogram.counts) == [sum(v <= bound for v in values) for bound in histogram.bounds]
        assert math.isclose(histogram.sum, math.fsum(values), rel_tol=1e-9, abs_tol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(requests, min_size=1, max_size=10), configs)
def test_the_same_seed_and_number_give_the_same_replay_to_the_last_bit(
    rows: list[Row], arguments: dict[str, Json]
) -> None:
    noisy = Assumptions(run_noise=0.05, step_noise=0.1)
    _, _, endpoint, first = _replayed(rows, arguments, 7, noisy)
    _, _, same_start, second = _replayed(rows, arguments, 7, noisy)
    assert first == second
    order = order_of(arguments, trace_of(rows), number=7)
    endpoint.reset_caches()
    same_start.reset_caches()
    again = endpoint.play(order.workload, Limits())
    assert again != first  # a replay's steps have noise of their own
    assert again == same_start.play(order.workload, Limits())
    _, _, _, other = _replayed(rows, arguments, 8, noisy)
    assert other != first


@pytest.mark.parametrize("speculation", SPECULATION)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), outputs=st.lists(st.integers(1, 80), min_size=1, max_size=20))
def test_a_plan_delivers_just_what_is_asked(
    speculation: dict[str, Json], seed: int, outputs: list[int]
) -> None:
    arguments: dict[str, Json] = {"speculative_config": speculation}
    resolved = resolve(order_of(arguments, trace_of([(0.0, 0, 1, 1, 1)])), Assumptions())
    assert resolved.drafting is not None
    plan = speculative_plan(outputs, resolved.drafting.acceptance, resolved.drafting.depth, seed)
    for asked, delivered, accepted in zip(outputs, plan.delivered, plan.accepted, strict=True):
        assert delivered[0] == 1
        assert delivered[-1] == asked
        assert len(accepted) == len(delivered) - 1
        assert all(1 <= gain <= 1 + kept for gain, kept in zip(np.diff(delivered), accepted, strict=True))
