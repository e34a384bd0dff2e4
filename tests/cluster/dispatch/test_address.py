"""What is found out about an address before Ray is asked, which would try for minutes."""

import socket
import time

import pytest

from cluster.dispatch.address import check_listens, endpoint
from cluster.dispatch.dispatch import DispatchError


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("[::1]:6379", ("::1", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("auto", None),
        ("anyscale://cluster", None),
    ],
)
def test_an_address_names_a_host_and_a_port_or_leaves_both_to_ray(
    address: str, place: tuple[str, int] | None
) -> None:
    assert endpoint(address) == place


@pytest.mark.parametrize(
    "address", ["head", "ray://head", "head:ray", "head:", ":6379", "[::1", "head:99999"]
)
def test_an_address_without_a_host_or_a_port_is_refused_with_what_would_do(address: str) -> None:
    with pytest.raises(DispatchError, match="give HOST:PORT") as refused:
        endpoint(address)
    assert address in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_listens_is_told_at_once_and_in_one_line(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = time.perf_counter()
    with pytest.raises(DispatchError) as refused:
        check_listens(f"{scheme}127.0.0.1:{port}")
    assert time.perf_counter() - started < 5
    assert str(refused.value).startswith(f"no Ray at {scheme}127.0.0.1:{port}: connection refused; ")
    assert "\n" not in str(refused.value)


def test_a_port_that_listens_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_listens(f"127.0.0.1:{server.getsockname()[1]}")
