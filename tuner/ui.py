"""MLflow's own pages on the studies, as a process that ends with this one."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tuner.interrupts import stops_in_order
from tuner.mistakes import Mistake
from tuner.redaction import without_passwords

STORE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""Where `mlflow ui` reads its store from (mlflow/cli, `--backend-store-uri`). Unlike its arguments, which
everybody on the machine can list, its environment is its owner's alone: the URI may hold a password."""

_SERVERS = ("http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""mlflow/store/db/db_types.py; a driver may follow (`mysql+pymysql`)."""


def serve_ui(
    tracking_uri: str,
    *,
    host: str,
    port: int,
    say: Callable[[str], None],
    pages: Callable[[str], Mapping[str, str]] = lambda uri: {},
) -> None:
    """Serve MLflow on a database until interrupted; for a server that is up already, say where it is.

    Args:
        pages: by the URI of a store, the pages to look at, each with what comes behind the server's address.

    Raises:
        Mistake: the URI is no server's and no database's, the database or the port can't be had, or
            MLflow does not start.
    """
    shown = without_passwords(tracking_uri)
    scheme, separator, _ = tracking_uri.partition("://")
    if separator and scheme in _SERVERS:
        say(f"MLflow is served at {shown}")
        _say_pages(pages(tracking_uri), shown, say)
        return
    if not separator or scheme.partition("+")[0] not in _DATABASES:
        allowed = ", ".join(f"{name}://" for name in (*_DATABASES, *_SERVERS))
        raise Mistake(f"--tracking-uri {shown}: no store that can be opened; it begins with one of {allowed}")
    path = tracking_uri.removeprefix("sqlite:///")
    if path != tracking_uri and not Path(path).is_file():
        raise Mistake(f"no MLflow database at {path}; tuner search --space … makes it")
    if _taken(host, port):
        raise Mistake(f"port {port} on {host} is taken; choose another with --port")
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    say(f"MLflow on {shown}: {address} (Ctrl-C ends it)")
    _say_pages(pages(tracking_uri), address, say)
    # One worker: each takes seconds to start and memory, and one serves a team's looking.
    command = [sys.executable, "-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1"]
    # A stop from a service manager ends MLflow with it, as Ctrl-C does.
    with (
        stops_in_order(),
        subprocess.Popen(command, env={**os.environ, STORE_VARIABLE: tracking_uri}) as server,
    ):
        try:
            status = server.wait()
        except KeyboardInterrupt:
            server.terminate()
            return
    if status:
        raise Mistake(f"mlflow ui ended with status {status}; what it said is above")


def _say_pages(pages: Mapping[str, str], address: str, say: Callable[[str], None]) -> None:
    for what, place in pages.items():
        say(f"{what}: {address.rstrip('/')}/{place}")


def _taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
