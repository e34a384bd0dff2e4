"""MLflow's own pages on the studies, as a process that ends with this one."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tuner.mistakes import Mistake


def serve_ui(tracking_uri: str, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve MLflow on a database until interrupted; for a server that is up already, say where it is.

    Raises:
        Mistake: the port is taken, or MLflow does not start.
    """
    if tracking_uri.startswith(("http://", "https://")):
        say(f"MLflow is served at {tracking_uri}")
        return
    path = tracking_uri.removeprefix("sqlite:///")
    if path != tracking_uri and not Path(path).is_file():
        raise Mistake(f"no MLflow database at {path}; tuner search --space … makes it")
    if _taken(host, port):
        raise Mistake(f"port {port} on {host} is taken; choose another with --port")
    say(f"MLflow on {tracking_uri}: http://{host}:{port} (Ctrl-C ends it)")
    command = [*(sys.executable, "-m", "mlflow", "ui"), *("--backend-store-uri", tracking_uri)]
    with subprocess.Popen([*command, "--host", host, "--port", str(port)]) as server:
        try:
            status = server.wait()
        except KeyboardInterrupt:
            server.terminate()
            return
    if status:
        raise Mistake(f"mlflow ui ended with status {status}; what it said is above")


def _taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
