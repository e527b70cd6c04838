"""Ports on loopback.

Free ports are taken from below the range that the kernel gives to outgoing connections. A port inside it
could be given away while its broker is down: a client that keeps trying to reconnect to it may even be given
that very port as its own and connect to itself, after which the broker cannot start again.
"""

from __future__ import annotations

import random
import socket

from .errors import LocalBrokerError
from .settings import HOST

_LOWEST = 20_000
_BELOW = 32_768  # Linux starts to give ports to outgoing connections here, macOS at 49,152
_source = random.SystemRandom()


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Kafka does: connections of an earlier broker that linger in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_ports(count: int, avoid: frozenset[int] = frozenset()) -> list[int]:
    """Different ports that nobody listens on now. Somebody may soon: a start that fails so is repeated."""
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
