"""Checks whether a broker is ready: it responds to DescribeCluster and lists all expected brokers.

An open port is not enough: a broker listens before it is registered with the controller, and clients would get
metadata with missing brokers. DescribeCluster lists the registered and unfenced brokers that the broker knows.
Version 0 of this request exists since Kafka 2.8. It is implemented here, so that the local broker does not depend on
the client that is tested with it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from dataclasses import dataclass

from .settings import HOST

_DESCRIBE_CLUSTER = 60
_LARGEST_ANSWER = 1 << 20
_CLIENT = b"headrace-ready"
_REQUEST = (
    struct.pack(">hhih", _DESCRIBE_CLUSTER, 0, 1, len(_CLIENT))
    + _CLIENT
    + b"\0"  # header: no tagged fields
    + b"\0"  # do not include authorized operations
    + b"\0"  # body: no tagged fields
)


@dataclass(frozen=True, slots=True)
class ReadyBrokers:
    """The cluster as one of its brokers sees it."""

    cluster_id: str
    broker_ids: frozenset[int]


def ask_broker(port: int, timeout: float, context: ssl.SSLContext | None = None) -> ReadyBrokers | None:
    """Send DescribeCluster to the broker at `port`, over TLS if there is a context. Returns None if the broker does not
    respond (yet)."""
    try:
        with contextlib.ExitStack() as open_now:
            connection = open_now.enter_context(socket.create_connection((HOST, port), timeout=timeout))
            if context is not None:
                connection = open_now.enter_context(context.wrap_socket(connection, server_hostname=HOST))
            connection.settimeout(timeout)
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (length,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < length <= _LARGEST_ANSWER:
                return None
            return _ready_brokers(_receive(connection, length))
    except (OSError, ValueError, IndexError, struct.error):
        return None


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (chunk := connection.recv(count - len(data))):
            raise ConnectionError("the broker closed the connection in the middle of a response")
        data += chunk
    return bytes(data)


def _ready_brokers(answer: bytes) -> ReadyBrokers | None:
    # Header: correlation id, tagged fields. Body: throttle time, error code, then the fields that are read below.
    at = 4 + 1 + 4
    (error,) = struct.unpack_from(">h", answer, at)
    if error:
        return None
    _, at = _string(answer, at + 2)  # error message
    cluster_id, at = _string(answer, at)
    length, at = _varint(answer, at + 4)  # after the controller's id
    ids = set()
    for _ in range(length - 1):
        (broker_id,) = struct.unpack_from(">i", answer, at)
        ids.add(broker_id)
        _, at = _string(answer, at + 4)  # host
        _, at = _string(answer, at + 4)  # rack, after the port
        tagged, at = _varint(answer, at)
        if tagged:
            raise ValueError("tagged fields in a version that has none")
    return ReadyBrokers(cluster_id, frozenset(ids))


def _string(data: bytes, at: int) -> tuple[str, int]:
    length, at = _varint(data, at)
    end = at + max(0, length - 1)  # 0 is null, n + 1 is a string of n bytes
    return data[at:end].decode(), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
