"""A server that was there before: played with its key, left as it was."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from cluster.node import loads, replay
from cluster.node.run import run_trial
from cluster.node.running_server import NoServer, RunningServer
from cluster.order import Cause, Failed, Measured, Order
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from tests.cluster.node.fake_vllm_server import Handler

KEY = "sesame-7"


class Guarded(Handler):
    """Asks for a key, and keeps what was asked of it."""

    name = "served"
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.guarded("GET", super().do_GET)

    def do_POST(self) -> None:
        self.guarded("POST", super().do_POST)

    def guarded(self, method: str, then: object) -> None:
        self.asked.append((method, self.path))
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer(401, {"error": {"message": "no key"}})
            return
        assert callable(then)
        then()


@pytest.fixture(autouse=True)
def punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes the client late and the first replay slow; other tests are of what comes of it."""
    monkeypatch.setattr(replay, "void", lambda *records, **watched: None)
    monkeypatch.setattr(loads, "drift", lambda records: None)


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Its URL, and what it was asked."""
    asked: list[tuple[str, str]] = []
    handler = type("Here", (Guarded,), {"asked": asked, "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}", asked
        finally:
            serving.shutdown()
            thread.join()


@pytest.fixture
def order(tmp_path: Path) -> Order:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    a_byte = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    a_byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    a_byte.save(str(tmp_path / "tokenizer.json"))
    figures = {"requests": 5, "rate": 50, "input_mean": 20, "output_mean": 3, "block_tokens": 8}
    return Order(
        study="s",
        number=0,
        model="any/model",
        arguments={},
        environment={},
        workload=Workload(trace=make_trace(recipe_from(figures)), seed=5, tokenizer=str(tmp_path)),
        slo=Slo(ttft_s=30.0),
    )


def test_it_is_played_with_its_key_and_nothing_but_requests_is_asked(
    server: tuple[str, list[tuple[str, str]]], order: Order, tmp_path: Path
) -> None:
    url, asked = server
    outcome = run_trial(order, RunningServer(url=url, key=KEY), tmp_path)
    assert isinstance(outcome, Measured)
    assert len(outcome.records) == 5
    assert all(record.ok for record in outcome.records)
    assert outcome.samples == ()
    assert outcome.ran.version == "0.99.0"
    # No reset, no counters, no settings, no stop: it is not ours.
    assert {path for method, path in asked if method == "POST"} == {"/v1/completions"}
    assert {path for method, path in asked if method == "GET"} == {"/v1/models", "/version"}
    assert sum(method == "POST" for method, _ in asked) == 5 + 2


def test_the_key_is_in_nothing_that_is_kept(
    server: tuple[str, list[tuple[str, str]]], order: Order, tmp_path: Path
) -> None:
    url, _ = server
    running = RunningServer(url=url, key=KEY)
    outcome = run_trial(order, running, tmp_path)
    assert KEY not in repr(running)
    assert KEY not in repr(outcome)
    assert all(KEY not in path.read_text() for path in tmp_path.glob("*.log"))


def test_without_the_key_it_says_what_is_missing(server: tuple[str, list[tuple[str, str]]]) -> None:
    with pytest.raises(NoServer, match="HTTP 401, no list of models; it asks for a key"):
        RunningServer(url=server[0]).check()


def test_a_model_that_it_does_not_serve_is_named_with_those_it_does(
    server: tuple[str, list[tuple[str, str]]],
) -> None:
    assert RunningServer(url=server[0], key=KEY).check() == "served"
    with pytest.raises(NoServer, match="does not serve 'other'; it serves served"):
        RunningServer(url=server[0], key=KEY, model="other").check()


def test_a_server_that_is_away_says_nothing_about_the_config(order: Order, tmp_path: Path) -> None:
    outcome = run_trial(order, RunningServer(url="http://127.0.0.1:9"), tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.cause is Cause.LOST_NODE
    assert not outcome.cause.blames_config


def test_a_path_without_an_api_does_not_pass_for_one(server: tuple[str, list[tuple[str, str]]]) -> None:
    with pytest.raises(
        NoServer, match=r"^http://127\.0\.0\.1:\d+/nowhere/v1/models answered HTTP 404, no list"
    ):
        RunningServer(url=f"{server[0]}/nowhere", key=KEY).check()
