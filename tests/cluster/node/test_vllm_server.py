"""The engine's life, on a stand-in that starts at once: guard, port and processes are real."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from cluster.node.command import engine_environment
from cluster.node.engine import LOG_NAME, EngineFailure
from cluster.node.guard import read_record
from cluster.node.guarded import RECORD_NAME
from cluster.node.launcher_client import Launcher
from cluster.node.phases import Phases
from cluster.node.processes import process
from cluster.node.run import run_trial
from cluster.node.server_api import free_port
from cluster.node.vllm_server import VllmEndpoint, VllmEngine
from cluster.order import Cause, Limits, Measured, Order
from cluster.phase import Phase, PhaseName
from cluster.traffic.request import Request
from cluster.traffic.sessions import Sessions
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.values import Json

MakeOrder = Callable[..., Order]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer of one token a byte."""
    folder = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def order(tmp_path: Path, tokenizer: str) -> MakeOrder:
    """Makes orders whose engine is the stand-in, with a script."""
    package = tmp_path / "path" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("fake_vllm_server.py"), package / "api_server.py")
    trace = Trace(
        requests=tuple(
            Request(arrival_s=number * 0.01, input_length=length, output_length=4)
            for number, length in enumerate((10, 20, 30, 40))
        )
    )

    def make(
        arguments: dict[str, Json] | None = None,
        *,
        start_stall_s: float = 20.0,
        stuck_s: float = 20.0,
        **script: object,
    ) -> Order:
        return Order(
            study="s",
            number=0,
            model="some/model",
            arguments=arguments or {},
            environment={"PYTHONPATH": str(tmp_path / "path"), "FAKE_VLLM": json.dumps(script)},
            workload=Workload(trace=trace, tokenizer=tokenizer),
            slo=Slo(),
            limits=Limits(start_stall_s=start_stall_s, stuck_s=stuck_s, stop_s=2.0),
        )

    return make


def session(folder: Path) -> tuple[int, ...]:
    """Every process of the engine, its guard too."""
    record = read_record(folder / RECORD_NAME)
    assert record is not None
    return tuple(one.pid for one in record.ours)


def running(pids: tuple[int, ...]) -> list[int]:
    return [pid for pid in pids if (found := process(pid)) is not None and not found.zombie]


def requests_of(endpoint: VllmEndpoint) -> list[dict[str, object]]:
    """The completions that the stand-in was asked for."""
    found = endpoint._api.get("/requests").json  # the one thing a test must ask beside the engine
    assert isinstance(found, list)
    return [dict(one) for one in found if isinstance(one, dict)]


def failure_of(order: Order, folder: Path) -> EngineFailure:
    with pytest.raises(EngineFailure) as caught, VllmEngine().serve(order, folder):
        pass
    return caught.value


def test_it_serves_says_what_it_is_and_leaves_nothing(order: MakeOrder, tmp_path: Path) -> None:
    with VllmEngine().serve(order({"max_num_seqs": 4}, child=True), tmp_path) as endpoint:
        pids = session(tmp_path)
        assert len(pids) == 3  # guard, server, its child
        assert endpoint.version == "0.99.0"
        assert endpoint.effective["max_num_seqs"] == 4
        assert endpoint.command[1:5] == ("-m", "vllm.entrypoints.openai.api_server", "--model", "some/model")
        assert endpoint.command[-2:] == ("--max-num-seqs", "4")
        assert endpoint.hardware
    assert running(pids) == []


def test_it_tells_the_stages_of_its_start_and_how_far_a_replay_is(order: MakeOrder, tmp_path: Path) -> None:
    lines = ["(EngineCore pid=8) INFO one", "(Worker pid=9) Starting to load model m"]
    asked = order(say=lines, say_every_s=0.6)
    told: list[Phase] = []
    outcome = run_trial(asked, VllmEngine(), tmp_path, Phases(told.append))
    assert isinstance(outcome, Measured)
    stages = [phase.stage for phase in told if phase.name is PhaseName.STARTING]
    settings = "reading back its settings"
    assert stages == [None, "importing", "initialising", "loading weights", settings]
    replays = [phase for phase in told if phase.name is PhaseName.REPLAYING]
    assert {phase.requests for phase in replays} == {4}
    # What warmed it up ended in the engine too, and is not of the replay.
    assert [replays[0].ended, replays[1].ended, replays[-1].ended] == [None, 0, 4]


