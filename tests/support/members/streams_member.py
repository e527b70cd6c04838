"""A member of a streams group (KIP-1071), as one request: no Python client has them."""

from __future__ import annotations

import socket
import struct
from typing import Any

from kio.schema.streams_group_heartbeat.v0 import request, response

from headrace._protocol import reader
from support.brokers.fake_broker import encode, sized
from support.brokers.kio_entities import build

_KEY, _VERSION = 88, 0


def heartbeat(servers: str, group: str, topic: str, member_id: str, epoch: int = 0) -> Any:
    """Joins with a topology of one subtopology, which reads the topic; epoch -1 leaves."""
    subtopology = {
        "subtopology_id": "0",
        "source_topics": [topic],
        "state_changelog_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    no_tasks: list[Any] | None = [] if epoch == 0 else None
    fields = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "endpoint_information_epoch": 0,
        "rebalance_timeout": 60_000,
        "topology": {"epoch": 0, "subtopologies": [subtopology]} if epoch == 0 else None,
        "active_tasks": no_tasks,
        "standby_tasks": no_tasks,
        "warmup_tasks": no_tasks,
        "process_id": "process",
        "client_tags": [],
        "task_offsets": None,
        "task_end_offsets": None,
    }
    body = encode(build(request.StreamsGroupHeartbeatRequest, fields))
    client = b"streams-client"
    header = struct.pack(">hhih", _KEY, _VERSION, 1, len(client)) + client + b"\0"
    host, _, port = servers.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sized(header + body))
        (size,) = struct.unpack(">i", _received(connection, 4))
        raw = _received(connection, size)
    answer = reader.read(response.StreamsGroupHeartbeatResponse, memoryview(raw), 5)
    assert answer.error_code == 0, answer
    return answer


def _received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        assert part, "the broker has closed the connection"
        found += part
    return found
