import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tuner.reachable import check_reachable


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        yield listening


def address(listener: socket.socket) -> str:
    return f"http://me:secret@127.0.0.1:{listener.getsockname()[1]}/path"


def test_who_listens_is_reachable(listener: socket.socket) -> None:
    check_reachable(address(listener))


def test_nobody_is_told_at_once(listener: socket.socket) -> None:
    where = address(listener)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        check_reachable(where)


def test_silence_is_not_waited_for(listener: socket.socket) -> None:
    """As of a machine that is off: a full queue answers no connection either (listen(2))."""
    with ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        with pytest.raises(TimeoutError):
            check_reachable(address(listener), timeout_s=0.2)


@pytest.mark.parametrize("uri", ["sqlite:///runs/mlflow.db", "databricks", "http://", "postgresql://h/db"])
def test_what_is_no_http_address_is_not_tried(uri: str) -> None:
    check_reachable(uri)


def test_what_is_behind_a_proxy_is_left_to_the_proxy(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = address(listener)
    listener.close()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    check_reachable(where)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        check_reachable(where)