def test_two_starts_never_share_a_name(order: MakeOrder, tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with VllmEngine().serve(order(), tmp_path) as endpoint:
            names.append(endpoint.served_name)
    assert len(set(names)) == 2


def test_an_engine_that_refuses_its_arguments_fails_with_its_own_words(
    order: MakeOrder, tmp_path: Path
) -> None:
    failure = failure_of(
        order(say=["api_server.py: error: argument --dtype: invalid choice: 'x'"], exit=2), tmp_path
    )
    assert failure.cause is Cause.INVALID_ARGUMENT
    assert failure.reason == "argument --dtype: invalid choice: 'x'"
    assert failure.ran is not None
    assert "--served-model-name" in failure.ran.command
    assert failure.ran.hardware


def test_an_engine_that_says_nothing_more_hangs(order: MakeOrder, tmp_path: Path) -> None:
    failure = failure_of(order(say=["loading weights"], hang=True, start_stall_s=1.0), tmp_path)
    assert failure.cause is Cause.HANG_AT_START
    assert failure.reason == (
        "no health, nothing new in its log and next to nothing read for 1 s; the last: loading weights"
    )
    assert not (tmp_path / RECORD_NAME).exists()


def test_a_trial_cancelled_while_its_engine_starts_does_not_wait_for_its_grace(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(say=["loading"], hang=True, stubborn=True, start_stall_s=600.0)
    asked = replace(asked, limits=replace(asked.limits, stop_s=600.0))
    seen: list[tuple[int, ...]] = []

    def interrupt() -> None:
        while not seen:
            if (tmp_path / LOG_NAME).exists() and "loading" in (tmp_path / LOG_NAME).read_text():
                seen.append(session(tmp_path))
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    person = threading.Thread(target=interrupt)
    person.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), VllmEngine().serve(asked, tmp_path):
        pass
    person.join()
    assert time.monotonic() - began < 200  # of the 600 s that it might have had
    assert len(seen[0]) == 2  # guard and server
    assert running(seen[0]) == []


def test_an_engine_that_goes_on_talking_may_take_longer_than_the_limit(
    order: MakeOrder, tmp_path: Path
) -> None:
    began = time.monotonic()
    shards = [f"Loading shards: {done}/8" for done in range(8)]
    with VllmEngine().serve(order(say=shards, say_every_s=0.3, start_stall_s=1.5), tmp_path):
        assert time.monotonic() - began > 2.4


def test_an_engine_that_repeats_itself_for_ever_hangs(order: MakeOrder, tmp_path: Path) -> None:
    line = "INFO 11-30 09:00:{:02} [shm_broadcast.py:681] No available shared memory broadcast block found."
    said = [line.format(second) for second in range(60)]
    failure = failure_of(order(say=said, say_every_s=0.3, start_stall_s=1.2), tmp_path)
    assert failure.cause is Cause.HANG_AT_START
    assert failure.reason.endswith("the last: No available shared memory broadcast block found.")


def test_a_setting_that_is_not_in_effect_fails_the_trial_and_is_told(
    order: MakeOrder, tmp_path: Path
) -> None:
    failure = failure_of(order({"max_num_seqs": 8}, max_num_seqs=4), tmp_path)
    assert failure.cause is Cause.SETTINGS_DIFFER
    assert failure.reason == "asked max_num_seqs=8, in effect 4"
    assert failure.ran is not None
    assert failure.ran.effective["max_num_seqs"] == 4


def test_a_port_that_is_taken_meanwhile_is_changed_for_another(order: MakeOrder, tmp_path: Path) -> None:
    mark = tmp_path / "taken"
    with VllmEngine().serve(order(taken_once=str(mark)), tmp_path):
        assert mark.exists()


def lengths_and_tokens(asked: list[dict[str, object]]) -> list[tuple[int, object]]:
    return sorted((len(list(one["prompt"])), one["max_tokens"]) for one in asked)  # type: ignore[call-overload]


def test_a_warm_up_round_fills_the_batch_with_the_traces_lengths(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(max_num_seqs=6)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        endpoint.warm_up(asked.workload)
        sent = requests_of(endpoint)
    assert len(sent) in range(12, 31, 6)  # two rounds to compare, five at most
    for at in range(0, len(sent), 6):
        # Quartiles of 10, 20, 30, 40, rounded down to a length that occurs: 10, 20, 30, each in turn.
        lengths = lengths_and_tokens(sent[at : at + 6])
        assert lengths == [(10, 16), (10, 16), (20, 16), (20, 16), (30, 16), (30, 16)]
    assert len({json.dumps(one["prompt"]) for one in sent}) == len(sent)


def test_every_slot_has_a_request_even_where_there_are_more_than_a_round_has(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(max_num_seqs=20)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        endpoint.warm_up(asked.workload)
        sent = requests_of(endpoint)
    assert lengths_and_tokens(sent[:20]) == [(4, 4)] * 20
    assert len(lengths_and_tokens(sent[20:])) in range(16, 41, 8)


def test_a_slow_first_round_is_followed_by_more(order: MakeOrder, tmp_path: Path) -> None:
    # 4 requests of 0.8 s, then no delay: the second round cannot be alike.
    asked = order(max_num_seqs=4, delays_s=[0.8] * 4 + [0.0] * 996)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        endpoint.warm_up(asked.workload)
        assert len(requests_of(endpoint)) >= 12


def test_an_engine_that_never_settles_is_said_to_in_every_replay(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(max_num_seqs=4, delays_s=[0.8] * 4 + [0.0] * 4)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        endpoint.warm_up(asked.workload)
        assert len(requests_of(endpoint)) == 20
        for _ in range(2):
            replay = endpoint.play(asked.workload, asked.limits)
            assert any("had not settled after 5 rounds of warm-up" in said for said in replay.warnings)


def test_a_compilation_in_mid_replay_is_told_and_an_earlier_one_is_not(
    order: MakeOrder, tmp_path: Path
) -> None:
    line = "WARNING 11-30 09:00:00 [jit_monitor.py:137] Triton kernel JIT compilation during inference: _f."
    asked = order(mutter=line)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        told = endpoint.play(asked.workload, asked.limits).disturbed
    assert told == "the engine compiled meanwhile: Triton kernel JIT compilation during inference: _f."
    quiet = order(say=[line])
    with VllmEngine().serve(quiet, tmp_path) as endpoint:
        assert endpoint.play(quiet.workload, quiet.limits).disturbed is None


def test_a_reset_is_asked_for_until_the_body_says_success(order: MakeOrder, tmp_path: Path) -> None:
    with VllmEngine().serve(order(resets=[False, False, True, False]), tmp_path) as endpoint:
        endpoint.reset_caches()
        assert endpoint._api.reset_prefix_cache(external=False) is False  # the fourth answer: three were used


def test_a_replay_has_a_record_a_request_and_samples_at_both_edges(order: MakeOrder, tmp_path: Path) -> None:
    asked = order()
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        replay = endpoint.play(asked.workload, asked.limits)
    assert [record.tokens_out for record in replay.records] == [4, 4, 4, 4]
    assert replay.samples[0].at_s < 0 < replay.samples[-1].at_s
    assert replay.samples[0].running == 0


def test_turns_of_a_session_wait_for_each_other_where_that_is_asked_for(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order()
    requests = tuple(replace(request, session_id="s") for request in asked.workload.trace.requests)
    workload = replace(
        asked.workload, trace=replace(asked.workload.trace, requests=requests), sessions=Sessions.CAUSAL
    )
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        replay = endpoint.play(workload, asked.limits)
        faster = endpoint.play(replace(workload, speed=4.0), asked.limits)
    for records in (replay.records, faster.records):
        # Recorded 10 ms apart, less than any answer is taken to have lasted: nobody thought.
        assert [record.due_s for record in records] == [0.0, *(r.finished_s for r in records[:-1])]
    assert any("Think times of 3 of 3 turns are estimated" in said for said in replay.warnings)


def test_an_engine_that_dies_under_load_fails_with_its_last_error(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(completions="die", child=True)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        pids = session(tmp_path)
        with pytest.raises(EngineFailure) as caught:
            endpoint.play(asked.workload, asked.limits)
    assert caught.value.cause is Cause.DIED_UNDER_LOAD
    assert caught.value.reason == "RuntimeError: the core broke"
    assert len(caught.value.records) == 4
    assert running(pids) == []


def test_an_engine_whose_core_died_is_dead_though_its_server_still_answers(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(completions="lose core", say=["RuntimeError: worker lost", "x.EngineDeadError: EngineCore"])
    with VllmEngine().serve(asked, tmp_path) as endpoint, pytest.raises(EngineFailure) as caught:
        endpoint.play(asked.workload, asked.limits)
    assert caught.value.cause is Cause.DIED_UNDER_LOAD
    assert caught.value.reason == "RuntimeError: worker lost"
    assert [record.error for record in caught.value.records] == [
        "HTTP 500: EngineCore encountered an issue."
    ] * 4


def test_an_engine_whose_core_died_is_dead_though_its_server_says_that_it_is_healthy(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(completions="lose core unnoticed", say=["RuntimeError: worker lost"], child=True)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        pids = session(tmp_path)
        with pytest.raises(EngineFailure) as caught:
            endpoint.play(asked.workload, asked.limits)
        assert running(pids) == []
    assert caught.value.cause is Cause.DIED_UNDER_LOAD
    assert caught.value.reason == "RuntimeError: worker lost"


def test_requests_that_are_refused_by_a_healthy_engine_are_records_not_a_death(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(completions="refuse")
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        replay = endpoint.play(asked.workload, asked.limits)
    assert {record.error for record in replay.records} == {"HTTP 400: maximum context length is 8 tokens"}


def test_an_engine_killed_from_outside_fails_that_trial(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(completions="hang")
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        record = read_record(tmp_path / RECORD_NAME)
        assert record is not None
        os.kill(record.command_pid, signal.SIGKILL)
        with pytest.raises(EngineFailure) as caught:
            endpoint.play(asked.workload, asked.limits)
    assert caught.value.cause is Cause.DIED_UNDER_LOAD
    assert caught.value.reason == "the engine was ended by SIGKILL, without a word of its own"


def test_an_engine_that_gives_no_token_is_stuck(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(completions="hang", stuck_s=0.5)
    with pytest.raises(EngineFailure) as caught, VllmEngine().serve(asked, tmp_path) as endpoint:
        endpoint.play(asked.workload, asked.limits)
    assert caught.value.cause is Cause.STUCK
    assert "no token" in caught.value.reason


def test_an_engine_that_stops_in_the_middle_of_its_answers_is_stuck_and_swept_up(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(completions="stall", stuck_s=0.5, child=True)
    with VllmEngine().serve(asked, tmp_path) as endpoint:
        pids = session(tmp_path)
        with pytest.raises(EngineFailure) as caught:
            endpoint.play(asked.workload, asked.limits)
    assert caught.value.cause is Cause.STUCK
    assert [record.tokens_out for record in caught.value.records] == [1, 1, 1, 1]
    assert len(pids) == 3
    assert running(pids) == []


class Other(BaseHTTPRequestHandler):
    """Somebody else's server, which answers anything as if it were vLLM."""

    asked = 0

    def log_message(self, format: str, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        Other.asked += 1
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET


def test_a_server_of_somebody_elses_on_our_port_is_never_asked_anything(
    order: MakeOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is slow to start; the other one has the port before it, and would answer for it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        ports = iter([other.server_address[1], free_port()])
        monkeypatch.setattr("cluster.node.vllm_server.free_port", lambda: next(ports))
        asked = order(say=["starting"] * 3, say_every_s=0.2)
        with VllmEngine().serve(asked, tmp_path) as endpoint:
            replay = endpoint.play(asked.workload, asked.limits)
            assert endpoint.base_url != f"http://127.0.0.1:{other.server_address[1]}"
        other.shutdown()
    assert [record.error for record in replay.records] == [None] * 4
    assert Other.asked == 0


def test_the_engines_secrets_are_blanked_in_its_log(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(say=["args: hf_token=hf_abcdefghijkl", "ValueError: bad token hf_abcdefghijkl"], exit=1)
    environment = {**asked.environment, "HF_TOKEN": "hf_abcdefghijkl"}
    failure = failure_of(replace(asked, environment=environment), tmp_path)
    assert failure.reason == "ValueError: bad token ***"
    assert (tmp_path / LOG_NAME).exists()


def test_a_warm_start_serves_and_says_that_it_was_one(order: MakeOrder, tmp_path: Path) -> None:
    asked = order({"max_num_seqs": 4}, child=True)
    with Launcher(engine_environment(asked.environment, os.environ)) as launcher:
        assert launcher.problem is None
        with VllmEngine(launcher.path).serve(asked, tmp_path) as endpoint:
            pids = session(tmp_path)
            assert len(pids) == 3  # guard, server, its child
            assert endpoint.launch == endpoint.ran.launch == "warm"
            assert endpoint.stages_s.keys() == {"ready"}
            assert endpoint.command[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
        assert running(pids) == []


def test_a_start_that_only_fails_warm_is_made_cold_and_the_log_says_so(
    order: MakeOrder, tmp_path: Path
) -> None:
    asked = order(say=["beginning"], exit_warm=3)
    with (
        Launcher(engine_environment(asked.environment, os.environ)) as launcher,
        VllmEngine(launcher.path).serve(asked, tmp_path) as endpoint,
    ):
        assert endpoint.launch.startswith("cold: a warm one failed: died at start: ")
        first, second, *_ = endpoint.log_text().splitlines()
        assert first == f"[tuner] a cold start: {endpoint.launch.removeprefix('cold: ')}"
        assert second == "beginning"


def test_a_warm_start_that_fails_for_its_config_is_not_made_again(order: MakeOrder, tmp_path: Path) -> None:
    asked = order(say=["api_server.py: error: argument --dtype: invalid choice: 'x'"], exit=2)
    with (
        Launcher(engine_environment(asked.environment, os.environ)) as launcher,
        pytest.raises(EngineFailure) as caught,
        VllmEngine(launcher.path).serve(asked, tmp_path),
    ):
        pass
    assert caught.value.cause is Cause.INVALID_ARGUMENT
    assert caught.value.ran is not None
    assert caught.value.ran.launch == "warm"
