"""MLflow's own pages on the studies, as a process that ends with this one."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
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
    page: Callable[[str], tuple[str, str] | None] = lambda uri: None,
) -> None:
    """Serve MLflow on a database until interrupted; for a server that is up already, say where it is.

    Args:
        page: by the URI of a store, the study to look at and what comes behind the server's address for its
            page; None where there is none.

    Raises:
        Mistake: the URI is no server's and no database's, the database or the port can't be had, or
            MLflow does not start.
    """
    shown = without_passwords(tracking_uri)
    scheme, separator, _ = tracking_uri.partition("://")
    if separator and scheme in _SERVERS:
        say(f"MLflow is served at {shown}")
        _say_page(page(tracking_uri), shown, say)
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
    _say_page(page(tracking_uri), address, say)
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


def _say_page(page: tuple[str, str] | None, address: str, say: Callable[[str], None]) -> None:
    if page is not None:
        study, place = page
        say(f"study {study}: {address.rstrip('/')}/{place}")


def _taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
