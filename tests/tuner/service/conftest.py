"""A service over an empty runs folder whose jobs run without processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.tuner.service.fakes import FakeProcesses
from tuner.service.allow_list import AllowList
from tuner.service.app import Service, create_app
from tuner.service.job_files import ServiceFiles
from tuner.service.places import places_of
from tuner.service.serve import Server, bound
from tuner.service.tokens import Tokens, digest

SPACE = """
name: tiny
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096}
parameters:
  kv_cache_dtype: {choices: [auto, fp8]}
  max_num_seqs: {int: [16, 64], log: true}
traffic:
  make: {requests: 40, rate: 20, input_mean: 200, input_max: 1000, output_mean: 20, output_max: 100, seed: 3}
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
measure: fixed
objectives: [goodput, tpot_p95]
"""

ANA = "token-of-ana-0123456789"
BEN = "token-of-ben-0123456789"


def service_of(runs: Path, processes: FakeProcesses | None = None) -> Service:
    return Service(
        files=ServiceFiles(runs),
        places=places_of((), cluster=False, simulated=2),
        processes=processes or FakeProcesses(),
        tokens=Tokens(()),
        allowed=AllowList(),
    )


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def service(tmp_path: Path, processes: FakeProcesses) -> Service:
    """Without tokens, as on loopback."""
    return service_of(tmp_path / "runs", processes)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), base_url="http://127.0.0.1:8470") as it:
        yield it


@pytest.fixture
def team(service: Service) -> Iterator[TestClient]:
    """The same with a token each for ana and ben."""
    tokens = Tokens((("ana", digest(ANA)), ("ben", digest(BEN))))
    app = create_app(replace(service, tokens=tokens, hosts=None))
    with TestClient(app, base_url="http://tuner.example") as it:
        yield it


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "runs"


@pytest.fixture(scope="module")
def shared(shared_runs: Path) -> Iterator[TestClient]:
    """One for all tests of a module that ask for nothing that is done."""
    with TestClient(create_app(service_of(shared_runs)), base_url="http://127.0.0.1:8470") as it:
        yield it


@pytest.fixture(scope="module")
def shared_team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    tokens = Tokens((("ana", digest(ANA)),))
    app = create_app(replace(service_of(tmp_path_factory.mktemp("team")), tokens=tokens, hosts=None))
    with TestClient(app, base_url="http://tuner.example") as it:
        yield it


@dataclass(frozen=True, slots=True)
class Live:
    """A service that listens on loopback."""

    url: str


@contextmanager
def listening(service: Service) -> Iterator[Live]:
    """Serve in a thread of this process until the block ends."""
    listener = bound("127.0.0.1", 0)
    started = threading.Event()
    server = Server(create_app(service), started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert started.wait(60)
        yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def live(service: Service) -> Iterator[Live]:
    with listening(service) as it:
        yield it
