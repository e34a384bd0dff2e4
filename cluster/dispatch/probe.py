"""What answers at a cluster's address, found out by Ray's own command in a process of its own.

Ray in the driver would print its retries, could not be given up on, and has to know before it connects
whether to show a token: without one it is refused where one is asked for; with one, nodes that know of none
can't fetch from the driver what a trial needs ("OwnerDiedError").
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.dispatch.dispatch import DispatchError

AUTH_MODE = "RAY_AUTH_MODE"
"""Ray's switch, "token" or "disabled"."""

TOKEN_ADVICE = (
    "put the cluster's token in RAY_AUTH_TOKEN or ~/.ray/auth_token (its head's `ray get-auth-token`)"
)

_ANSWER_S = 90.0
_LIMITS = {"RAY_gcs_rpc_server_connect_timeout_s": "5", "RAY_py_gcs_connect_timeout_s": "5"}
"""Ray's own on one try; it makes three in a row."""


def has_token(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this user has a token, wherever Ray looks for one."""
    if environment.get("RAY_AUTH_TOKEN"):
        return True
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    home = environment.get("HOME")
    return Path(named).is_file() if named else home is not None and Path(home, ".ray", "auth_token").is_file()


def auth_mode(address: str, asked: str | None = None) -> str:
    """The mode that the cluster at this GCS address ("auto" too) works in: "token" or "disabled".

    Args:
        asked: the mode that the user insists on; the other is not tried then.

    Raises:
        DispatchError: no Ray answers, it is another version, or it asks for a token that we don't have.
    """
    if asked != "token":
        fault = _ask(address, "disabled")
        if fault is None:
            return "disabled"
        if "AuthenticationError" not in fault or asked == "disabled":
            raise DispatchError(f"no Ray at {address}: {fault}")
    if not has_token():  # Ray itself would abort the process
        raise DispatchError(f"the Ray at {address} asks for a token, and there is none here; {TOKEN_ADVICE}")
    fault = _ask(address, "token")
    if fault is not None and "AuthenticationError" not in fault:
        raise DispatchError(f"no Ray at {address}: {fault}")
    if fault is not None:
        raise DispatchError(f"the Ray at {address} refuses the token that is here; {TOKEN_ADVICE}")
    return "token"


def _ask(address: str, mode: str) -> str | None:
    """None where a Ray of our version answers, else its last words."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={address}"]
    environment = _LIMITS | os.environ | {AUTH_MODE: mode}
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_ANSWER_S:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"`ray status` ended with {done.returncode}"])[-1]
