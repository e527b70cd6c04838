"""Finds free ports on the loopback interface.

Free ports are chosen below the range that the kernel uses for outgoing connections. While a broker is down, the kernel
could assign a port in that range to a connection. A client that tries to reconnect to the broker may even be assigned
the broker's port and connect to itself; then the broker cannot restart.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

from .errors import LocalBrokerError
from .settings import HOST

_LOWEST = 20_000
_BELOW = 32_768  # the range for outgoing connections starts here on Linux, at 49,152 on macOS
_source = random.SystemRandom()


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Kafka does: then connections of an earlier broker in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def require_free(ports: Iterable[int]) -> None:
    for port in ports:
        if not is_free(port):
            raise LocalBrokerError(
                f"port {port} on {HOST} is in use: stop the process that listens there, or choose another port. "
                "`headrace up --port 0` and LocalBroker() choose a free one"
            )


def free_ports(count: int, avoid: frozenset[int] = frozenset()) -> list[int]:
    """Distinct ports on which no process listens. If another process takes one first, `LocalBroker` retries
    with other ports."""
    found: list[int] = []
    for _ in range(count * 200):
        if len(found) == count:
            break
        port = _source.randrange(_LOWEST, _BELOW)
        if port not in avoid and port not in found and is_free(port):
            found.append(port)
    if len(found) < count:
        raise LocalBrokerError(f"no {count} free ports between {_LOWEST} and {_BELOW} on {HOST}")
    return found
