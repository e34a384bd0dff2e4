"""What answers at an address, where it is no Ray that we can use; test_on_cluster.py has one that is."""

import os
import socket
from pathlib import Path

import pytest

from cluster.dispatch.dispatch import DispatchError
from cluster.dispatch.probe import auth_mode, has_token


@pytest.mark.slow
def test_what_listens_and_is_no_ray_is_told_in_one_line_and_nothing_of_rays_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for limit in ("RAY_gcs_rpc_server_connect_timeout_s", "RAY_py_gcs_connect_timeout_s"):
        monkeypatch.setenv(limit, "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(DispatchError) as refused:
            auth_mode(address)
    assert str(refused.value).startswith(f"no Ray at {address}: ")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_a_mode_that_is_asked_for_and_needs_a_token_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(DispatchError, match="RAY_AUTH_TOKEN"):
        auth_mode("127.0.0.1:9", "token")


def test_a_token_is_found_where_ray_looks_for_one_and_only_there(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert not has_token(home)
    assert not has_token({})
    assert has_token(home | {"RAY_AUTH_TOKEN": "secret"})
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert has_token(home)
    # A file that is named and not there is not made up for by the one at home.
    assert not has_token(home | {"RAY_AUTH_TOKEN_PATH": os.path.join(tmp_path, "none")})
