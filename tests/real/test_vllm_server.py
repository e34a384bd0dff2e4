"""A real vLLM from start to end: it serves what was asked, says what it does, and leaves nothing behind.

The engine is started four times in all, once for the first group of tests; the last of that group kills it.
Three of the starts are from a launcher, as those of a search are, and one from the command.
"""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.node.engine import LOG_NAME, EngineFailure, Replay
from cluster.node.guard import GuardRecord, read_record
from cluster.node.guarded import PACKAGE_ROOT, RECORD_NAME
from cluster.node.phases import Phases
from cluster.node.run import run_trial
from cluster.node.start_stages import READY, STAGES
from cluster.node.vllm_server import VllmEndpoint, VllmEngine
from cluster.order import Cause, Failed, Limits, Order
from cluster.phase import Phase, PhaseName
from cluster.traffic.request import Request
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.reconcile import disagreements
from objectives.slo import Slo
from search_spaces.values import Json
from tests.real.conftest import PYTESTS_OWN

pytestmark = pytest.mark.real

REPETITIVE = "one two three four five six seven eight nine ten " * 12
LIMITS = Limits(stuck_s=60.0, stop_s=20.0)
LONG = Trace(requests=tuple(Request(arrival_s=0.0, input_length=100, output_length=800) for _ in range(4)))
"""Answers that take long enough to be broken off."""
SHARED = Trace(
    requests=(
        # The same 200 tokens each time, of which one whole block (128 on this engine) can be found again.
        *(
            Request(arrival_s=0.4 * number, input_length=200, output_length=8, hash_ids=(1,))
            for number in range(3)
        ),
        Request(arrival_s=1.2, input_length=120, output_length=48, prompt=REPETITIVE),
    )
)


def order(model: Path, arguments: dict[str, Json], trace: Trace = SHARED) -> Order:
    common: dict[str, Json] = {
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 2**28,
        "dtype": "bfloat16",
        "max_num_seqs": 4,
        "enforce_eager": True,  # compiling takes most of a minute where it was never done before
    }
    return Order(
        study="test",
        number=0,
        model=str(model),
        arguments=common | arguments,
        environment={},
        workload=Workload(trace=trace, tokenizer=str(model)),
        slo=Slo(ttft_s=10.0),
        limits=LIMITS,
    )


def record_in(folder: Path) -> GuardRecord:
    record = read_record(folder / RECORD_NAME)
    assert record is not None
    return record


def gone(record: GuardRecord, within_s: float) -> bool:
    """Whether nothing of the engine runs any more."""
    return wait_until(lambda: not record.ours, within_s)


