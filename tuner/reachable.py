"""Whether anything listens at a server's address, found out at once: a client may wait long for nobody."""

import socket
import urllib.request
from urllib.parse import urlsplit

CONNECT_S = 3.0

_PORTS = {"http": 80, "https": 443}


def check_reachable(uri: str, *, timeout_s: float = CONNECT_S) -> None:
    """Connect to the server that an HTTP address names, and hang up. Raises OSError where that fails.

    What is no HTTP address, or is reached through a proxy, is not tried.
    """
    parts = urlsplit(uri)
    if parts.scheme not in _PORTS or not parts.hostname:
        return
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname):
        return
    socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), timeout_s).close()
