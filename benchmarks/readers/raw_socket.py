"""The limit: the rate of one connection whose bytes are received and dropped.

Both readers send the Fetch requests of a consumer with default settings on a blocking socket. `in_turn` derives the
next request from the batch headers of the last response, as every client must. `replayed` has read the topic once
before, untimed, so it knows all requests. It keeps two of them in flight, so that the broker never waits, and reads
nothing: no client with one connection can be faster.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
from collections.abc import Iterator
from typing import Any

from headrace._protocol.messages import FETCH, METADATA, Api, decode_response, encode_request
from headrace.records import next_offset

from . import FETCH_MAX_BYTES, FETCH_MAX_WAIT_MS, MAX_PARTITION_FETCH_BYTES, Job, Meter

_LENGTH = struct.Struct(">i")
_VERSIONS = {METADATA: 12, FETCH: 13}
_TIMEOUT = 20.0
_IN_FLIGHT = 2
# Small enough for the CPU cache, unlike a whole response.
_SCRAP = 256 * 1024


def in_turn(job: Job, meter: Meter) -> None:
    """Send a request, receive the response, get the next offsets from its batch headers, and repeat."""
    with _Wire(job.servers) as wire:
        topic_id = _topic_id(wire, job)
        meter.start()
        for step in _walk(wire, job, topic_id):
            if meter.add(step.records, step.answer_size):
                return


def replayed(job: Job, meter: Meter) -> None:
    """Send the same requests, prepared beforehand and pipelined, without reading the responses."""
    with _Wire(job.servers) as wire:
        steps = list(_walk(wire, job, _topic_id(wire, job)))
        scrap = memoryview(bytearray(_SCRAP))
        sock = wire.socket
        waiting = iter([step.request for step in steps[_IN_FLIGHT:]])
        received = due = 0
        meter.start()
        for step in steps[:_IN_FLIGHT]:
            sock.sendall(step.request)
        for step in steps:
            due += step.answer_size
            while received < due:
                received += _received(sock.recv_into(scrap))
            if request := next(waiting, None):
                sock.sendall(request)
            if meter.add(step.records, step.answer_size):
                return


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A request, and the number of records in its response."""

    request: bytes
    answer_size: int
    records: int


def _walk(wire: _Wire, job: Job, topic_id: Any) -> Iterator[_Step]:
    """Read the topic until the job's number of records has passed."""
    positions = dict.fromkeys(job.numbers, 0)
    left = job.records
    while left > 0:
        request = wire.send(FETCH, _fetch(topic_id, positions))
        answer = wire.receive()
        records = 0
        for partition in decode_response(FETCH, _VERSIONS[FETCH], answer).responses[0].partitions:
            number = partition.partition_index
            if partition.records:
                position = next_offset(partition.records, positions[number])
                records += position - positions[number]
                positions[number] = position
        if records == 0:
            raise EOFError(f"{job.topic} ends {left:,} records early")
        left -= records
        yield _Step(request, _LENGTH.size + len(answer), records)


def _fetch(topic_id: Any, positions: dict[int, int]) -> dict[str, Any]:
    partitions = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": MAX_PARTITION_FETCH_BYTES}
        for number, offset in positions.items()
    ]
    return {
        "replica_id": -1,
        "max_wait": FETCH_MAX_WAIT_MS,
        "min_bytes": 1,
        "max_bytes": FETCH_MAX_BYTES,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": partitions}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def _topic_id(wire: _Wire, job: Job) -> Any:
    topic = {"topic_id": None, "name": job.topic}
    wire.send(
        METADATA,
        {"topics": [topic], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
    )
    return decode_response(METADATA, _VERSIONS[METADATA], wire.receive()).topics[0].topic_id


class _Wire:
    """A blocking connection with kernel buffers tuned by the system and one receive buffer for all responses."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.split(",")[0].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(FETCH_MAX_BYTES + 1024 * 1024))
        self._correlation = 0

    def __enter__(self) -> _Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: Api, fields: dict[str, Any]) -> bytearray:
        self._correlation += 1
        frame = encode_request(api, _VERSIONS[api], self._correlation, "the limit", fields)
        self.socket.sendall(frame)
        return frame

    def receive(self) -> memoryview:
        """One response without its length. The next one overwrites it."""
        self._fill(self._buffer[: _LENGTH.size])
        answer = self._buffer[: _LENGTH.unpack_from(self._buffer)[0]]
        self._fill(answer)
        return answer

    def _fill(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            at += _received(self.socket.recv_into(view[at:]))


def _received(count: int) -> int:
    if count == 0:
        raise ConnectionError("the broker closed the connection")
    return count