def wait_until(holds: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


NGRAM: dict[str, Json] = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trial")


@pytest.fixture(scope="module")
def told() -> list[Phase]:
    """What the first engine's trial told."""
    return []


@pytest.fixture(scope="module")
def phases(told: list[Phase]) -> Phases:
    return Phases(told.append)


@pytest.fixture(scope="module")
def endpoint(small_model: Path, launcher: Path, folder: Path, phases: Phases) -> Iterator[VllmEndpoint]:
    """One engine with prefix caching and ngram speculation, warmed up."""
    asked = order(small_model, {"enable_prefix_caching": True, "speculative_config": NGRAM})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(PYTESTS_OWN)
        with VllmEngine(launcher).serve(asked, folder, phases) as served:
            served.warm_up(asked.workload)
            yield served


def test_it_tells_what_is_in_effect(endpoint: VllmEndpoint, folder: Path) -> None:
    effective = endpoint.effective
    assert effective["enable_prefix_caching"] is True
    assert effective["max_num_seqs"] == 4
    assert effective["dtype"] == "bfloat16"
    blocks, size = effective["kv_blocks"], effective["block_size"]
    assert isinstance(blocks, int)
    assert isinstance(size, int)
    # 30 layers, K and V, 3 heads of 64 values, 2 bytes each: the model card of SmolLM2-135M.
    assert blocks == 2**28 // (size * 30 * 2 * 3 * 64 * 2)
    speculation = effective["speculative_config"]
    assert isinstance(speculation, dict)
    assert speculation["num_speculative_tokens"] == 4
    assert endpoint.version is not None
    assert len(record_in(folder).ours) >= 3  # guard, API server, engine core
    assert endpoint.launch == "warm"
    stages = endpoint.stages_s
    eager = [stage for stage in STAGES if stage not in ("compilation begun", "capture begun")]
    assert list(stages) == [*eager, READY]
    assert sorted(stages.values()) == list(stages.values())


def test_it_told_the_stages_of_its_start_as_they_came(endpoint: VllmEndpoint, told: list[Phase]) -> None:
    stages = [phase.stage for phase in told if phase.name is PhaseName.STARTING]
    # Looked at four times a second: what was over sooner need not have been seen.
    assert stages[0] == "importing"
    assert stages[-1] == "reading back its settings"
    in_order = ["importing", "initialising", "loading weights", "profiling memory", "starting the server"]
    assert stages[:-1] == [stage for stage in in_order if stage in stages]
    assert len(stages) > 3


def test_a_replay_serves_every_token_and_the_counters_agree(
    endpoint: VllmEndpoint, small_model: Path, phases: Phases, told: list[Phase]
) -> None:
    workload = order(small_model, {}).workload
    phases.replaying(1, speed=1.0, requests=4)
    endpoint.reset_caches()
    replay = endpoint.play(workload, LIMITS)
    ended = [phase.ended for phase in told if phase.replay == 1]
    assert ended[:2] == [None, 0]
    assert ended[-1] == 4  # not what warmed it up
    assert [record.error for record in replay.records] == [None] * 4
    assert [record.tokens_out for record in replay.records] == [8, 8, 8, 48]
    assert [record.cached_tokens for record in replay.records][:3] == [0, 128, 128]
    first, last = replay.samples[0], replay.samples[-1]
    assert last.prefix_hits_total is not None
    assert first.prefix_hits_total is not None
    assert last.prefix_hits_total - first.prefix_hits_total == 256
    assert last.drafts_total is not None
    assert last.accepted_tokens_total is not None
    # Text that repeats itself: more than one token a target step.
    assert last.accepted_tokens_total > last.drafts_total


def agreed_play(endpoint: VllmEndpoint, workload: Workload) -> Replay:
    """A replay in which client and engine agree.

    What is counted must agree in every one; what is timed, where the machine was not busy with other work.
    """
    said: tuple[str, ...] = ()
    for _ in range(6):
        endpoint.reset_caches()
        replay = endpoint.play(workload, LIMITS)
        said = disagreements(replay.records, replay.samples)
        assert not [one for one in said if "counters" in one or "longer" in one]
        if not said:
            return replay
    pytest.fail("; ".join(said))


def test_client_and_engine_tell_the_same_of_a_replay(endpoint: VllmEndpoint, small_model: Path) -> None:
    replay = agreed_play(endpoint, order(small_model, {}).workload)
    first, last = replay.samples[0], replay.samples[-1]
    for record in replay.records:
        queue_s, ttft_s, rest_s = record.server_queue_s, record.server_ttft_s, record.server_generation_s
        assert queue_s is not None
        assert ttft_s is not None
        assert rest_s is not None
        assert 0 < queue_s + ttft_s < record.ttft_s
        assert queue_s + ttft_s + rest_s < record.e2e_s
        assert record.server_itl_mean_s == pytest.approx(rest_s / (record.tokens_out - 1))
    told = (
        sum(record.drafts or 0 for record in replay.records),
        sum(record.draft_tokens or 0 for record in replay.records),
        sum(record.accepted_tokens or 0 for record in replay.records),
    )
    assert told == (
        (last.drafts_total or 0) - (first.drafts_total or 0),
        (last.draft_tokens_total or 0) - (first.draft_tokens_total or 0),
        (last.accepted_tokens_total or 0) - (first.accepted_tokens_total or 0),
    )
    assert told[0] > 0


def test_a_reset_makes_the_same_prompts_new(endpoint: VllmEndpoint, small_model: Path) -> None:
    workload = order(small_model, {}).workload
    kept = endpoint.play(workload, LIMITS).records[0].cached_tokens
    endpoint.reset_caches()
    emptied = endpoint.play(workload, LIMITS).records[0].cached_tokens
    assert (kept, emptied) == (128, 0)


def test_an_api_server_killed_in_mid_replay_fails_the_trial_and_leaves_nothing(
    endpoint: VllmEndpoint, folder: Path, small_model: Path
) -> None:
    """Keep this the last of the tests on the shared engine."""
    record = record_in(folder)
    pids = len(record.ours)
    workload = order(small_model, {}, LONG).workload
    killer = threading.Timer(2.0, os.kill, (record.command_pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(EngineFailure) as caught:
        endpoint.play(workload, LIMITS)
    killer.join()
    assert pids >= 3
    assert caught.value.cause is Cause.DIED_UNDER_LOAD
    assert caught.value.reason == "the engine was ended by SIGKILL, without a word of its own"
    assert any(record.tokens_out for record in caught.value.records)
    assert gone(record, 30)


def test_without_prefix_caching_nothing_is_hit_and_a_stop_leaves_nothing(
    small_model: Path, tmp_path: Path
) -> None:
    asked = order(small_model, {"enable_prefix_caching": False})
    with VllmEngine().serve(asked, tmp_path) as served:
        record = record_in(tmp_path)
        served.reset_caches()
        replay = served.play(asked.workload, LIMITS)
        assert served.launch == "cold"
        assert served.effective["enable_prefix_caching"] is False
        assert served.effective["speculative_config"] is None
    assert record.ours == ()
    assert [one.error for one in replay.records] == [None] * 4
    assert not any(one.cached_tokens for one in replay.records)
    assert not replay.samples[-1].prefix_hits_total
    assert replay.samples[-1].drafts_total is None


def test_a_config_that_this_engine_refuses_fails_with_its_cause(
    small_model: Path, launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PYTESTS_OWN)
    outcome = run_trial(order(small_model, {"quantization": "fp8"}), VllmEngine(launcher), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.UNSUPPORTED
    assert "fp8" in outcome.reason
    assert outcome.ran.command[-2:] == ("--quantization", "fp8")
    assert outcome.reason in outcome.ran.log
    assert outcome.ran.launch == "warm"
    assert not (tmp_path / RECORD_NAME).exists()


PARENT = textwrap.dedent(
    """
    import pickle, sys
    from pathlib import Path
    from cluster.node.run import run_trial
    from cluster.node.vllm_server import VllmEngine
    run_trial(pickle.loads(sys.stdin.buffer.read()), VllmEngine(Path(sys.argv[2])), Path(sys.argv[1]))
    """
)


def test_kill_9_of_the_trials_process_leaves_nothing(
    small_model: Path, launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PYTESTS_OWN)
    trial = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), str(launcher)], stdin=subprocess.PIPE, cwd=PACKAGE_ROOT
    )
    assert trial.stdin is not None
    trial.stdin.write(pickle.dumps(order(small_model, {})))
    trial.stdin.close()
    log = tmp_path / LOG_NAME
    # The worker is the last of the tree to come up.
    assert wait_until(lambda: log.exists() and "(Worker" in log.read_text(), 120)
    record = record_in(tmp_path)
    assert len(record.ours) >= 4  # guard, API server, engine core, worker
    trial.kill()
    trial.wait()
    assert gone(record, 60)
