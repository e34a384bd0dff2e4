"""Where a cluster is said to be, and whether anything listens there: Ray itself tries for minutes."""

import socket
from urllib.parse import urlsplit

from cluster.dispatch.dispatch import DispatchError

CLIENT = "ray://"
"""How the address of a Ray Client server begins; one without a scheme is that of a cluster's GCS."""

_CONNECT_S = 5.0


def endpoint(address: str) -> tuple[str, int] | None:
    """Host and port that an address names; None where Ray finds them by itself ("auto", another scheme).

    Raises:
        DispatchError: it names no host or no port.
    """
    if address == "auto" or ("://" in address and not address.startswith(CLIENT)):
        return None
    try:
        parts = urlsplit(f"//{address.removeprefix(CLIENT)}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, a bracket that is not closed
        host, port = None, None
    if not host or not port:
        raise DispatchError(f"{address!r} is no address of a Ray cluster: {_FORMS}")
    return host, port


def check_listens(address: str) -> None:
    """Connect to what the address names and hang up. Raises DispatchError where that fails."""
    place = endpoint(address)
    if place is None:
        return
    try:
        socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError as error:
        raise DispatchError(f"no Ray at {address}: {_reason(error)}; {_advice(address)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {_CONNECT_S:g} s"
    return (error.strerror or str(error)).lower()


def _advice(address: str) -> str:
    if address.startswith(CLIENT):
        return "give the head and the port of its Ray Client server (10001 if nothing else was said)"
    return "give the head and the port that it was started with (`ray start --head --port=6379`)"


_FORMS = "give HOST:PORT of its head, ray://HOST:PORT, or auto for the one on this machine"
