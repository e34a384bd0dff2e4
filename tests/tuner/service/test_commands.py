"""The commands that start a service and talk to one, as a user meets them."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from cluster.phase import Phase, PhaseName
from tests.tuner.service.conftest import ANA, BEN, SPACE, listening
from tests.tuner.service.fakes import FakeProcesses
from tuner.cli import main
from tuner.events import UnderWay
from tuner.service import event_log
from tuner.service.app import Service
from tuner.service.jobs import State
from tuner.service.running import Running
from tuner.service.tokens import Tokens, digest

Run = Callable[..., Result]


@pytest.fixture
def run(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Calls `tuner` as ana, in a folder with tiny.yaml, where a service listens that TUNER_SERVICE names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPACE)
    monkeypatch.setenv("TUNER_TOKEN", ANA)
    tokens = Tokens((("ana", digest(ANA)), ("ben", digest(BEN))))
    with listening(replace(service, tokens=tokens, hosts=None)) as live:
        monkeypatch.setenv("TUNER_SERVICE", live.url)
        yield lambda *words: CliRunner().invoke(main, list(words))


def _assert_mistake(result: Result, *told: str) -> None:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)  # no traceback
    assert len(result.stderr.strip().splitlines()) == 1
    for words in told:
        assert words in result.stderr


def _json(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    told: dict[str, object] = json.loads(result.stdout)
    return told


def test_a_study_is_submitted_followed_and_changed(
    run: Run, service: Service, processes: FakeProcesses
) -> None:
    assert "no study" in run("status").output
    submitted = run("submit", "tiny.yaml", "--engine", "simulated", "--trials", "4", "--study", "s1")
    assert submitted.exit_code == 0, submitted.output
    assert "tuner logs s1 -f" in submitted.output
    told = _json(run("status", "s1", "--json"))
    assert (told["user"], told["simulated"]) == ("ana", True)
    assert "s1" in run("status").output
    id = str(told["id"])
    event_log.append(service.files.job(id).events, "trial_started", {"trial": 0, "text": "trial 0 started"})
    assert run("logs", "s1").output.splitlines() == ["queued by ana", "trial 0 started"]
    lines = [json.loads(line) for line in run("logs", "s1", "--json").output.splitlines()]
    assert [line["event"] for line in lines] == ["queued", "trial_started"]
    assert lines[1]["trial"] == 0
    running = Running(service.files.job(id).running)
    replay = Phase(name=PhaseName.REPLAYING, replay=2, speed=1.25)
    running.take(UnderWay(number=3, node="gpu-a", phase=replay))
    running.take(UnderWay(number=4, node=None, phase=Phase(name=PhaseName.STARTING, stage="importing")))
    _, third, fourth = run("status", "s1").output.splitlines()
    assert third.startswith("  trial 3 on gpu-a: replay 2 at speed 1.25, since 20")
    assert fourth.startswith("  trial 4: starting the engine: importing, since 20")
    assert run("status").output.splitlines()[1:] == [third, fourth]
    processes.end(id, State.FAILED, "no room")
    assert run("logs", "s1", "-f").output.splitlines()[-1] == "no room"  # it ends with the study
    assert "failed: no room" in run("status", "s1").output
    assert "trial" not in run("status", "s1").output  # though the file is still there
    assert "queued" in run("resume", "s1").output
    assert _json(run("cancel", "s1", "--json"))["state"] in ("cancelled", "stopping")


def test_a_trace_goes_with_its_study(run: Run, service: Service, tmp_path: Path) -> None:
    made = ("--requests", "40", "--rate", "20", "--input-mean", "200", "--output-mean", "20")
    assert run("trace", "make", "--out", "chat.jsonl.gz", *made).exit_code == 0
    told = _json(run("submit", "tiny.yaml", "--engine", "simulated", "--trace", "chat.jsonl.gz", "--json"))
    request = told["request"]
    assert isinstance(request, dict)
    assert service.files.trace(str(request["trace"])).is_file()
    (tmp_path / "bad.jsonl").write_text("nothing\n")
    _assert_mistake(run("submit", "tiny.yaml", "--trace", "bad.jsonl"), "line 1")
    _assert_mistake(run("submit", "tiny.yaml", "--trace", "none.jsonl"), "no such file")


def test_a_shipped_space_is_named_and_not_sent(run: Run) -> None:
    told = _json(run("submit", "spaces/8b.yaml", "--engine", "simulated", "--json"))
    request = told["request"]
    assert isinstance(request, dict)
    assert (request["shipped"], request["space"]) == ("spaces/8b.yaml", None)


def test_what_the_service_refuses_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _assert_mistake(run("submit", "none.yaml"), "no shipped space")
    (tmp_path / "evil.yaml").write_text(SPACE.replace("max_model_len: 4096", "worker_cls: a.B"))
    _assert_mistake(run("submit", "evil.yaml"), "worker_cls")
    _assert_mistake(run("logs", "none"), "no study none")
    _assert_mistake(run("cancel", "none"), "no study none")
    assert run("submit", "tiny.yaml", "--engine", "simulated", "--study", "s1").exit_code == 0
    monkeypatch.setenv("TUNER_TOKEN", BEN)
    _assert_mistake(run("cancel", "s1"), "ana")
    monkeypatch.delenv("TUNER_TOKEN")
    _assert_mistake(run("status"), "token")
    (tmp_path / "token").write_text(f"{ANA}\n")
    assert run("status", "--token-file", "token").exit_code == 0
    (tmp_path / "token").write_text("two\nlines\n")
    _assert_mistake(run("status", "--token-file", "token"), "no token")
    _assert_mistake(run("status", "--token-file", "none"), "no token")


def test_where_no_service_is_a_line_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_SERVICE", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for words in (("status",), ("logs", "s1", "-f"), ("cancel", "s1")):
            _assert_mistake(CliRunner().invoke(main, [*words, "--service", url]), "tuner serve")
    _assert_mistake(CliRunner().invoke(main, ["status", "--service", "x"]), "http://host:port")


def test_a_token_is_made_with_its_line() -> None:
    told = json.loads(CliRunner().invoke(main, ["token", "ana", "--json"]).output)
    assert digest(told["token"]) == told["sha256"]
    first, second = CliRunner().invoke(main, ["token", "ana"]).output.splitlines()
    line = yaml.safe_load(second.partition("file: ")[2])
    assert line == {"ana": digest(first.rpartition(" ")[2])}
    _assert_mistake(CliRunner().invoke(main, ["token", "../x"]), "name")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "0.0.0.0"), "no token"),
        (("--host", "::"), "no token"),
        (("--host", "192.0.2.1"), "no token"),
        (("--host", "localhost.example"), "no token"),
        (("--tokens", "none.yaml"), "none.yaml"),
        (("--allow-list", "none.yaml"), "none.yaml"),
        (("--gpus", "0,0"), "--gpus"),
        (("--gpus", "0", "--ray", "x"), "--ray"),
    ],
)
def test_a_service_that_may_not_or_cannot_start_says_so_in_a_line(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNER_TOKENS", raising=False)
    _assert_mistake(CliRunner().invoke(main, ["serve", "--runs", str(tmp_path / "runs"), *words]), told)


def test_a_port_that_is_taken_is_told_in_a_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["serve", "--runs", str(tmp_path / "runs"), "--port", port]
        _assert_mistake(CliRunner().invoke(main, words), "--port")
