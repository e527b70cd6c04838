"""Which addresses and names are this machine's own. Nothing here resolves a name.

A server on loopback is reachable by pages of other sites, too: their name may resolve to 127.0.0.1 (DNS rebinding). The
Host header shows this: it contains the name by which a browser found the server.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback_address(host: str) -> bool:
    """Whether a server that listens on this address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback_host(header: str) -> bool:
    """Whether a Host header names this machine: localhost, a name below it, or a loopback address."""
    name = host_name(header)
    return name.endswith(".localhost") or is_loopback_address(name)


def host_name(header: str) -> str:
    """The name in a Host header, in lower case and without the port. Empty if the header is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
